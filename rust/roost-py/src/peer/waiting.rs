//! Credit, the messages that wait for it, and the broadcasts that were not taken yet.

use std::sync::Arc;

use roost_core::credit::{Amount, SendWindows};

use super::{Link, Stalled};
use crate::outgoing::Outgoing;
use crate::pending::{Awaited, Letter};

impl Link {
    /// Whether a message to these actors may leave now: none of them has messages waiting, and each has credit.
    pub(crate) fn take_credit(
        &mut self,
        mesh: u64,
        slots: u32,
        runs: roost_core::wire::Runs<'_>,
        bytes: u64,
    ) -> bool {
        if !self.stalled.is_empty() {
            return false;
        }
        if !self.waiting.is_empty()
            && runs
                .targets()
                .any(|(slot, _)| self.waiting.contains_key(&(mesh, slot)))
        {
            return false;
        }
        let windows = self
            .windows
            .entry(mesh)
            .or_insert_with(|| SendWindows::new(Amount::MAILBOX, slots));
        windows.take_all(runs, bytes)
    }

    /// Whether a message to these actors would leave at once: see [`Self::take_credit`].
    pub(crate) fn is_free(&self, mesh: u64, runs: roost_core::wire::Runs<'_>) -> bool {
        let windows = self.windows.get(&mesh);
        self.stalled.is_empty()
            && runs.targets().all(|(slot, _)| {
                !self.waiting.contains_key(&(mesh, slot))
                    && windows.is_none_or(|windows| windows.has_room(slot))
            })
    }

    /// The receiver took messages out of a mailbox: what may go now.
    pub(crate) fn grant(&mut self, mesh: u64, slot: u32, credit: Amount) -> Vec<Outgoing> {
        let Some(windows) = self.windows.get_mut(&mesh) else {
            return Vec::new();
        };
        // A credit that cannot be is a defect of the peer; its next frames show worse, and nothing here depends on it.
        let opened = windows.grant(slot, credit).unwrap_or(false);
        if let Some(awaited) = self.awaited.get_mut(&(mesh, slot)) {
            while awaited.front().is_some_and(|one| one.ordinal <= credit.messages) {
                awaited.pop_front();
            }
        }
        if opened {
            self.take_free(mesh, slot)
        } else {
            Vec::new()
        }
    }

    /// The messages that waited for this actor's credit and have it now.
    fn take_free(&mut self, mesh: u64, slot: u32) -> Vec<Outgoing> {
        let (Some(windows), Some(queue)) = (self.windows.get_mut(&mesh), self.waiting.get_mut(&(mesh, slot)))
        else {
            return Vec::new();
        };
        let mut free = Vec::new();
        while queue.front().is_some_and(|next| windows.take(slot, next.bytes)) {
            free.extend(queue.pop_front());
        }
        if queue.is_empty() {
            self.waiting.remove(&(mesh, slot));
        }
        free
    }

    /// Remember a broadcast until its actors have taken it; `again` is what to send a rank again.
    pub(crate) fn await_broadcast(
        &mut self,
        mesh: u64,
        runs: roost_core::wire::Runs<'_>,
        name: &Arc<str>,
        sequence: u64,
        mut again: impl FnMut(u32) -> Option<Outgoing>,
    ) {
        let Some(windows) = self.windows.get(&mesh) else {
            return;
        };
        for (slot, rank) in runs.targets() {
            let ordinal = windows.sent(slot).messages;
            let one = Awaited {
                ordinal,
                sequence,
                rank,
                name: Arc::clone(name),
                again: again(rank),
            };
            self.awaited.entry((mesh, slot)).or_default().push_back(one);
        }
    }

    /// The broadcasts that its proc's death leaves, in the order in which they were sent: those to send again, and those to
    /// return. `started` is the last message that the dead proc had started, where that is known.
    pub(crate) fn take_awaited(&mut self, started: Option<u64>, again: bool) -> (Vec<Outgoing>, Vec<Letter>) {
        let mut all: Vec<((u64, u32), Awaited)> = Vec::new();
        for (actor, queue) in std::mem::take(&mut self.awaited) {
            all.extend(queue.into_iter().map(|one| (actor, one)));
        }
        all.sort_by_key(|(_, one)| one.sequence);
        // Only a lone actor starts its messages in the order of their numbers.
        let is_alone = self.windows.len() == 1 && self.windows.values().all(|windows| windows.slots() == 1);
        let (mut resent, mut letters) = (Vec::new(), Vec::new());
        for ((mesh, slot), one) in all {
            let not_started = started.is_some_and(|started| one.sequence > started);
            match one.again {
                _ if is_alone && started.is_some() && !not_started => {}
                Some(message) if again && not_started => resent.push(message),
                _ => {
                    let name = one.name.to_string();
                    letters.push(Letter {
                        mesh,
                        slot,
                        rank: one.rank,
                        name,
                        maybe_executed: !not_started,
                    });
                }
            }
        }
        (resent, letters)
    }

    /// A message that had its credit cannot be sent. The messages that may go instead of it.
    pub(crate) fn give_back(&mut self, message: &Outgoing) -> Vec<Outgoing> {
        let mesh = message.mesh.get();
        let Some(windows) = self.windows.get_mut(&mesh) else {
            return Vec::new();
        };
        windows.give_back_all(message.runs.as_runs(), message.bytes);
        let slots = message.runs.as_runs().targets();
        slots.flat_map(|(slot, _)| self.take_free(mesh, slot)).collect()
    }

    /// Hold a message back until its actor has credit.
    pub(crate) fn wait(&mut self, slot: u32, message: Outgoing) {
        self.waiting
            .entry((message.mesh.get(), slot))
            .or_default()
            .push_back(message);
    }

    /// All messages that have not left, in no order between actors; they are gone from here.
    pub(crate) fn take_waiting(&mut self) -> Vec<Outgoing> {
        let mut all: Vec<Outgoing> = std::mem::take(&mut self.waiting)
            .into_values()
            .flatten()
            .collect();
        if let Some(far) = &mut self.far {
            all.extend(Stalled::messages(far.out.take_all()));
        }
        all.extend(Stalled::messages(std::mem::take(&mut self.stalled)));
        all
    }

    /// Take out the waiting messages of a call that was cancelled.
    pub(crate) fn forget_call(&mut self, call: u64) -> Vec<Outgoing> {
        let mut dropped = Vec::new();
        for queue in self.waiting.values_mut() {
            let mut at = 0;
            while at < queue.len() {
                if queue[at].call == call {
                    dropped.extend(queue.remove(at));
                } else {
                    at += 1;
                }
            }
        }
        if !dropped.is_empty() {
            self.waiting.retain(|_, queue| !queue.is_empty());
        }
        dropped
    }

    /// The same for those whose parts go ahead, or that wait behind such a one.
    pub(crate) fn forget_ahead(&mut self, call: u64) -> Vec<Outgoing> {
        let far = self.far.as_mut();
        far.map_or_else(Vec::new, |far| far.out.forget_call(call, &mut self.session))
    }

    /// Forget the credit of a mesh that has stopped.
    pub(crate) fn forget_mesh(&mut self, mesh: u64) {
        self.windows.remove(&mesh);
        self.awaited.retain(|(of, _), _| *of != mesh);
    }

    /// Whether messages wait for credit or for room.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty() || !self.stalled.is_empty() || self.has_ahead()
    }
}
