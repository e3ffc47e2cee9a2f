//! What the death of a proc leaves: calls to end or to send again, broadcasts to return.

use std::collections::HashMap;

use pyo3::prelude::*;

use super::{Action, Node, State};
use crate::outgoing::Outgoing;
use crate::peer::{Link, Stalled, Standing};
use crate::pending::{Answers, Letter, Orphans, UNSENT};

/// What `lost` gives to Python.
pub(crate) type Lost = (
    Vec<(Py<PyAny>, Vec<u32>, bool)>,
    Vec<(u64, u32, u32, String, bool)>,
);

/// The end of a proc's incarnation.
pub(crate) struct Death {
    pub(crate) proc: u64,
    pub(crate) incarnation: u32,
    /// The last message that it had started, where that is known.
    pub(crate) started: Option<u64>,
    /// Messages that wait for the next incarnation stay.
    pub(crate) again: bool,
    /// There is no next incarnation.
    pub(crate) gone: bool,
}

impl Death {
    /// Whether the message that left under this number surely had no effect.
    fn spares(&self, sequence: u64) -> bool {
        sequence == UNSENT || self.started.is_some_and(|started| sequence > started)
    }
}

/// What a death leaves.
#[derive(Default)]
pub(crate) struct Losses {
    orphans: Vec<Orphans>,
    letters: Vec<Letter>,
    /// What the next incarnation is sent.
    kept: Vec<Outgoing>,
}

impl Node {
    /// Read everything that this proc's incarnation sent before it ended, then give up on what it did not answer.
    ///
    /// What it returns is said at `Node::lost`.
    pub(crate) fn lose(&self, py: Python<'_>, death: &Death) -> PyResult<Lost> {
        self.drain(py, death.proc, death.incarnation)?;
        let mut actions = Vec::new();
        let lost = self.lock().give_up(py, death, &mut actions);
        self.act(py, actions)?;
        Ok((
            lost.orphans
                .into_iter()
                .map(|one| (one.sink, one.ranks, one.maybe_executed))
                .collect(),
            lost.letters
                .into_iter()
                .map(|one| (one.mesh, one.slot, one.rank, one.name, one.maybe_executed))
                .collect(),
        ))
    }

    /// Whether something that a dead proc of another host had said, which ended with this frame, may still come: its connection
    /// stands, and news of its end took another.
    pub(crate) fn may_hear(&self, py: Python<'_>, proc: u64, incarnation: u32, said: u64) -> PyResult<bool> {
        let has_ended = self.drain(py, proc, incarnation)?;
        let mut state = self.lock();
        let link = state.link(proc, incarnation);
        let is_awaited =
            |link: &mut Link| link.far.is_some() && link.raw_fd().is_some() && link.session.received() < said;
        Ok(!has_ended && link.is_some_and(is_awaited))
    }

    /// Read what a dead proc had sent, and whether that was the end.
    fn drain(&self, py: Python<'_>, proc: u64, incarnation: u32) -> PyResult<bool> {
        loop {
            let read = {
                let mut state = self.lock();
                let Some(link) = state.link(proc, incarnation) else {
                    return Ok(true);
                };
                link.read()
            };
            match read {
                None => return Ok(false),
                Some(0) => return Ok(true),
                Some(_) => self.parse(py, proc)?,
            }
        }
    }
}

impl State {
    fn give_up(&mut self, py: Python<'_>, death: &Death, actions: &mut Vec<Action>) -> Losses {
        let mut losses = Losses::default();
        if death.gone && !self.peers.contains_key(&death.proc) {
            // Whoever writes to it asks for a connection, and is told.
            return losses;
        }
        for message in self.take_unsent(death, &mut losses, actions) {
            if death.again && message.wait_while_down {
                losses.kept.push(message);
                continue;
            }
            if message.is_broadcast() {
                losses
                    .letters
                    .extend(message.runs.as_runs().targets().map(|(slot, rank)| Letter {
                        mesh: message.mesh.get(),
                        slot,
                        rank,
                        name: message.name.to_string(),
                        maybe_executed: false,
                    }));
            }
            actions.push(Action::Drop(vec![message.payload.pickle.into_any()]));
        }
        self.orphan(py, death, &mut losses, actions);
        self.keep_for_next(death.proc, std::mem::take(&mut losses.kept), actions);
        losses
    }

    /// Take the connection and all that waits for it out of a proc's record. What waits; broadcasts that had left are losses.
    fn take_unsent(
        &mut self,
        death: &Death,
        losses: &mut Losses,
        actions: &mut Vec<Action>,
    ) -> Vec<Outgoing> {
        // One that is down is remembered also where nothing was sent to it yet: a message must fail and not wait for it.
        let queue = self.queue;
        let peer = self.peer(death.proc);
        peer.standing = if death.gone {
            Standing::Gone
        } else {
            Standing::Down
        };
        let link = if peer.incarnation == death.incarnation {
            peer.link.take()
        } else {
            None
        };
        let mut waiting: Vec<Outgoing> = Stalled::messages(std::mem::take(&mut peer.backlog)).collect();
        peer.bound = roost_core::credit::QueueBound::new(queue);
        if let Some(mut link) = link {
            peer.given_up = link.far.as_ref().map(|far| far.session);
            (losses.kept, losses.letters) = link.take_awaited(death.started, death.again);
            waiting.extend(link.take_waiting());
            actions.extend(link.take_fd().map(Action::Close));
        }
        waiting
    }

    /// Have messages wait for the next incarnation, in the order in which they were sent.
    fn keep_for_next(&mut self, proc: u64, mut kept: Vec<Outgoing>, actions: &mut Vec<Action>) {
        kept.sort_by_key(|message| message.order);
        let Some(peer) = self.peers.get_mut(&proc) else {
            return;
        };
        for message in kept {
            peer.bound.admit(message.bytes);
            peer.backlog.push_back(Stalled::Message(message, false));
        }
        self.made_room(actions);
    }

    /// Find the calls that the dead proc leaves open: those surely not started may be sent again, the others end.
    fn orphan(&mut self, py: Python<'_>, death: &Death, losses: &mut Losses, actions: &mut Vec<Action>) {
        let waiting = waiting_ranks(&losses.kept);
        let mut ended = Vec::new();
        for (&call, pending) in &mut self.pending {
            let Some((mut ranks, sequence)) = pending.on(death.proc) else {
                continue;
            };
            let is_one = matches!(pending.answers, Answers::One { .. });
            if let Some(waiting) = waiting.get(&call) {
                ranks.retain(|rank| !waiting.contains(rank));
                if is_one || ranks.is_empty() {
                    continue;
                }
            }
            let not_started = death.spares(sequence);
            if death.again && not_started && pending.again.iter().any(|(to, _)| *to == death.proc) {
                let to = pending.again.iter().filter(|(to, _)| *to == death.proc);
                losses.kept.extend(to.filter_map(|(_, message)| {
                    if is_one {
                        Some(message.clone_ref(py))
                    } else {
                        message.for_ranks(py, &ranks)
                    }
                }));
                pending.unsent(death.proc);
                continue;
            }
            let mut last = is_one;
            for &rank in &ranks {
                last = pending.answered(rank);
            }
            losses.orphans.push(Orphans {
                sink: pending.sink.clone_ref(py),
                ranks,
                maybe_executed: !not_started,
            });
            if last {
                ended.push(call);
            }
        }
        for call in ended {
            if let Some(pending) = self.pending.remove(&call) {
                actions.push(Action::Drop(pending.into_python()));
            }
        }
    }
}

/// The ranks by call of messages that wait for the next incarnation already.
fn waiting_ranks(kept: &[Outgoing]) -> HashMap<u64, Vec<u32>> {
    let mut waiting: HashMap<u64, Vec<u32>> = HashMap::new();
    for message in kept.iter().filter(|message| message.call != 0) {
        waiting
            .entry(message.call)
            .or_default()
            .extend(message.runs.as_runs().targets().map(|(_, rank)| rank));
    }
    waiting
}
