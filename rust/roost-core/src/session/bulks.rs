//! Parts in pieces: how a session sends and takes them, which piece belongs where, and that no frame names one that is not
//! whole.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{Session, SessionError, Shared};
use crate::limits;
use crate::wire::frame::measure_body;
use crate::wire::{Bulk, BulkPart, FrameHead, FrameHeader, Part, ProtocolError};

/// The parts of one session that have begun to come and that no frame has named yet. `R` is the room that the owner gives
/// to each: it is asked for with the first piece, and should take memory only as it is filled.
#[derive(Debug)]
pub struct Bulks<R> {
    open: HashMap<u64, Open<R>>,
    /// The highest number of a part that has begun.
    last: u64,
    /// The lengths of the open parts.
    announced: u64,
}

#[derive(Debug)]
struct Open<R> {
    length: u64,
    filled: u64,
    room: R,
}

impl<R> Default for Bulks<R> {
    fn default() -> Self {
        Self {
            open: HashMap::new(),
            last: 0,
            announced: 0,
        }
    }
}

impl<R> Bulks<R> {
    /// The room of the part that a piece of so many bytes belongs to, made when it is the first. The piece goes to
    /// [`Bulk::offset`] in it; [`Bulks::filled`] says that it is there.
    ///
    /// # Errors
    ///
    /// [`ProtocolError`] when it is not the next piece of its part, or when more parts are open than one message may have;
    /// what `make` gives for an error when it has no room.
    pub fn room<E: From<ProtocolError>>(
        &mut self,
        bulk: &Bulk,
        piece: usize,
        make: impl FnOnce(u64) -> Result<R, E>,
    ) -> Result<&mut R, E> {
        let count = self.open.len() as u64;
        let open = match self.open.entry(bulk.bulk) {
            Entry::Occupied(open) => open.into_mut(),
            Entry::Vacant(place) => {
                if bulk.bulk <= self.last {
                    return Err(bulk.refused(piece).into());
                }
                ProtocolError::check("parts", count + 1, limits::MESSAGE_PARTS_MAX as u64)?;
                let announced = self.announced.saturating_add(bulk.length);
                ProtocolError::check("bytes of parts", announced, limits::MESSAGE_BYTES_MAX)?;
                let room = make(bulk.length)?;
                self.last = bulk.bulk;
                self.announced = announced;
                place.insert(Open {
                    length: bulk.length,
                    filled: 0,
                    room,
                })
            }
        };
        let fits = open.filled.saturating_add(piece as u64) <= open.length;
        if (bulk.length, bulk.offset) != (open.length, open.filled) || !fits {
            return Err(bulk.refused(piece).into());
        }
        Ok(&mut open.room)
    }

    /// The room of a part that has begun.
    pub fn open(&mut self, bulk: u64) -> Option<&mut R> {
        self.open.get_mut(&bulk).map(|open| &mut open.room)
    }

    /// A piece of so many bytes is in its room.
    pub fn filled(&mut self, bulk: &Bulk, piece: usize) {
        if let Some(open) = self.open.get_mut(&bulk.bulk) {
            open.filled += piece as u64;
        }
    }

    /// No frame will name this part: its room, if it had begun.
    pub fn give_up(&mut self, bulk: &Bulk) -> Option<R> {
        // Its number is used, whether or not a piece has come.
        self.last = self.last.max(bulk.bulk);
        self.close(bulk.bulk)
    }

    /// A frame names this part: its room, which is full.
    ///
    /// # Errors
    ///
    /// [`ProtocolError::MissingBulk`] when it has not come, or not all of it, or was named before.
    pub fn take(&mut self, part: &BulkPart) -> Result<R, ProtocolError> {
        let missing = ProtocolError::MissingBulk { bulk: part.bulk };
        let is_whole = |open: &Open<R>| open.filled == open.length && open.length == part.length;
        if !self.open.get(&part.bulk).is_some_and(is_whole) {
            return Err(missing);
        }
        self.close(part.bulk).ok_or(missing)
    }

    fn close(&mut self, bulk: u64) -> Option<R> {
        let open = self.open.remove(&bulk)?;
        self.announced -= open.length;
        Some(open.room)
    }

    /// How many parts are open, and their bytes that have come.
    pub fn figures(&self) -> (usize, u64) {
        (self.open.len(), self.open.values().map(|open| open.filled).sum())
    }
}

impl Session {
    /// Numbers a piece of a part that travels ahead of its frame; its bytes are not copied. Such pieces leave half of what
    /// the session may keep to other frames. Returns the piece's number.
    ///
    /// # Errors
    ///
    /// As [`Session::push`].
    pub fn push_bulk(&mut self, bulk: &Bulk, piece: Shared) -> Result<u64, SessionError> {
        let size = measure_body(bulk, &[Part::Inline(piece.bytes())])?;
        let here = FrameHead::BYTES + size.header as usize;
        self.make_room(here + piece.length(), self.config.replay_bytes_max / 2)?;
        let head = self.next_head(bulk, size);
        self.log.append(here, head.sequence, |out| {
            head.write(out);
            bulk.write(0, out);
        });
        self.log.append_rest(piece);
        Ok(head.sequence)
    }

    /// Tells the peer that the rest of a part does not come. It is small, and needs no room.
    pub fn give_up_bulk(&mut self, bulk: &Bulk) {
        let bulk = Bulk {
            given_up: true,
            ..*bulk
        };
        if let Ok(size) = measure_body(&bulk, &[Part::Inline(&[])]) {
            let head = self.next_head(&bulk, size);
            let length = FrameHead::BYTES + size.body as usize;
            self.log.append(length, head.sequence, |out| {
                head.write(out);
                bulk.write(0, out);
            });
        }
    }

    /// Whether this is the head of the frame that comes next; of a double otherwise, or of a frame that is not numbered.
    pub fn is_next(&self, head: &FrameHead) -> bool {
        head.sequence == self.received + 1
    }

    /// Takes a frame whose body the caller has read by itself, to where it belongs, instead of passing it to
    /// [`Session::receive`].
    ///
    /// # Errors
    ///
    /// As [`Session::receive`].
    pub fn receive_head(&mut self, now_ns: u64, head: FrameHead) -> Result<(), ProtocolError> {
        self.apply_acknowledged(head.acknowledged)?;
        if self.is_next(&head) {
            self.take_in(head);
            self.owed.since_ns.get_or_insert(now_ns);
        } else {
            self.receive_out_of_order(head, &[])?;
        }
        self.log.trim(self.acknowledged);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(bulk: u64, length: u64, offset: u64) -> Bulk {
        Bulk {
            bulk,
            length,
            offset,
            given_up: false,
            constant: false,
        }
    }

    fn put(bulks: &mut Bulks<Vec<u8>>, bulk: Bulk, bytes: &[u8]) -> Result<(), ProtocolError> {
        let room = bulks.room(&bulk, bytes.len(), |_| Ok::<_, ProtocolError>(Vec::new()))?;
        room.extend_from_slice(bytes);
        bulks.filled(&bulk, bytes.len());
        Ok(())
    }

    #[test]
    fn pieces_become_parts_whatever_comes_between() {
        let mut bulks = Bulks::default();
        put(&mut bulks, piece(1, 4, 0), b"ab").unwrap();
        put(&mut bulks, piece(3, 2, 0), b"xy").unwrap();
        let (one, three) = (BulkPart { bulk: 1, length: 4 }, BulkPart { bulk: 3, length: 2 });
        assert_eq!(bulks.take(&one), Err(ProtocolError::MissingBulk { bulk: 1 }));
        put(&mut bulks, piece(1, 4, 2), b"cd").unwrap();
        assert_eq!(bulks.figures(), (2, 6));
        assert_eq!(bulks.take(&one).unwrap(), b"abcd");
        assert_eq!(bulks.take(&one), Err(ProtocolError::MissingBulk { bulk: 1 }));
        let longer = BulkPart { length: 3, ..three };
        assert!(bulks.take(&longer).is_err());
        assert_eq!(bulks.take(&three).unwrap(), b"xy");
        assert_eq!(bulks.figures(), (0, 0));
    }

    #[test]
    fn what_is_no_next_piece_is_refused() {
        let mut bulks = Bulks::default();
        put(&mut bulks, piece(2, 4, 0), b"ab").unwrap();
        for bad in [
            piece(2, 4, 0),
            piece(2, 4, 3),
            piece(2, 5, 2),
            piece(1, 4, 0),
            piece(3, 4, 1),
        ] {
            let refused = put(&mut bulks, bad, b"c");
            assert!(matches!(refused, Err(ProtocolError::BadBulk { .. })), "{bad:?}");
        }
        assert!(put(&mut bulks, piece(2, 4, 2), b"cde").is_err());
    }

    #[test]
    fn a_part_that_is_given_up_leaves_nothing() {
        let mut bulks = Bulks::default();
        put(&mut bulks, piece(1, 4, 0), b"ab").unwrap();
        let given_up = Bulk {
            given_up: true,
            ..piece(1, 4, 2)
        };
        assert_eq!(bulks.give_up(&given_up), Some(b"ab".to_vec()));
        assert_eq!(bulks.give_up(&given_up), None);
        assert_eq!(bulks.figures(), (0, 0));
        assert!(put(&mut bulks, piece(1, 4, 2), b"cd").is_err());
    }

    #[test]
    fn no_more_is_announced_than_one_message_may_have() {
        let mut bulks = Bulks::default();
        let most = limits::MESSAGE_BYTES_MAX;
        put(&mut bulks, piece(1, most - 2, 0), b"a").unwrap();
        put(&mut bulks, piece(2, 2, 0), b"a").unwrap();
        let refused = put(&mut bulks, piece(3, 1, 0), b"a");
        assert!(matches!(refused, Err(ProtocolError::TooMany { .. })));
        bulks.give_up(&piece(2, 2, 1));
        put(&mut bulks, piece(3, 1, 0), b"a").unwrap();
    }
}
