//! Signs of life over a trunk. The root beats and judges by silence; the host's lease is for as long as it hears beats.

use crate::limits::{CLOCK_SAMPLES_MAX, CLOCK_STEP_NS};

/// The root's side of one host.
#[derive(Debug, Clone)]
#[expect(clippy::struct_field_names, reason = "each is a time, and names its unit")]
pub struct Pulse {
    beat_ns: u64,
    silence_ns: u64,
    heard_ns: u64,
    next_beat_ns: u64,
    looked_ns: u64,
}

/// What the time says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// A beat is due.
    Beat,
    /// It was silent for too long.
    Lost {
        /// For how long.
        silence_ns: u64,
    },
}

impl Pulse {
    /// From now on, with a beat each `beat_ns`, and a verdict after `silence_ns` of silence.
    pub fn new(now_ns: u64, beat_ns: u64, silence_ns: u64) -> Self {
        Self {
            beat_ns,
            silence_ns,
            heard_ns: now_ns,
            next_beat_ns: now_ns,
            looked_ns: now_ns,
        }
    }

    /// Something came from the host.
    pub fn heard(&mut self, now_ns: u64) {
        self.heard_ns = self.heard_ns.max(now_ns);
    }

    /// Look at the time; what was heard by then has been told.
    pub fn look(&mut self, now_ns: u64) -> Option<Sign> {
        // While this side stood still itself (stopped, suspended) it heard nobody: that silence is its own.
        let away_ns = now_ns
            .saturating_sub(self.looked_ns)
            .saturating_sub(2 * self.beat_ns);
        self.looked_ns = now_ns;
        self.heard_ns = (self.heard_ns + away_ns).min(now_ns);
        let silence_ns = now_ns - self.heard_ns;
        if silence_ns >= self.silence_ns {
            return Some(Sign::Lost { silence_ns });
        }
        (now_ns >= self.next_beat_ns).then(|| {
            self.next_beat_ns = now_ns + self.beat_ns;
            Sign::Beat
        })
    }

    /// When to look again.
    pub fn next_wakeup_ns(&self) -> u64 {
        self.next_beat_ns
            .min(self.heard_ns.saturating_add(self.silence_ns))
    }
}

/// What a host knows of the root's monotonic clock. A beat that took long makes the root's clock look late: of some beats
/// the one that makes it earliest is right, but for the way that the fastest took.
#[derive(Debug, Clone, Default)]
pub struct RootClock {
    samples: Vec<i64>,
    next: usize,
    told_ns: Option<i64>,
}

impl RootClock {
    /// A beat that says `root_ns` came at `now_ns` of the host's own clock. Gives the offset, to be added to the own
    /// clock, when it has moved.
    pub fn beat(&mut self, now_ns: u64, root_ns: u64) -> Option<i64> {
        let sample = root_ns.cast_signed().wrapping_sub(now_ns.cast_signed());
        if self.samples.len() < CLOCK_SAMPLES_MAX {
            self.samples.push(sample);
        } else {
            self.samples[self.next] = sample;
        }
        self.next = (self.next + 1) % CLOCK_SAMPLES_MAX;
        let offset = self.samples.iter().copied().max().unwrap_or(0);
        let moved = self
            .told_ns
            .is_none_or(|told| told.abs_diff(offset) > CLOCK_STEP_NS);
        moved.then(|| {
            self.told_ns = Some(offset);
            offset
        })
    }

    /// The offset that was given last.
    pub fn offset_ns(&self) -> i64 {
        self.told_ns.unwrap_or(0)
    }

    /// A time of the root's clock in the own one.
    pub fn own_ns(&self, root_ns: u64) -> u64 {
        root_ns.saturating_add_signed(self.offset_ns().saturating_neg())
    }
}
