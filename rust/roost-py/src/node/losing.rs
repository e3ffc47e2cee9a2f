//! What the death of a proc leaves: calls to end or to send again, broadcasts to return.

use std::collections::HashMap;

use pyo3::prelude::*;

use super::{Action, Node, State};
use crate::outgoing::Outgoing;
use crate::peer::{Stalled, Standing};
use crate::pending::{Answers, Letter, Orphans, UNSENT};

/// What `lost` gives to Python.
pub(crate) type Lost = (
    Vec<(Py<PyAny>, Vec<u32>, bool)>,
    Vec<(u64, u32, u32, String, bool)>,
);

/// What a death leaves.
pub(crate) struct Losses {
    orphans: Vec<Orphans>,
    letters: Vec<Letter>,
}

impl Node {
    /// Read everything that this proc's incarnation sent before it ended, then give up on what it did not answer.
    ///
    /// What it returns is said at `Node::lost`.
    pub(crate) fn lose(
        &self,
        py: Python<'_>,
        proc: u64,
        incarnation: u32,
        started: i64,
        again: bool,
        gone: bool,
    ) -> PyResult<Lost> {
        self.drain(py, proc, incarnation)?;
        let mut actions = Vec::new();
        let lost = {
            let mut state = self.lock();
            state.give_up(py, proc, incarnation, started, again, gone, &mut actions)
        };
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

    /// Read to the end what a dead proc had sent.
    fn drain(&self, py: Python<'_>, proc: u64, incarnation: u32) -> PyResult<()> {
        loop {
            let read = {
                let mut state = self.lock();
                let Some(link) = state.link(proc, incarnation) else {
                    return Ok(());
                };
                link.read()
            };
            match read {
                None | Some(0) => return Ok(()),
                Some(_) => self.parse(py, proc)?,
            }
        }
    }
}

impl State {
    fn give_up(
        &mut self,
        py: Python<'_>,
        proc: u64,
        incarnation: u32,
        started: i64,
        again: bool,
        gone: bool,
        actions: &mut Vec<Action>,
    ) -> Losses {
        let mut losses = Losses {
            orphans: Vec::new(),
            letters: Vec::new(),
        };
        let started = u64::try_from(started).ok();
        if gone && !self.peers.contains_key(&proc) {
            // Whoever writes to it asks for a connection, and is told.
            return losses;
        }
        // One that is down is remembered also where nothing was sent to it yet: a message must fail and not wait for it.
        let queue = self.queue;
        let peer = self.peer(proc);
        peer.standing = if gone { Standing::Gone } else { Standing::Down };
        let link = if peer.incarnation == incarnation {
            peer.link.take()
        } else {
            None
        };
        let mut waiting: Vec<Outgoing> = Stalled::messages(std::mem::take(&mut peer.backlog)).collect();
        peer.bound = roost_core::credit::QueueBound::new(queue);
        let mut kept = Vec::new();
        if let Some(mut link) = link {
            (kept, losses.letters) = link.take_awaited(started, again);
            waiting.extend(link.take_waiting());
            actions.push(Action::Close(link.fd));
        }
        for message in waiting {
            if again && message.wait_while_down {
                kept.push(message);
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
        self.orphan(py, proc, started, again, &mut kept, &mut losses, actions);
        kept.sort_by_key(|message| message.order);
        let Some(peer) = self.peers.get_mut(&proc) else {
            return losses;
        };
        for message in kept {
            peer.bound.admit(message.bytes);
            peer.backlog.push_back(Stalled::Message(message, false));
        }
        self.made_room(actions);
        losses
    }

    /// Find the calls that the dead proc leaves open: those surely not started may be sent again, the others end.
    fn orphan(
        &mut self,
        py: Python<'_>,
        proc: u64,
        started: Option<u64>,
        again: bool,
        kept: &mut Vec<Outgoing>,
        losses: &mut Losses,
        actions: &mut Vec<Action>,
    ) {
        let mut waiting: HashMap<u64, Vec<u32>> = HashMap::new();
        for message in kept.iter().filter(|message| message.call != 0) {
            waiting
                .entry(message.call)
                .or_default()
                .extend(message.runs.as_runs().targets().map(|(_, rank)| rank));
        }
        let mut ended = Vec::new();
        for (&call, pending) in &mut self.pending {
            let Some((mut ranks, sequence)) = pending.on(proc) else {
                continue;
            };
            let is_one = matches!(pending.answers, Answers::One { .. });
            if let Some(waiting) = waiting.get(&call) {
                ranks.retain(|rank| !waiting.contains(rank));
                if is_one || ranks.is_empty() {
                    continue;
                }
            }
            let not_started = sequence == UNSENT || started.is_some_and(|started| sequence > started);
            if again && not_started && pending.again.iter().any(|(to, _)| *to == proc) {
                let to = pending.again.iter().filter(|(to, _)| *to == proc);
                kept.extend(to.filter_map(|(_, message)| {
                    if is_one {
                        Some(message.clone_ref(py))
                    } else {
                        message.for_ranks(py, &ranks)
                    }
                }));
                pending.unsent(proc);
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
