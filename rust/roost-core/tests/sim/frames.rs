//! How frames reach who they are for: hops that lose or double them, sessions, mailboxes, answers, credit.

use std::ops::ControlFlow;

use roost_core::credit::Amount;
use roost_core::wire::{Content, CreditTarget, FrameHead, Part, Parts, ProtocolError, ReplyStatus};

use crate::ahead::Ahead;
use crate::ledger::{Key, Life, Outcome};
use crate::peer::{Entry, Peer, read_payload, reply};
use crate::world::World;

/// A frame's content, taken out of the bytes it came in.
enum Taken {
    Message {
        id: u64,
        call: bool,
        targets: Vec<(u32, u32)>,
        sequence: u64,
        bytes: u64,
        witness: Life,
    },
    Reply {
        key: Key,
        status: ReplyStatus,
    },
    Cancel {
        key: Key,
    },
    Credit {
        slot: u32,
        amount: Amount,
    },
}

impl World {
    /// Reads the frames at this end of a connection, takes them, and answers.
    pub(crate) fn read_frames(&mut self, number: u32, end: usize) {
        let (life, from) = (self.life_at(number, end), self.life_at(number, 1 - end));
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let mut buffer = std::mem::take(&mut connection.ends[end].buffer);
        let received = self.nodes[life.0]
            .peer(from)
            .map_or(0, |peer| peer.session.received());
        let lost = self.disturb(&mut buffer, received);
        let consumed = match self.take_bytes(life, from, &buffer) {
            Ok(consumed) => consumed,
            Err(error) => {
                assert!(
                    lost && matches!(error, ProtocolError::Gap { .. }),
                    "peers break no rule: {error}"
                );
                return self.close(number, end);
            }
        };
        assert!(!lost || consumed == 0, "D1: a gap is seen");
        buffer.drain(..consumed);
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.ends[end].buffer = buffer;
        }
    }

    /// A hop between the two loses the first frame, or passes it on twice. A lost frame shows by its successor.
    fn disturb(&mut self, buffer: &mut Vec<u8>, received: u64) -> bool {
        let first = FrameHead::decode(buffer).expect("frames begin here");
        let Some(head) = first.filter(|head| head.sequence > 0 && head.frame_length() <= buffer.len()) else {
            return false;
        };
        let rest = &buffer[head.frame_length()..];
        let next = FrameHead::decode(rest).expect("frames begin here");
        let seen = head.sequence > received
            && next.is_some_and(|next| next.sequence > head.sequence && next.frame_length() <= rest.len());
        if seen && self.random.percent(self.setup.losses_percent) {
            self.tally.losses += 1;
            buffer.drain(..head.frame_length());
            return true;
        }
        if self.random.percent(self.setup.doubles_percent) {
            buffer.extend_from_within(..head.frame_length());
            buffer.rotate_right(head.frame_length());
        }
        false
    }

    fn take_bytes(&mut self, life: Life, from: Life, bytes: &[u8]) -> Result<usize, ProtocolError> {
        let now = self.now;
        let node = &mut self.nodes[life.0];
        let epoch = node.epoch;
        let Some(peer) = node.peer(from) else { return Ok(0) };
        let (mut taken, mut held) = (Vec::new(), false);
        let doubles = peer.session.doubles();
        let Peer { session, ahead, .. } = peer;
        let consumed = session.receive(now, bytes, &mut |frame| {
            if frame.head.epoch > epoch {
                held = true;
                return ControlFlow::Break(());
            }
            taken.extend(take(&frame.content, frame.head.sequence, ahead));
            ControlFlow::Continue(())
        });
        self.tally.doubles += peer.session.doubles() - doubles;
        self.tally.held += u64::from(held);
        self.tally.ahead += std::mem::take(&mut peer.ahead.came);
        self.tally.given_up += std::mem::take(&mut peer.ahead.gave_up);
        for frame in taken {
            self.take_frame(life, from, frame);
        }
        self.after_batch(life, from);
        consumed
    }

    fn after_batch(&mut self, life: Life, from: Life) {
        let setup = self.setup.clone();
        let node = &mut self.nodes[life.0];
        let pending = &mut node.pending;
        let Some(peer) = node.peers[from.0].as_mut().filter(|peer| peer.life == from) else {
            return;
        };
        peer.pump(&setup, |key, sequence| {
            if let Some(call) = pending.get_mut(&key) {
                call.sequence = Some(sequence);
            }
        });
        if peer.session.ack_due() {
            peer.session.push_ack();
        }
        self.flush(life, from.0);
        for slot in 0..setup.slots {
            self.start_next(life, slot);
        }
    }

    fn take_frame(&mut self, life: Life, from: Life, frame: Taken) {
        let setup = self.setup.clone();
        let node = &mut self.nodes[life.0];
        match frame {
            Taken::Message {
                id,
                call,
                targets,
                sequence,
                bytes,
                witness,
            } => {
                assert!(
                    node.has_heard_of(witness),
                    "what a sender knew, its receiver knows: {witness:?}"
                );
                for (slot, rank) in targets {
                    let key = (id, rank);
                    self.ledger.entered(key, from, life, slot);
                    let peer = node.peer(from).expect("who sends is known");
                    let window = &mut peer.mailboxes[slot as usize];
                    window
                        .enter(setup.window, bytes)
                        .expect("D5: no more comes than there is credit for");
                    node.mailboxes[slot as usize].entries.push_back(Entry {
                        key,
                        call,
                        from,
                        sequence,
                        bytes,
                    });
                }
            }
            Taken::Reply { key, status } => {
                let known = node.pending.remove(&key);
                assert_eq!(
                    known.map(|pending| pending.to),
                    Some(from),
                    "an answer to what was asked: {key:?}"
                );
                let outcome = if status == ReplyStatus::Dropped {
                    Outcome::Dropped
                } else {
                    Outcome::Answered
                };
                self.ledger.outcome(key, outcome);
            }
            Taken::Cancel { key } => self.take_cancel(life, from, key),
            Taken::Credit { slot, amount } => {
                let peer = node.peer(from).expect("who grants is known");
                peer.windows.grant(slot, amount).expect("credit is never wrong");
            }
        }
    }

    fn take_cancel(&mut self, life: Life, from: Life, key: Key) {
        for slot in 0..self.setup.slots {
            let entries = &mut self.nodes[life.0].mailboxes[slot as usize].entries;
            let Some(at) = entries
                .iter()
                .position(|entry| entry.key == key && entry.from == from)
            else {
                continue;
            };
            let entry = entries.remove(at).expect("it is there");
            self.ledger.removed(key);
            self.leave_mailbox(life, slot, &entry);
            let setup = self.setup.clone();
            let peer = self.nodes[life.0].peer(from).expect("who cancels is known");
            peer.answer(reply(key, ReplyStatus::Dropped), 0, &setup);
        }
    }
}

fn take(content: &Content<'_>, sequence: u64, ahead: &mut Ahead) -> Option<Taken> {
    Some(match content {
        Content::Bulk(bulk, piece) => {
            ahead.take(bulk, piece);
            return None;
        }
        Content::Message(message, parts) => {
            let (id, witness) = read_payload(&ahead.payload(*parts));
            assert!(message.call == 0 || message.call == id);
            let targets = message.runs.targets().collect();
            Taken::Message {
                id,
                call: message.call != 0,
                targets,
                sequence,
                bytes: parts.bytes(),
                witness,
            }
        }
        Content::Reply(reply, _) => Taken::Reply {
            key: (reply.call, reply.rank),
            status: reply.status,
        },
        Content::Cancel(cancel) => Taken::Cancel {
            key: (cancel.call, cancel.rank),
        },
        Content::Credit(credit) => {
            let CreditTarget::Actor { slot, .. } = credit.target else {
                panic!("there are no ports here")
            };
            Taken::Credit {
                slot,
                amount: Amount {
                    messages: credit.messages,
                    bytes: credit.bytes,
                },
            }
        }
        other => panic!("nobody sends {other:?}"),
    })
}

pub(crate) fn inline_bytes(parts: Parts<'_>) -> Vec<u8> {
    let inline = parts.iter().filter_map(|part| match part {
        Part::Inline(bytes) | Part::Constant(bytes) => Some(bytes),
        Part::Segment(_) | Part::Bulk(_) => None,
    });
    inline.collect::<Vec<_>>().concat()
}
