//! What user code does: verbs, endpoints, answers, cancels.

use std::sync::Arc;

use roost_core::credit::Amount;
use roost_core::id::MeshId;
use roost_core::wire::{Cancel, Credit, CreditTarget, ReplyStatus};

use crate::ledger::{Life, Outcome};
use crate::peer::{Entry, Outgoing, Pending, Status, reply};
use crate::world::{Event, World};

impl World {
    pub(crate) fn verb(&mut self, life: Life, left: u64) {
        if self.random.percent(self.setup.cancels_percent) {
            self.cancel(life);
        } else {
            self.send(life);
        }
        if left > 1 {
            let pause = self.random.below(self.setup.pause_ns_max + 1);
            self.after(pause, Event::Verb { life, left: left - 1 });
        }
    }

    /// Sends to one actor, or to actors of several procs, of which some may be dead.
    fn send(&mut self, life: Life) {
        let (procs, slots) = (self.setup.procs, self.setup.slots);
        let others = (0..procs).filter(|node| *node != life.0).collect::<Vec<_>>();
        let cast = self.random.percent(self.setup.casts_percent);
        let message = self.capture(life);
        for node in others.iter().copied() {
            let slot_step = u32::try_from(self.random.between(1, 2)).expect("small");
            let first = u32::try_from(self.random.below(slots.into())).expect("small");
            let slots = if cast {
                (first..slots).step_by(slot_step as usize).collect()
            } else {
                vec![first]
            };
            let targets = slots
                .iter()
                .map(|slot| (*slot, rank(node, *slot, self.setup.slots)))
                .collect::<Vec<_>>();
            self.send_to(life, node, &message, &targets);
            if !cast && self.random.percent(70) {
                break;
            }
        }
        if others.len() > 1 && !cast {
            // A single target is any of the others, not always the first.
            let node = self.random.pick(&others);
            let message = self.capture(life);
            let slot = u32::try_from(self.random.below(slots.into())).expect("small");
            self.send_to(life, node, &message, &[(slot, rank(node, slot, slots))]);
        }
    }

    fn capture(&mut self, life: Life) -> Outgoing {
        let id = self.next_message;
        self.next_message += 1;
        let most = self.setup.payload_bytes_max;
        let filling = if self.random.percent(90) {
            self.random.below(most.min(200) + 1)
        } else {
            self.random.below(most + 1)
        };
        let filling = usize::try_from(filling).expect("small");
        // The sender tells of a proc that it knows to be up: the receiver must know it as well.
        let up = |(node, status): (usize, &Status)| match status {
            Status::Up(incarnation) => Some((node, *incarnation)),
            _ => None,
        };
        let known = self.nodes[life.0]
            .status
            .iter()
            .enumerate()
            .filter_map(up)
            .collect::<Vec<_>>();
        let witness = if known.is_empty() {
            life
        } else {
            self.random.pick(&known)
        };
        let payload = Arc::new(Outgoing::payload(id, witness, filling));
        let segment_bytes = if self.random.percent(10) {
            self.random.below(5_000)
        } else {
            0
        };
        Outgoing {
            id,
            call: self.random.percent(70),
            payload,
            segment_bytes,
        }
    }

    fn send_to(&mut self, life: Life, node: usize, message: &Outgoing, targets: &[(u32, u32)]) {
        let peer = match self.nodes[life.0].status[node] {
            Status::Unheard => return,
            Status::Up(incarnation) => (node, incarnation),
            Status::Dead(incarnation) => {
                for (slot, rank) in targets {
                    let key = (message.id, *rank);
                    self.ledger
                        .sent(key, message.call, life, (node, incarnation), *slot);
                    self.ledger.removed(key);
                    self.ledger.outcome(key, Outcome::NotDelivered);
                }
                return;
            }
        };
        let setup = self.setup.clone();
        let (ledger, owner) = (&mut self.ledger, &mut self.nodes[life.0]);
        let entry = owner.peers[node]
            .as_mut()
            .filter(|entry| entry.life == peer)
            .expect("who is up has an entry");
        let (open, mut shut): (Vec<_>, Vec<_>) = targets.iter().partition(|(slot, _)| entry.is_open(*slot));
        let sequence = if open.is_empty() {
            None
        } else {
            entry.push_message(message, &open, &setup)
        };
        if sequence.is_none() && !open.is_empty() {
            self.tally.full += 1;
            shut = targets.to_vec();
        } else {
            for (slot, rank) in open {
                let key = (message.id, rank);
                ledger.sent(key, message.call, life, peer, slot);
                if message.call {
                    owner.pending.insert(
                        key,
                        Pending {
                            to: peer,
                            slot,
                            sequence,
                        },
                    );
                }
            }
        }
        for (slot, rank) in shut {
            if entry.bound.enter(message.bytes()).is_err() {
                ledger.refused += 1;
                continue;
            }
            let waiting = entry.bound.waiting();
            let limit = setup.queue;
            let bounded = waiting.messages <= limit.messages && waiting.bytes <= limit.bytes;
            assert!(bounded || waiting.messages == 1, "D5: {waiting:?} at the sender");
            entry.waiting[slot as usize].push_back((rank, message.clone()));
            let key = (message.id, rank);
            ledger.sent(key, message.call, life, peer, slot);
            if message.call {
                owner.pending.insert(
                    key,
                    Pending {
                        to: peer,
                        slot,
                        sequence: None,
                    },
                );
            }
        }
        self.flush(life, node);
    }

    fn cancel(&mut self, life: Life) {
        let keys = self.nodes[life.0].pending.keys().copied().collect::<Vec<_>>();
        if keys.is_empty() {
            return;
        }
        let key = self.random.pick(&keys);
        let setup = self.setup.clone();
        let node = &mut self.nodes[life.0];
        let (to, slot, waits) = {
            let pending = &node.pending[&key];
            (pending.to, pending.slot, pending.sequence.is_none())
        };
        let Some(peer) = node.peer(to) else { return };
        self.ledger.cancelled(key);
        if waits {
            let queue = &mut peer.waiting[slot as usize];
            let at = queue
                .iter()
                .position(|(rank, message)| (message.id, *rank) == key)
                .expect("it waits");
            let (_, message) = queue.remove(at).expect("it waits");
            peer.give_up(&message, key.1);
            peer.bound.leave(message.bytes());
            node.pending.remove(&key);
            self.ledger.removed(key);
            self.ledger.outcome(key, Outcome::Dropped);
            return;
        }
        let cancel = Cancel {
            call: key.0,
            rank: key.1,
            flags: 0,
        };
        peer.push(&cancel, &[], &setup).expect("a cancel needs no room");
        self.flush(life, to.0);
    }

    /// Counts a message out of a mailbox, and grants when it is time.
    pub(crate) fn leave_mailbox(&mut self, life: Life, slot: u32, entry: &Entry) {
        let setup = self.setup.clone();
        // A sender that has died needs no credit.
        let Some(peer) = self.nodes[life.0].peer(entry.from) else {
            return;
        };
        let window = &mut peer.mailboxes[slot as usize];
        let waiting = window.waiting();
        let (most, least) = (
            setup.window.messages,
            setup.window.bytes + setup.payload_bytes_max + 6_000,
        );
        assert!(
            waiting.messages <= most && waiting.bytes <= least,
            "D5: {waiting:?} in one mailbox"
        );
        if let Some(Amount { messages, bytes }) = window.take(setup.window, entry.bytes) {
            let target = CreditTarget::Actor {
                mesh: MeshId::new(1).expect("not zero"),
                slot,
            };
            peer.push(
                &Credit {
                    target,
                    messages,
                    bytes,
                },
                &[],
                &setup,
            )
            .expect("credit needs no room");
        }
    }

    pub(crate) fn start_next(&mut self, life: Life, slot: u32) {
        let mailbox = &mut self.nodes[life.0].mailboxes[slot as usize];
        if mailbox.busy.is_some() {
            return;
        }
        let Some(entry) = mailbox.entries.pop_front() else {
            return;
        };
        self.ledger.started(entry.key);
        let page = self.started.entry((life, entry.from)).or_default();
        *page = (*page).max(entry.sequence);
        self.leave_mailbox(life, slot, &entry);
        let from = entry.from.0;
        self.nodes[life.0].mailboxes[slot as usize].busy = Some(entry);
        let time = self.random.below(self.setup.service_ns_max + 1);
        self.after(time, Event::Done { life, slot });
        self.flush(life, from);
    }

    pub(crate) fn done(&mut self, life: Life, slot: u32) {
        let entry = self.nodes[life.0].mailboxes[slot as usize]
            .busy
            .take()
            .expect("an endpoint that ran");
        if entry.call {
            let most = self.setup.payload_bytes_max;
            let length = if self.random.percent(90) {
                20
            } else {
                self.random.below(most + 1)
            };
            let setup = self.setup.clone();
            if let Some(peer) = self.nodes[life.0].peer(entry.from) {
                let length = usize::try_from(length).expect("small");
                peer.answer(reply(entry.key, ReplyStatus::Value), length, &setup);
            }
            self.flush(life, entry.from.0);
        }
        self.start_next(life, slot);
    }
}

fn rank(node: usize, slot: u32, slots: u32) -> u32 {
    u32::try_from(node).expect("few procs") * slots + slot
}
