//! When frames are written: a lone one at once, many together, and none later than the end of the loop's turn.

/// Bytes that are written before the turn ends. A peer that works while we still pack is worth far more than a system call
/// saved: a window of calls takes half the time. With less, a peer that waits for all of it pays for waking up too often.
const FLUSH_BYTES: usize = 2 << 10;

/// One link's frames, by turns of the loop.
#[derive(Default)]
pub(super) struct Pace {
    turn: u64,
    /// Frames of that turn.
    frames: u32,
    /// The turn before it had several: the first of this one waits for those that will follow.
    bursts: bool,
    /// Something is written at the end of this turn.
    waits: bool,
}

/// What is to be done about a frame in the session.
pub(crate) enum Wrote {
    /// Write now.
    Due,
    /// Write at the end of this turn.
    Waits,
    /// Whoever writes the others writes it too.
    Known,
}

impl Pace {
    /// A frame was put into the session in this turn, and so many bytes are unsent.
    pub(super) fn wrote(&mut self, turn: u64, unsent_bytes: usize) -> Wrote {
        if self.turn != turn {
            self.turn = turn;
            self.bursts = self.frames > 1;
            self.frames = 0;
        }
        self.frames += 1;
        if unsent_bytes >= FLUSH_BYTES || (self.frames == 1 && !self.bursts) {
            Wrote::Due
        } else {
            self.waits()
        }
    }

    /// A frame was put into the session that is not to be written before this turn ends.
    pub(super) fn waits(&mut self) -> Wrote {
        if std::mem::replace(&mut self.waits, true) {
            Wrote::Known
        } else {
            Wrote::Waits
        }
    }

    /// The turn ends: everything is written.
    pub(super) fn end_turn(&mut self) {
        self.waits = false;
    }
}
