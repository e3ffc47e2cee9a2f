//! Values sent to ports, outside calls.

use pyo3::prelude::*;
use roost_core::session::SessionError;
use roost_core::wire::{Credit, CreditTarget, FrameHeader, PortClose, PortItem};

use super::{Action, Node, State};
use crate::payload::{Payload, from_serialize};
use crate::peer::{Stalled, Standing};

impl State {
    /// Put a value into the session, or behind those that wait for room there.
    pub(super) fn push_port_item(
        &mut self,
        py: Python<'_>,
        proc: u64,
        header: PortItem,
        payload: &Payload,
        actions: &mut Vec<Action>,
    ) {
        let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) else {
            return;
        };
        if link.stalled.is_empty() {
            match link.push(py, proc, &header, payload) {
                Ok(_) => return,
                Err(SessionError::Encode(_)) => {
                    let call_or_port = header.port;
                    actions.push(Action::Replace { proc, call_or_port });
                }
                Err(_) => {}
            }
        }
        link.hold_back(py, Stalled::PortItem(header, payload.clone_ref(py)));
    }
}

pub(super) fn send_port_item(
    node: &Node,
    py: Python<'_>,
    proc: u64,
    port: u64,
    flags: u8,
    dumped: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let payload = from_serialize(dumped)?;
    let header = PortItem { port, flags };
    let mut actions = Vec::new();
    {
        let mut state = node.lock();
        let standing = state.standing(proc, &mut actions);
        let peer = state.peer(proc);
        match peer.link.as_mut() {
            Some(_) => {
                state.push_port_item(py, proc, header, &payload, &mut actions);
                state.wrote(proc, &mut actions);
            }
            None if standing == Standing::Connecting => {
                peer.backlog.push_back(Stalled::PortItem(header, payload));
            }
            // Its receiver has ended, which the port's sender hears as its error.
            None => {}
        }
    }
    node.act(py, actions)
}

pub(super) fn port_taken(node: &Node, py: Python<'_>, proc: u64, port: u64, total: u64) -> PyResult<()> {
    let credit = Credit {
        target: CreditTarget::Port(port),
        messages: total,
        bytes: 0,
    };
    tell(node, py, proc, &credit)
}

pub(super) fn port_closed(node: &Node, py: Python<'_>, proc: u64, port: u64) -> PyResult<()> {
    let close = PortClose {
        port,
        reason: 0,
        flags: 0,
    };
    tell(node, py, proc, &close)
}

/// Say something small to a port's sender. One that is gone need not hear it.
fn tell(node: &Node, py: Python<'_>, proc: u64, header: &impl FrameHeader) -> PyResult<()> {
    let mut actions = Vec::new();
    {
        let mut state = node.lock();
        if let Some(link) = state.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) {
            // Small, and always taken.
            let _ = link.session.push(header, &[]);
            state.wrote(proc, &mut actions);
        }
    }
    node.act(py, actions)
}
