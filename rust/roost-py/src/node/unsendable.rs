//! What is too large for a frame and cannot travel by shared memory either: whoever waits for it hears of that.
//!
//! A verb refuses what is known to be too large. Whether a receiver maps a segment is known only later.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use roost_core::wire::{Cancel, ReplyStatus};

use super::{Node, State};
use crate::outgoing::Outgoing;
use crate::payload::Payload;
use crate::peer::Stalled;

/// As `roost.channel` has it.
const PORT_ERROR: u8 = 1;

impl Node {
    /// A message that cannot be sent: its call fails, or it is a dead letter.
    pub(super) fn unsent(&self, py: Python<'_>, proc: u64, message: &Outgoing) -> PyResult<()> {
        let hooks = self.hooks()?;
        let size = message.payload.size(py);
        let targets: Vec<(u32, u32)> = message.runs.as_runs().targets().collect();
        if message.call == 0 {
            let slots: Vec<u32> = targets.into_iter().map(|(slot, _)| slot).collect();
            let (mesh, name) = (message.mesh.get(), &*message.name);
            return hooks.unsent.call1(py, (mesh, proc, slots, name, size)).map(drop);
        }
        let error = self.unsendable(py, "message", size)?;
        let mut actions = Vec::new();
        {
            let mut state = self.lock();
            for (_, rank) in targets {
                let error = error.clone_ref(py);
                state.reply(py, message.call, rank, ReplyStatus::Error, error, &mut actions);
            }
        }
        self.act(py, actions)
    }

    /// An answer or a value for a port that cannot be sent: the error takes its place before what waits behind it goes.
    pub(super) fn replace(&self, py: Python<'_>, proc: u64, call_or_port: u64) -> PyResult<()> {
        let (what, size) = match self.lock().first_stalled(proc, call_or_port) {
            Some(Stalled::Reply(_, payload)) => ("reply", payload.size(py)),
            Some(Stalled::PortItem(_, payload)) => ("value for a port", payload.size(py)),
            _ => return Ok(()),
        };
        let error = self.unsendable(py, what, size)?;
        let mut actions = Vec::new();
        let old = {
            let mut state = self.lock();
            let mut cancel = None;
            let old = match state.first_stalled(proc, call_or_port) {
                Some(Stalled::Reply(header, payload)) => {
                    // The generator of a stream would wait for a reader that takes no more.
                    cancel = (header.status == ReplyStatus::Item).then_some(Cancel {
                        call: header.call,
                        rank: header.rank,
                        flags: 0,
                    });
                    header.status = ReplyStatus::Error;
                    std::mem::replace(payload, error)
                }
                Some(Stalled::PortItem(header, payload)) => {
                    header.flags = PORT_ERROR;
                    std::mem::replace(payload, error)
                }
                _ => return Ok(()),
            };
            if let Some(cancel) = cancel {
                let incarnation = state.peer(proc).incarnation;
                state.take_cancel(py, (proc, incarnation), cancel, &mut actions);
            }
            state.retry_stalled(py, proc, &mut actions);
            old
        };
        drop(old);
        self.act(py, actions)
    }

    /// The error as the payload that travels in place of `what`.
    fn unsendable(&self, py: Python<'_>, what: &str, size: usize) -> PyResult<Payload> {
        let error = self.hooks()?.unsendable.call1(py, (what, size))?;
        Ok(Payload::plain(error.bind(py).cast::<PyBytes>()?.clone().unbind()))
    }
}

impl State {
    /// The answer or the value for a port that waits first, when it is this one.
    fn first_stalled(&mut self, proc: u64, call_or_port: u64) -> Option<&mut Stalled> {
        let link = self.peers.get_mut(&proc)?.link.as_mut()?;
        link.stalled.front_mut().filter(|first| match first {
            Stalled::Reply(header, _) => header.call == call_or_port,
            Stalled::PortItem(header, _) => header.port == call_or_port,
            Stalled::Message(..) => false,
        })
    }
}
