//! Frames that travel by another way than the session's connection, as along a tree of hosts: posted at one end, taken at
//! the other as if they had come over the connection.
//!
//! They keep their numbers, and their sender keeps them until they are acknowledged. So the other way may lose them, be late
//! with them or bring them twice: what is not acknowledged in time goes over the connection after all, what comes twice is
//! dropped, and what overtakes a frame that is still on the other way waits for it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::Session;
use crate::limits::POSTED_RETRY_NS;
use crate::wire::{Frame, FrameHead, Kind, ProtocolError};

/// What left by another way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Posted {
    /// The highest number among it.
    through: u64,
    /// When it is taken back, unless it is acknowledged.
    until_ns: u64,
}

/// Frames that came before one that is still on its way, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Early {
    frames: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Early {
    fn take(&mut self, sequence: u64) -> Option<Vec<u8>> {
        let frame = self.frames.remove(&sequence)?;
        self.bytes -= frame.len();
        Some(frame)
    }

    fn put(&mut self, sequence: u64, frame: Vec<u8>) {
        self.bytes += frame.len();
        self.frames.insert(sequence, frame);
    }
}

impl Session {
    /// Gives away what is unsent, to travel by another way and be passed to [`Session::receive_posted`] at the other end; until
    /// then at most, after which it is sent over the connection. None, and nothing is changed, where it has to go over the
    /// connection at once: it is more than `bytes_max`, it holds pieces of parts, something before it is not acknowledged,
    /// or the other way has just failed. So never more than this is on the other way at a time, and whoever floods a peer does it over the
    /// connection, which is bounded by its receiver.
    pub fn post(&mut self, until_ns: u64, bytes_max: usize) -> Option<Vec<u8>> {
        let length = self.log.unsent_bytes();
        let is_little = length > 0 && length <= bytes_max;
        if !is_little || self.acknowledged < self.taken_back || !self.log.is_between_frames() {
            return None;
        }
        let bytes = self.log.unsent().collect::<Vec<_>>().concat();
        let (mut at, mut next) = (0, self.acknowledged + 1);
        while let Ok(Some(head)) = FrameHead::decode(&bytes[at..]) {
            if head.kind == Kind::Bulk {
                return None;
            }
            if head.sequence != 0 {
                if head.sequence != next {
                    return None;
                }
                next += 1;
            }
            at += head.frame_length();
        }
        let through = next - 1;
        if through > self.acknowledged {
            self.posted = Some(Posted { through, until_ns });
        }
        self.sent(length);
        Some(bytes)
    }

    /// When what was posted is taken back, while it is not acknowledged.
    pub(super) fn posted_until_ns(&self) -> Option<u64> {
        let posted = self.posted.filter(|posted| posted.through > self.acknowledged);
        posted.map(|posted| posted.until_ns)
    }

    /// Makes what was posted and not acknowledged in time unsent; says whether there was any.
    pub(super) fn take_back_posted(&mut self, now_ns: u64) -> bool {
        if self.posted_until_ns().is_none_or(|until_ns| until_ns > now_ns) {
            return false;
        }
        if !self.log.is_between_frames() {
            // The rest of a frame that is half written comes first.
            if let Some(posted) = &mut self.posted {
                posted.until_ns = now_ns.saturating_add(POSTED_RETRY_NS);
            }
            return false;
        }
        self.posted = None;
        self.taken_back = self.last_sequence;
        self.log.rewind(self.acknowledged);
        true
    }

    /// Takes frames that have come by another way: whole ones, as [`Session::post`] gave them. Those that `visit` breaks at, or
    /// that others have to come before, are kept, and shown by a later [`Session::receive`].
    ///
    /// # Errors
    ///
    /// As [`Session::receive`].
    pub fn receive_posted(
        &mut self,
        now_ns: u64,
        bytes: &[u8],
        visit: &mut impl FnMut(Frame<'_>) -> ControlFlow<()>,
    ) -> Result<(), ProtocolError> {
        let (before, mut at) = (self.received, 0);
        let mut taken = Ok(());
        while let Some(head) = FrameHead::decode(&bytes[at..])? {
            let end = at + head.frame_length();
            let Some(frame) = bytes.get(at..end) else { break };
            taken = self
                .apply_acknowledged(head.acknowledged)
                .and_then(|()| self.receive_out_of_order(head, frame));
            if taken.is_err() {
                break;
            }
            at = end;
        }
        let taken = taken.and_then(|()| self.take_early(visit));
        if self.received != before && self.owed.since_ns.is_none() {
            self.owed.since_ns = Some(now_ns);
        }
        self.log.trim(self.acknowledged);
        taken
    }

    /// Keeps a frame until those before it have come.
    pub(super) fn keep_early(&mut self, head: FrameHead, frame: &[u8]) -> Result<(), ProtocolError> {
        let gap = ProtocolError::Gap {
            expected: self.received + 1,
            got: head.sequence,
        };
        let limit = self.config.early_bytes_max;
        if limit == 0 || frame.len() != head.frame_length() {
            return Err(gap);
        }
        let early = self.early.get_or_insert_default();
        if early.frames.contains_key(&head.sequence) {
            self.doubles += 1;
        } else if early.bytes.saturating_add(frame.len()) > limit && !early.frames.is_empty() {
            return Err(gap);
        } else {
            early.put(head.sequence, frame.to_vec());
        }
        Ok(())
    }

    /// Shows the frames whose turn it is among those that came before it.
    #[cold]
    pub(super) fn take_early(
        &mut self,
        visit: &mut impl FnMut(Frame<'_>) -> ControlFlow<()>,
    ) -> Result<(), ProtocolError> {
        while let Some(early) = &mut self.early {
            let next = self.received + 1;
            while let Some((&first, _)) = early.frames.first_key_value()
                && first < next
            {
                // It came again over the connection, and first.
                early.take(first);
                self.doubles += 1;
            }
            let Some(frame) = early.take(next) else {
                if early.frames.is_empty() {
                    self.early = None;
                }
                return Ok(());
            };
            let Some(head) = FrameHead::decode(&frame)? else {
                return Ok(());
            };
            if visit(Frame::decode_body(head, &frame[FrameHead::BYTES..])?).is_break() {
                if let Some(early) = &mut self.early {
                    early.put(next, frame);
                }
                return Ok(());
            }
            self.take_in(head);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::POSTED_BYTES_MAX;
    use crate::session::{SessionConfig, SessionError};
    use crate::wire::{Bulk, Cancel, Content, Part, PortItem};

    fn pair() -> (Session, Session) {
        let config = SessionConfig {
            ack_delay_ns: Some(100),
            early_bytes_max: 500,
            ..SessionConfig::default()
        };
        (Session::new(config), Session::new(config))
    }

    fn push(session: &mut Session, port: u64, length: usize) -> Result<u64, SessionError> {
        let bytes = vec![0; length];
        session.push(&PortItem { port, flags: 0 }, &[Part::Inline(&bytes)])
    }

    fn drain(session: &mut Session) -> Vec<u8> {
        let bytes = session.unsent().collect::<Vec<_>>().concat();
        session.sent(bytes.len());
        bytes
    }

    fn collect(seen: &mut Vec<u64>) -> impl FnMut(Frame<'_>) -> ControlFlow<()> {
        |frame| {
            if let Content::PortItem(item, _) = frame.content {
                seen.push(item.port);
            }
            ControlFlow::Continue(())
        }
    }

    fn receive(session: &mut Session, bytes: &[u8]) -> Result<Vec<u64>, ProtocolError> {
        let mut seen = Vec::new();
        assert_eq!(session.receive(0, bytes, &mut collect(&mut seen))?, bytes.len());
        Ok(seen)
    }

    fn open(session: &mut Session, bytes: &[u8]) -> Result<Vec<u64>, ProtocolError> {
        let mut seen = Vec::new();
        session.receive_posted(0, bytes, &mut collect(&mut seen))?;
        Ok(seen)
    }

    #[test]
    fn what_is_posted_is_taken_once_and_its_answer_acknowledges_it() {
        let (mut a, mut b) = pair();
        push(&mut a, 1, 10).unwrap();
        push(&mut a, 2, 10).unwrap();
        let posted = a.post(1_000, POSTED_BYTES_MAX).unwrap();
        assert!(!a.has_unsent());
        assert_eq!(a.next_wakeup(), Some(1_000));
        assert_eq!(open(&mut b, &posted), Ok(vec![1, 2]));
        assert_eq!(open(&mut b, &posted), Ok(vec![]));
        assert!(b.ack_due() && b.doubles() == 2);
        push(&mut b, 3, 10).unwrap();
        let answer = b.post(1_000, POSTED_BYTES_MAX).unwrap();
        assert_eq!(open(&mut a, &answer), Ok(vec![3]));
        assert_eq!((a.acknowledged(), a.held_bytes()), (2, 0));
        assert!(!a.handle_timeout(50));
        assert_eq!(a.next_wakeup(), Some(100), "the answer is to be acknowledged");
    }

    #[test]
    fn what_overtakes_it_on_the_connection_waits() {
        let (mut a, mut b) = pair();
        push(&mut a, 1, 10).unwrap();
        let posted = a.post(1_000, POSTED_BYTES_MAX).unwrap();
        push(&mut a, 2, 10).unwrap();
        push(&mut a, 3, 10).unwrap();
        assert_eq!(
            a.post(1_000, POSTED_BYTES_MAX),
            None,
            "nothing more while something is on its way"
        );
        let bytes = drain(&mut a);
        assert_eq!(receive(&mut b, &bytes), Ok(vec![]));
        assert_eq!(b.received(), 0);
        assert_eq!(open(&mut b, &posted), Ok(vec![1, 2, 3]));
        b.push_ack();
        let bytes = drain(&mut b);
        receive(&mut a, &bytes).unwrap();
        assert_eq!((a.acknowledged(), a.next_wakeup()), (3, None));
    }

    #[test]
    fn what_got_lost_goes_over_the_connection_and_nothing_is_posted_before_it_is_heard() {
        let (mut a, mut b) = pair();
        push(&mut a, 1, 10).unwrap();
        let posted = a.post(1_000, POSTED_BYTES_MAX).unwrap();
        push(&mut a, 2, 10).unwrap();
        let bytes = drain(&mut a);
        receive(&mut b, &bytes).unwrap();
        assert!(!a.handle_timeout(999) && a.handle_timeout(1_000));
        assert_eq!(a.post(3_000, POSTED_BYTES_MAX), None);
        let bytes = drain(&mut a);
        assert_eq!(receive(&mut b, &bytes), Ok(vec![1, 2]));
        // It was only late.
        assert_eq!(open(&mut b, &posted), Ok(vec![]));
        b.push_ack();
        let bytes = drain(&mut b);
        receive(&mut a, &bytes).unwrap();
        push(&mut a, 3, 10).unwrap();
        assert!(a.post(3_000, POSTED_BYTES_MAX).is_some());
    }

    #[test]
    fn a_frame_that_is_half_written_is_finished_first() {
        let (mut a, _) = pair();
        push(&mut a, 1, 10).unwrap();
        a.post(1_000, POSTED_BYTES_MAX).unwrap();
        push(&mut a, 2, 100).unwrap();
        a.sent(50);
        assert!(!a.handle_timeout(1_000));
        assert_eq!(a.next_wakeup(), Some(1_000 + POSTED_RETRY_NS));
        let rest = a.unsent_bytes();
        a.sent(rest);
        assert!(a.handle_timeout(1_000 + POSTED_RETRY_NS));
        // Both again, from the start of a frame.
        assert!(a.unsent_bytes() > rest + 50);
    }

    #[test]
    fn what_is_held_or_early_is_shown_later() {
        let (mut a, mut b) = pair();
        push(&mut a, 1, 10).unwrap();
        let posted = a.post(1_000, POSTED_BYTES_MAX).unwrap();
        b.receive_posted(0, &posted, &mut |_| ControlFlow::Break(()))
            .unwrap();
        assert_eq!(b.received(), 0);
        assert_eq!(receive(&mut b, &[]), Ok(vec![1]));
    }

    #[test]
    fn a_connection_that_is_made_anew_brings_it_too() {
        let (mut a, mut b) = pair();
        push(&mut a, 1, 10).unwrap();
        a.post(1_000, POSTED_BYTES_MAX).unwrap();
        a.resume(0).unwrap();
        assert_eq!(a.next_wakeup(), None);
        let bytes = drain(&mut a);
        assert_eq!(receive(&mut b, &bytes), Ok(vec![1]));
    }

    #[test]
    fn only_little_and_whole_is_posted() {
        let (mut a, _) = pair();
        assert_eq!(a.post(1, POSTED_BYTES_MAX), None);
        push(&mut a, 1, POSTED_BYTES_MAX).unwrap();
        assert_eq!(a.post(1, POSTED_BYTES_MAX), None);
        let (mut a, _) = pair();
        push(&mut a, 1, 100).unwrap();
        a.sent(40);
        assert_eq!(a.post(1, POSTED_BYTES_MAX), None);
        let (mut a, _) = pair();
        let piece = Bulk {
            bulk: 1,
            length: 3,
            offset: 0,
            given_up: true,
            constant: false,
        };
        a.give_up_bulk(&piece);
        assert_eq!(a.post(1, POSTED_BYTES_MAX), None);
        // An acknowledgement alone: nothing is waited for.
        let (mut a, _) = pair();
        a.ask_ack();
        assert!(a.post(1, POSTED_BYTES_MAX).is_some());
        assert_eq!(a.next_wakeup(), None);
    }

    #[test]
    fn what_waits_for_its_turn_is_bounded() {
        let (mut a, mut b) = pair();
        push(&mut a, 1, 10).unwrap();
        a.post(1_000, POSTED_BYTES_MAX).unwrap();
        for port in 2..=4 {
            push(&mut a, port, 200).unwrap();
        }
        let bytes = drain(&mut a);
        assert_eq!(
            receive(&mut b, &bytes),
            Err(ProtocolError::Gap { expected: 1, got: 3 })
        );
        // Where nothing is posted, a gap is an error at once.
        let mut near = Session::new(SessionConfig::default());
        let cancel = Cancel {
            call: 1,
            rank: 0,
            flags: 0,
        };
        let (mut c, _) = pair();
        c.push(&cancel, &[]).unwrap();
        drain(&mut c);
        c.push(&cancel, &[]).unwrap();
        let bytes = drain(&mut c);
        assert_eq!(
            receive(&mut near, &bytes),
            Err(ProtocolError::Gap { expected: 1, got: 2 })
        );
    }
}
