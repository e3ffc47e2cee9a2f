use std::ops::ControlFlow;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use roost_core::limits::LOG_CHUNK_BYTES;
use roost_core::session::{Session, SessionConfig, SessionError, Shared};
use roost_core::wire::{Bulk, Content, Frame, FrameHead, Kind, Part, ReplyHeader, ReplyStatus};

/// What may happen to one direction of a session.
#[derive(Debug, Clone)]
enum Step {
    /// A frame with a payload of this length.
    Push(usize),
    /// A piece of a part, whose bytes lie elsewhere.
    PushBulk(usize),
    /// The socket takes up to this many bytes.
    Write(usize),
    /// The reader gets up to this many bytes.
    Read(usize),
    /// The reader acknowledges at once.
    Acknowledge,
    /// The connection is lost, with all that was under way, and replaced.
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..300_usize).prop_map(Step::Push),
        1 => (60_000..70_000_usize).prop_map(Step::Push),
        2 => (1..300_usize).prop_map(Step::PushBulk),
        4 => (1..500_usize).prop_map(Step::Write),
        2 => Just(Step::Write(usize::MAX)),
        4 => (1..500_usize).prop_map(Step::Read),
        2 => Just(Step::Read(usize::MAX)),
        2 => Just(Step::Acknowledge),
        1 => Just(Step::Reconnect),
    ]
}

/// Both ends, and the bytes between them.
struct Line {
    sender: Session,
    receiver: Session,
    /// Written, not yet read.
    wire: Vec<u8>,
    /// Read, not yet a whole frame.
    buffer: Vec<u8>,
    pushed: Vec<(u64, usize)>,
    taken: Vec<(u64, usize)>,
}

impl Line {
    fn new(replay_bytes_max: usize) -> Self {
        let config = SessionConfig {
            replay_bytes_max,
            ..SessionConfig::default()
        };
        Self {
            sender: Session::new(config),
            receiver: Session::new(config),
            wire: Vec::new(),
            buffer: Vec::new(),
            pushed: Vec::new(),
            taken: Vec::new(),
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Push(length) => self.push(length),
            Step::PushBulk(length) => self.push_bulk(length),
            Step::Write(most) => {
                let bytes = self.sender.unsent().collect::<Vec<_>>().concat();
                let count = most.min(bytes.len());
                self.wire.extend_from_slice(&bytes[..count]);
                self.sender.sent(count);
            }
            Step::Read(most) => self.read(most),
            Step::Acknowledge => self.acknowledge(),
            Step::Reconnect => {
                self.wire.clear();
                self.buffer.clear();
                self.sender
                    .resume(self.receiver.received())
                    .expect("both ends are of one session");
            }
        }
    }

    fn push(&mut self, length: usize) {
        let call = self.pushed.len() as u64 + 1;
        let reply = ReplyHeader {
            call,
            rank: 0,
            status: ReplyStatus::Value,
            flags: 0,
        };
        let before = self.sender.held_bytes();
        let pushed = self.sender.push(&reply, &[Part::Inline(&payload(call, length))]);
        self.note(call, length, before, pushed);
    }

    fn push_bulk(&mut self, length: usize) {
        let call = self.pushed.len() as u64 + 1;
        let bulk = Bulk {
            bulk: call,
            length: length as u64 * 2,
            offset: length as u64,
            given_up: false,
            constant: false,
        };
        let before = self.sender.held_bytes();
        let whole = Shared::new(Arc::new(payload(call, length + 9)));
        let pushed = self.sender.push_bulk(&bulk, whole.piece(3, length));
        self.note(call, length, before, pushed);
    }

    fn note(&mut self, call: u64, length: usize, before: usize, pushed: Result<u64, SessionError>) {
        match pushed {
            Ok(sequence) => {
                self.pushed.push((call, length));
                assert_eq!(sequence, call);
            }
            Err(SessionError::Full { .. }) => {
                assert!(
                    self.sender.held_bytes() <= before + 32,
                    "nothing but a request was added"
                );
                assert_eq!(self.sender.last_sequence() + 1, call);
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn read(&mut self, most: usize) {
        let count = most.min(self.wire.len());
        self.buffer.extend(self.wire.drain(..count));
        while self.read_apart() {}
        let taken = &mut self.taken;
        let consumed = self.receiver.receive(0, &self.buffer, &mut |frame| {
            taken.push(of_frame(&frame));
            ControlFlow::Continue(())
        });
        self.buffer.drain(..consumed.expect("the bytes are right"));
    }

    /// Reads a piece of a part the other way: its body is taken by the caller, the session is shown the head.
    fn read_apart(&mut self) -> bool {
        let Ok(Some(frame)) = Frame::decode(&self.buffer) else {
            return false;
        };
        if frame.head.kind != Kind::Bulk {
            return false;
        }
        let is_next = self.receiver.is_next(&frame.head);
        if is_next {
            self.taken.push(of_frame(&frame));
        }
        let head = frame.head;
        self.receiver.receive_head(0, head).expect("the bytes are right");
        self.buffer.drain(..FrameHead::BYTES + head.body_length as usize);
        true
    }

    fn acknowledge(&mut self) {
        self.receiver.push_ack();
        let bytes = self.receiver.unsent().collect::<Vec<_>>().concat();
        self.receiver.sent(bytes.len());
        let consumed = self.sender.receive(0, &bytes, &mut |_| ControlFlow::Continue(()));
        assert_eq!(consumed, Ok(bytes.len()));
    }

    fn undelivered(&self) -> Vec<u64> {
        let mut calls = Vec::new();
        self.sender.undelivered(0, |frame| {
            calls.push(of_frame(&frame).0);
        });
        calls
    }
}

fn payload(call: u64, length: usize) -> Vec<u8> {
    vec![u8::try_from(call % 251).expect("below 251"); length]
}

/// Which frame it is, and the length of its payload, which is whole.
fn of_frame(frame: &Frame<'_>) -> (u64, usize) {
    let (call, bytes) = match frame.content {
        Content::Reply(reply, parts) => (reply.call, parts.single_inline().expect("one part")),
        Content::Bulk(bulk, piece) => (bulk.bulk, piece),
        other => panic!("nobody sent {other:?}"),
    };
    assert!(
        bytes.iter().all(|byte| u64::from(*byte) == call % 251),
        "the payload is whole"
    );
    (call, bytes.len())
}

proptest! {
    #[test]
    fn frames_arrive_in_order_once_and_whole(steps in vec(step(), 0..150), bound in 1_000..300_000_usize) {
        let mut line = Line::new(bound);
        for step in &steps {
            line.apply(step);
            // What was taken is a beginning of what was pushed; what is not acknowledged is the rest.
            prop_assert_eq!(&line.taken[..], &line.pushed[..line.taken.len()]);
            let acknowledged = line.sender.acknowledged();
            let rest = (acknowledged + 1..=line.pushed.len() as u64).collect::<Vec<_>>();
            prop_assert_eq!(line.undelivered(), rest);
            let largest = line.pushed.iter().map(|(_, length)| *length).max().unwrap_or(0);
            prop_assert!(line.sender.held_bytes() <= bound.max(largest + 57) + LOG_CHUNK_BYTES);
        }
        for step in [Step::Write(usize::MAX), Step::Read(usize::MAX), Step::Acknowledge] {
            line.apply(&step);
        }
        prop_assert_eq!(&line.taken, &line.pushed);
        prop_assert_eq!(line.sender.held_bytes(), 0);
    }

    #[test]
    fn no_bytes_make_a_session_panic(
        lengths in vec(0..200_usize, 1..6),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        chunk in 1..400_usize,
    ) {
        let mut line = Line::new(1 << 20);
        for length in lengths {
            line.push(length);
        }
        let mut bytes = line.sender.unsent().collect::<Vec<_>>().concat();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        for piece in bytes.chunks(chunk) {
            line.buffer.extend_from_slice(piece);
            let Ok(consumed) = line.receiver.receive(0, &line.buffer, &mut |_| ControlFlow::Continue(())) else { break };
            line.buffer.drain(..consumed);
        }
    }
}
