//! Cutting an operation into chunks.

use crate::plan::Part;

/// Pieces of one chunk: as many as one call of the kernel takes.
const PIECES_MAX: usize = super::vm::VECTORS_MAX;

/// A cut inside a run leaves whole pages behind itself.
const PAGE_BYTES: u64 = 4096;

/// How far an operation is cut: a part, a run of it, bytes of that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    part: usize,
    run: usize,
    offset: u64,
}

/// What one thread copies at one go.
#[derive(Debug)]
pub(super) struct Chunk {
    from: Cursor,
    to: Cursor,
    pub(super) is_first: bool,
    pub(super) is_last: bool,
}

/// Bytes that lie side by side in both places, and whose part they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) part: usize,
    pub(super) remote: u64,
    pub(super) local: usize,
    pub(super) bytes: u64,
}

impl Cursor {
    /// The next chunk, of about so many bytes; none at the end.
    pub(super) fn cut(&mut self, parts: &[Part], bytes_max: u64) -> Option<Chunk> {
        let from = *self;
        let (mut bytes, mut pieces) = (0, 0);
        while let Some(left) = self.left(parts) {
            if bytes >= bytes_max || pieces == PIECES_MAX {
                break;
            }
            pieces += 1;
            let room = bytes_max - bytes;
            // What would leave less than a page is taken whole.
            if left <= room + PAGE_BYTES {
                bytes += left;
                self.step();
            } else {
                let taken = (room / PAGE_BYTES).max(1) * PAGE_BYTES;
                self.offset += taken;
                break;
            }
        }
        // Looked at first: it moves on to where the next piece begins, which is where this chunk ends.
        let is_last = self.left(parts).is_none();
        (pieces > 0).then_some(Chunk {
            from,
            to: *self,
            is_first: from == Self::default(),
            is_last,
        })
    }

    /// Bytes left of the run that it is at; moves on to the next part at the end of one. None at the end of all.
    fn left(&mut self, parts: &[Part]) -> Option<u64> {
        loop {
            let part = parts.get(self.part)?;
            if let Some(run) = part.runs.get(self.run) {
                return Some(run.bytes - self.offset);
            }
            *self = Self {
                part: self.part + 1,
                run: 0,
                offset: 0,
            };
        }
    }

    fn step(&mut self) {
        self.run += 1;
        self.offset = 0;
    }
}

impl Chunk {
    /// The pieces of the chunk, in order.
    pub(super) fn pieces<'a>(&self, parts: &'a [Part]) -> impl Iterator<Item = Piece> + use<'a> {
        let (mut at, end) = (self.from, self.to);
        std::iter::from_fn(move || {
            let mut left = at.left(parts)?;
            if at == end {
                return None;
            }
            let run = &parts[at.part].runs[at.run];
            let is_end = (at.part, at.run) == (end.part, end.run);
            if is_end {
                left = end.offset - at.offset;
            }
            let piece = Piece {
                part: at.part,
                remote: run.remote + at.offset,
                local: run.local + usize::try_from(at.offset).ok()?,
                bytes: left,
            };
            if is_end {
                at = end;
            } else {
                at.step();
            }
            Some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::local::testing::part;
    use crate::plan::{Direction, Run};

    proptest! {
        #[test]
        fn chunks_are_the_whole_in_order(
            runs in proptest::collection::vec(proptest::collection::vec(1_u64..40_000, 0..6), 0..8),
            bytes_max in 1_u64..100_000,
        ) {
            let mut at = 0;
            let parts: Vec<Part> = runs
                .iter()
                .map(|runs| {
                    let run = |&bytes: &u64| {
                        at += bytes;
                        Run { remote: at - bytes, local: usize::try_from(at - bytes).unwrap(), bytes }
                    };
                    part(Direction::Read, 1 << 40, runs.iter().map(run).collect())
                })
                .collect();
            let (mut cursor, mut next) = (Cursor::default(), 0);
            let mut is_last = at == 0;
            while let Some(chunk) = cursor.cut(&parts, bytes_max) {
                prop_assert!(!is_last);
                prop_assert_eq!(chunk.is_first, next == 0);
                let mut bytes = 0;
                for piece in chunk.pieces(&parts) {
                    prop_assert_eq!(piece.remote, next);
                    prop_assert_eq!(piece.local as u64, next);
                    let run_end = parts[piece.part].runs.iter().any(|run| run.remote + run.bytes >= next + piece.bytes);
                    prop_assert!(run_end && piece.bytes > 0);
                    next += piece.bytes;
                    bytes += piece.bytes;
                }
                prop_assert!(bytes > 0 && bytes <= bytes_max.max(PAGE_BYTES) + PAGE_BYTES);
                is_last = chunk.is_last;
            }
            prop_assert!(is_last);
            prop_assert_eq!(next, at);
        }
    }
}
