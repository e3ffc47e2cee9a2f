//! Calls that are given up, here and at their actors.

use pyo3::prelude::*;
use roost_core::wire::Cancel;

use super::{Action, Node, State, answering};
use crate::cell::Cancelled;
use crate::outgoing::Outgoing;
use crate::peer::Stalled;

impl Node {
    /// Give up on a call: its message is taken back or its endpoint cancelled.
    pub(crate) fn cancel_call(&self, py: Python<'_>, call: u64) -> PyResult<()> {
        let mut actions = Vec::new();
        {
            let mut state = self.lock();
            let Some(pending) = state.pending.remove(&call) else {
                return Ok(());
            };
            for proc in pending.procs() {
                state.cancel_at(py, proc, (call, Cancel::ALL_RANKS), &mut actions);
            }
            actions.push(Action::Drop(pending.into_python()));
        }
        self.act(py, actions)
    }

    /// Take one rank of a call back, which has its answer here.
    pub(crate) fn take_rank_back(&self, py: Python<'_>, call: u64, rank: u32) -> PyResult<()> {
        let Some(proc) = answering::proc_of(self, call, rank) else {
            return Ok(());
        };
        let mut actions = Vec::new();
        self.lock().cancel_at(py, proc, (call, rank), &mut actions);
        self.act(py, actions)?;
        answering::settle(self, py, call, vec![rank])
    }
}

impl State {
    /// This life of a proc gives up on a call; each of its lives numbers its calls from the start.
    pub(super) fn take_cancel(
        &mut self,
        py: Python<'_>,
        sender: (u64, u32),
        cancel: Cancel,
        actions: &mut Vec<Action>,
    ) {
        for early in self.early.values_mut() {
            early.cancel(sender, cancel);
        }
        for hosted in self.meshes.values() {
            for cell in &hosted.cells {
                match cell.get().cancel(py, sender, cancel.call, cancel.rank) {
                    Cancelled::Nothing => {}
                    Cancelled::Queued(mail, credit) => {
                        if let Some(amount) = credit {
                            let actor = (cell.get().mesh, cell.get().slot);
                            actions.push(Action::Grant {
                                to: (mail.sender, mail.incarnation),
                                actor,
                                amount,
                            });
                        }
                        actions.push(Action::Drop(vec![mail.payload.pickle.into_any()]));
                    }
                    Cancelled::Running { runner, message } => {
                        actions.push(Action::Cancelled { runner, message });
                    }
                }
            }
        }
    }

    /// Take a call back from one proc.
    fn cancel_at(&mut self, py: Python<'_>, proc: u64, (call, rank): (u64, u32), actions: &mut Vec<Action>) {
        let cancel = Cancel { call, rank, flags: 0 };
        if proc == self.own {
            let incarnation = self.hello.incarnation.0;
            self.take_cancel(py, (proc, incarnation), cancel, actions);
            return;
        }
        let Some(peer) = self.peers.get_mut(&proc) else {
            return;
        };
        let (mut dropped, mut free): (Vec<Outgoing>, Vec<Outgoing>) = Default::default();
        // Messages that wait here may be for several ranks: they are taken back whole or not at all.
        let all = rank == Cancel::ALL_RANKS;
        for frame in std::mem::take(&mut peer.backlog) {
            match frame {
                Stalled::Message(message, _) if all && message.call == call => dropped.push(message),
                other => peer.backlog.push_back(other),
            }
        }
        if let Some(link) = &mut peer.link {
            if all {
                dropped.extend(link.forget_call(call));
                for message in link.forget_ahead(call) {
                    free.extend(link.give_back(&message));
                    actions.push(Action::Drop(vec![message.payload.pickle.into_any()]));
                }
            }
            if !link.closed {
                // Small, and always taken.
                let _ = link.session.push(&cancel, &[]);
            }
        }
        for message in dropped {
            peer.bound.leave(message.bytes);
            actions.push(Action::Drop(vec![message.payload.pickle.into_any()]));
        }
        for message in free {
            self.send_credited(py, proc, message, actions);
        }
        self.wrote(proc, actions);
    }
}
