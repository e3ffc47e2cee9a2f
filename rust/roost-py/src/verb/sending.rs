//! One message to a mesh: its reply, its deadline, and what became of it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use roost_core::wire::ChainBuffer;

use super::{Mode, Packed, Verb};
use crate::hooks::Hooks;
use crate::message::Message;
use crate::node::{Action, Node, State};
use crate::peer::Sent;
use crate::pending::{Answers, Many, Pending, UNSENT};
use crate::targets::{Place, Targets};

/// Why nothing was sent.
enum Refusal {
    /// This process stopped the mesh.
    Stopped,
    /// Too much waits already.
    Full,
}

/// One message on its way to the procs of a mesh.
pub(super) struct Sending<'a> {
    pub(super) packed: &'a Packed,
    pub(super) deadline: i64,
    /// The endpoints that wait for it.
    pub(super) chain: Option<Arc<ChainBuffer>>,
    /// Its place among everything that this process sent.
    pub(super) order: u64,
    /// The call's number; 0 for a broadcast.
    pub(super) call: u64,
    /// Part of it has to wait here.
    waits: bool,
    /// Procs that are gone or down, with the ranks there.
    refused: Vec<(u64, Vec<u32>)>,
    pub(super) actions: Vec<Action>,
}

impl<'a> Sending<'a> {
    fn new(packed: &'a Packed, (deadline, chain): (i64, Option<Arc<ChainBuffer>>)) -> Self {
        Self {
            packed,
            deadline,
            chain,
            order: 0,
            call: 0,
            waits: false,
            refused: Vec::new(),
            actions: Vec::new(),
        }
    }

    pub(super) fn refuse(&mut self, place: &Place) {
        self.refused.push((place.proc.get(), place.ranks()));
    }

    pub(super) fn note(&mut self, sent: Sent) {
        self.waits |= sent == Sent::Waits;
    }
}

impl Verb {
    pub(super) fn send(
        &self,
        py: Python<'_>,
        node: &Node,
        hooks: &Hooks,
        sink: Option<Py<PyAny>>,
        packed: &Packed,
    ) -> PyResult<Py<PyAny>> {
        match packed {
            Packed::Same(payload) => node.check_size(py, payload, self.receivers())?,
            Packed::Each(all) => all
                .iter()
                .try_for_each(|payload| node.check_size(py, payload, self.receivers()))?,
        }
        let mut sending = Sending::new(packed, self.inherited(py, node, hooks)?);
        let sink = match (self.mode, sink) {
            (Mode::Broadcast, _) => None,
            (_, Some(sink)) => Some(sink),
            (_, None) => Some(self.make_sink(py, hooks)?),
        };
        // Its own statement: the lock is let go before anything of Python's is called.
        let sent = self.send_all(py, &mut node.lock(), sink.as_ref(), &mut sending);
        match sent {
            Ok(()) => {}
            // It raises.
            Err(Refusal::Stopped) => return hooks.stopped.call1(py, (&self.mesh,)),
            Err(Refusal::Full) => return Err(crate::queue_full()),
        }
        node.act(py, std::mem::take(&mut sending.actions))?;
        let (call, deadline) = (sending.call, sending.deadline);
        if let Some(sink) = &sink {
            hooks.set_call(py, sink, call)?;
        }
        if !sending.refused.is_empty() {
            let name = &*self.endpoint.name;
            hooks
                .refused
                .call1(py, (&sink, &self.mesh, name, sending.refused, call))?;
        }
        match sink {
            Some(sink) => {
                if deadline != 0 {
                    hooks.bounded.call1(py, (&sink, call, deadline))?;
                }
                Ok(sink)
            }
            None if sending.waits => hooks.room.call1(py, (&self.mesh,)),
            None => Ok(hooks.sent.clone_ref(py)),
        }
    }

    fn receivers(&self) -> impl Iterator<Item = u64> + '_ {
        self.targets.get().places.iter().map(|place| place.proc.get())
    }

    /// Put the message on its way to every proc of the mesh, unless it is refused as a whole.
    fn send_all(
        &self,
        py: Python<'_>,
        state: &mut State,
        sink: Option<&Py<PyAny>>,
        sending: &mut Sending<'_>,
    ) -> Result<(), Refusal> {
        let targets = self.targets.get();
        if !state.stopped.is_empty() && state.stopped.contains(&targets.mesh.get()) {
            return Err(Refusal::Stopped);
        }
        if !state.has_room(targets) {
            return Err(Refusal::Full);
        }
        sending.order = state.new_call();
        if let Some(sink) = sink {
            sending.call = sending.order;
            state.pending.insert(sending.call, self.pending(py, sink));
        }
        let is_held = targets.places.len() >= state.tree_procs_min && state.hold();
        for place in &targets.places {
            self.send_place(py, state, place, sending);
        }
        if is_held {
            state.flush_dirty(&mut sending.actions);
        }
        Ok(())
    }

    pub(super) fn make_sink(&self, py: Python<'_>, hooks: &Hooks) -> PyResult<Py<PyAny>> {
        if self.mode == Mode::CallOne {
            return hooks.new_reply(py);
        }
        let reply = hooks.new_gathered_reply(py)?;
        hooks.begin.call1(py, (&reply, &self.mesh))?;
        Ok(reply)
    }

    /// When this call ends unanswered, by its own time-out or the deadline of the message that is being handled; and the
    /// endpoints that wait for it.
    fn inherited(
        &self,
        py: Python<'_>,
        node: &Node,
        hooks: &Hooks,
    ) -> PyResult<(i64, Option<Arc<ChainBuffer>>)> {
        let (mut deadline, mut chain) = (0, None);
        if node.hosted.load(Ordering::Relaxed) > 0 {
            let handling = hooks.handling.call0(py)?;
            if let Ok(message) = handling.bind(py).cast_exact::<Message>() {
                let message = message.get();
                if !message.is_answered() {
                    deadline = message.mail.deadline;
                    if self.mode != Mode::Broadcast {
                        chain = message.chain_below(node.lock().own);
                    }
                }
            }
        }
        if let Some(timeout) = self.timeout_ns {
            let own = crate::monotonic_ns().saturating_add(timeout);
            deadline = if deadline == 0 { own } else { deadline.min(own) };
        }
        Ok((deadline, chain))
    }

    fn pending(&self, py: Python<'_>, sink: &Py<PyAny>) -> Pending {
        let targets = self.targets.get();
        let answers = match (self.mode, &targets.places[..]) {
            (Mode::CallOne, [place]) => Answers::One {
                proc: place.proc.get(),
                sequence: UNSENT,
            },
            _ => Answers::Many(Box::new(Many {
                targets: self.targets.clone_ref(py),
                sequences: vec![UNSENT; targets.places.len()],
                answered: vec![false; targets.size as usize],
                remaining: targets.size,
            })),
        };
        Pending {
            sink: sink.clone_ref(py),
            answers,
            again: Vec::new(),
        }
    }
}

impl State {
    fn new_call(&mut self) -> u64 {
        let call = self.next_call;
        self.next_call += 1;
        call
    }

    /// Whether every proc of the mesh could hold the message back, if it had to.
    fn has_room(&self, targets: &Targets) -> bool {
        targets.places.iter().all(|place| {
            let peer = self.peers.get(&place.proc.get());
            peer.is_none_or(|peer| peer.has_room(self.queue, targets.mesh.get(), place.runs.as_runs()))
        })
    }
}
