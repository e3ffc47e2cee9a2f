use std::ops::ControlFlow;
use std::sync::Arc;

use roost_core::session::{Bulks, Session, SessionConfig, SessionError, Shared};
use roost_core::wire::{Bulk, Content, Part, ProtocolError, ReplyHeader, ReplyStatus};

/// Steps after which a script ends: what a longer one could find a shorter one finds sooner.
const STEPS_MAX: usize = 100;

/// Payloads of a script that may be larger than a chunk of the log: they are slow, and the second shows no more.
const LARGE_MAX: usize = 2;

/// Bytes drive two ends: as long as nothing on the way is changed, everything arrives in order, once and whole; when
/// something is, an end may refuse it, and nothing else happens.
pub fn session(data: &[u8]) {
    let Some((bound, script)) = data.split_first() else {
        return;
    };
    let early_bytes_max = if bound & 0x80 == 0 { 0 } else { 4 << 10 };
    let mut line = Line::new(256 << (bound % 12), early_bytes_max);
    let mut script = script.iter().copied().take(2 * STEPS_MAX);
    while let Some(step) = script.next() {
        let argument = script.next().unwrap_or(0);
        if !line.apply(step, argument, &mut script) {
            return;
        }
    }
    line.finish();
}

struct Line {
    sender: Session,
    receiver: Session,
    wire: Vec<u8>,
    buffer: Vec<u8>,
    pushed: Vec<(u64, usize)>,
    taken: Vec<(u64, usize)>,
    large: usize,
    coming: Bulks<Vec<u8>>,
    /// Something on the way was changed: from here on only panics count.
    changed: bool,
}

impl Line {
    fn new(replay_bytes_max: usize, early_bytes_max: usize) -> Self {
        let config = SessionConfig {
            replay_bytes_max,
            ack_delay_ns: Some(5),
            early_bytes_max,
        };
        Self {
            sender: Session::new(config),
            receiver: Session::new(config),
            wire: Vec::new(),
            buffer: Vec::new(),
            pushed: Vec::new(),
            taken: Vec::new(),
            large: 0,
            coming: Bulks::default(),
            changed: false,
        }
    }

    /// Says whether the connection still stands.
    fn apply(&mut self, step: u8, argument: u8, script: &mut impl Iterator<Item = u8>) -> bool {
        let argument = usize::from(argument);
        match step % 11 {
            0 => self.push(argument),
            1 if self.large < LARGE_MAX => {
                self.large += 1;
                self.push(argument << 9);
            }
            2 => self.write(argument + 1),
            3 => self.write(usize::MAX),
            4 => return self.read(argument + 1),
            5 => return self.read(usize::MAX),
            6 => return self.acknowledge(argument % 3 == 0),
            7 => return self.reconnect(),
            8 if !self.wire.is_empty() => {
                let at = ((argument << 8) | usize::from(script.next().unwrap_or(0))) % self.wire.len();
                let value = script.next().unwrap_or(0);
                self.changed |= self.wire[at] != value;
                self.wire[at] = value;
            }
            9 => {
                // A stranger's bytes.
                let count = argument.min(64);
                self.wire.extend(script.take(count));
                self.changed |= count > 0;
            }
            10 => self.push_bulk(argument + 1),
            _ => {}
        }
        true
    }

    fn push(&mut self, length: usize) {
        let call = self.sender.last_sequence() + 1;
        let reply = ReplyHeader {
            call,
            rank: 1,
            status: ReplyStatus::Item,
            flags: 0,
        };
        let pushed = self
            .sender
            .push(&reply, &[Part::Inline(&vec![fill(call); length])]);
        self.note(call, length, pushed);
    }

    /// The first piece of a part that has two.
    fn push_bulk(&mut self, length: usize) {
        let call = self.sender.last_sequence() + 1;
        let bulk = Bulk {
            bulk: call,
            length: 2 * length as u64,
            offset: 0,
            given_up: false,
            constant: false,
        };
        let piece = Shared::new(Arc::new(vec![fill(call); length]));
        let pushed = self.sender.push_bulk(&bulk, piece);
        self.note(call, length, pushed);
    }

    fn note(&mut self, call: u64, length: usize, pushed: Result<u64, SessionError>) {
        match pushed {
            Ok(sequence) => {
                assert_eq!(sequence, call);
                self.pushed.push((call, length));
            }
            Err(SessionError::Full { .. }) => {
                assert!(self.sender.acknowledged() < self.sender.last_sequence());
            }
            Err(error) => panic!("within all limits: {error}"),
        }
    }

    fn write(&mut self, most: usize) {
        let mut count = 0;
        for piece in self.sender.unsent() {
            let part = &piece[..piece.len().min(most - count)];
            self.wire.extend_from_slice(part);
            count += part.len();
            if count == most {
                break;
            }
        }
        self.sender.sent(count);
    }

    fn read(&mut self, most: usize) -> bool {
        let count = most.min(self.wire.len());
        self.buffer.extend_from_slice(&self.wire[..count]);
        self.wire.drain(..count);
        let (taken, coming, changed) = (&mut self.taken, &mut self.coming, self.changed);
        let before = taken.len();
        let consumed = self.receiver.receive(3, &self.buffer, &mut |frame| {
            match frame.content {
                Content::Reply(reply, parts) if !changed => {
                    let bytes = parts.single_inline().expect("one part");
                    assert!(is_filled(bytes, fill(reply.call)), "the payload is whole");
                    taken.push((reply.call, bytes.len()));
                }
                Content::Bulk(bulk, piece) => {
                    let room = coming.room(&bulk, piece.len(), |_| Ok::<_, ProtocolError>(Vec::new()));
                    assert!(changed || room.is_ok(), "{room:?}");
                    if let Ok(room) = room {
                        room.extend_from_slice(piece);
                        coming.filled(&bulk, piece.len());
                    }
                    if !changed {
                        assert!(is_filled(piece, fill(bulk.bulk)), "the piece is whole");
                        taken.push((bulk.bulk, piece.len()));
                    }
                }
                content => assert!(changed, "nobody sent {content:?}"),
            }
            ControlFlow::Continue(())
        });
        match consumed {
            Ok(consumed) => {
                self.buffer.drain(..consumed);
                if !self.changed {
                    assert_eq!(self.taken[before..], self.pushed[before..self.taken.len()]);
                }
                true
            }
            Err(error) => {
                assert!(self.changed, "what was sent was refused: {error}");
                false
            }
        }
    }

    fn acknowledge(&mut self, in_time: bool) -> bool {
        if in_time {
            self.receiver
                .handle_timeout(self.receiver.next_wakeup().unwrap_or(0));
        } else {
            self.receiver.push_ack();
        }
        let bytes = self.receiver.unsent().collect::<Vec<_>>().concat();
        self.receiver.sent(bytes.len());
        let consumed = self.sender.receive(0, &bytes, &mut |_| ControlFlow::Continue(()));
        assert!(self.changed || consumed == Ok(bytes.len()), "{consumed:?}");
        consumed.is_ok()
    }

    fn reconnect(&mut self) -> bool {
        self.wire.clear();
        self.buffer.clear();
        let resumed = self.sender.resume(self.receiver.received());
        assert!(self.changed || resumed.is_ok(), "{resumed:?}");
        resumed.is_ok()
    }

    fn finish(mut self) {
        let mut next = self.sender.acknowledged();
        self.sender.undelivered(0, |frame| {
            next += 1;
            assert_eq!(frame.head.sequence, next);
        });
        assert_eq!(next, self.sender.last_sequence());
        if self.changed {
            return;
        }
        self.write(usize::MAX);
        assert!(self.read(usize::MAX) && self.acknowledge(false));
        assert_eq!(self.taken, self.pushed);
        assert_eq!(self.sender.held_bytes(), 0);
    }
}

fn fill(call: u64) -> u8 {
    call.to_le_bytes()[0]
}

/// Whether every byte is this one: the first is, and each is as the one before it. Counted comparisons are slow here.
fn is_filled(bytes: &[u8], byte: u8) -> bool {
    bytes.is_empty() || (bytes[0] == byte && bytes[1..] == bytes[..bytes.len() - 1])
}
