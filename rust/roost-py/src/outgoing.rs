//! Messages that wait at the sender: for a connection, for credit, or for room in the session's log.

use std::sync::Arc;

use pyo3::prelude::*;
use roost_core::id::MeshId;
use roost_core::wire::{Chain, ChainBuffer, MessageHeader, RunsBuffer};

use crate::payload::Payload;

/// A message as it was captured when its verb returned.
pub(crate) struct Outgoing {
    pub(crate) call: u64,
    pub(crate) mesh: MeshId,
    pub(crate) runs: RunsBuffer,
    pub(crate) name: Arc<str>,
    pub(crate) sizes: Arc<[u8]>,
    pub(crate) deadline: i64,
    pub(crate) flags: u8,
    pub(crate) chain: Option<Arc<ChainBuffer>>,
    pub(crate) payload: Payload,
    /// Actors of the mesh in the proc that it goes to.
    pub(crate) slots: u32,
    /// Bytes of the payload.
    pub(crate) bytes: u64,
    /// Whether it is sent to the next incarnation when this one did not get it.
    pub(crate) wait_while_down: bool,
}

impl Outgoing {
    /// The frame's header.
    pub(crate) fn header(&self) -> MessageHeader<'_> {
        MessageHeader {
            call: self.call,
            mesh: self.mesh,
            deadline_ns: self.deadline,
            flags: self.flags,
            runs: self.runs.as_runs(),
            endpoint: &self.name,
            sizes: &self.sizes,
            chain: self.chain.as_ref().map_or(Chain::EMPTY, |chain| chain.as_chain()),
        }
    }

    /// Whether it is for Roost itself, not for an actor.
    pub(crate) fn is_system(&self) -> bool {
        self.name.starts_with('.')
    }

    /// The same message once more; bytes and names are shared.
    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            call: self.call,
            mesh: self.mesh,
            runs: self.runs.clone(),
            name: Arc::clone(&self.name),
            sizes: Arc::clone(&self.sizes),
            deadline: self.deadline,
            flags: self.flags,
            chain: self.chain.clone(),
            payload: self.payload.clone_ref(py),
            slots: self.slots,
            bytes: self.bytes,
            wait_while_down: self.wait_while_down,
        }
    }
}
