//! Messages that wait at the sender: for a connection, for credit, or for room in the session's log.

use std::sync::Arc;

use pyo3::prelude::*;
use roost_core::id::MeshId;
use roost_core::wire::{Chain, ChainBuffer, MessageHeader, Run, RunsBuffer};

use crate::payload::Payload;

/// A message as it was captured when its verb returned.
pub(crate) struct Outgoing {
    /// Its place among everything that this process sent: what is sent again keeps it.
    pub(crate) order: u64,
    /// 0 for a broadcast.
    pub(crate) call: u64,
    pub(crate) mesh: MeshId,
    pub(crate) runs: RunsBuffer,
    pub(crate) name: Arc<str>,
    pub(crate) sizes: Arc<[u8]>,
    pub(crate) deadline: i64,
    pub(crate) flags: u8,
    pub(crate) payload: Payload,
    /// Actors of the mesh in the proc that it goes to.
    pub(crate) slots: u32,
    /// Bytes of the payload.
    pub(crate) bytes: u64,
    /// The endpoints that wait for it.
    pub(crate) chain: Option<Arc<ChainBuffer>>,
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

    /// Whether it is a user's broadcast: nobody waits for an answer, and somebody must hear when it is lost.
    pub(crate) fn is_broadcast(&self) -> bool {
        self.call == 0 && !self.is_system()
    }

    /// The same message for some of its ranks. None when none of them is among its own.
    pub(crate) fn for_ranks(&self, py: Python<'_>, ranks: &[u32]) -> Option<Self> {
        let mut runs = RunsBuffer::new();
        let mut is_empty = true;
        for (slot, rank) in self
            .runs
            .as_runs()
            .targets()
            .filter(|(_, rank)| ranks.contains(rank))
        {
            push_target(&mut runs, slot, rank);
            is_empty = false;
        }
        (!is_empty).then(|| Self {
            runs,
            ..self.clone_ref(py)
        })
    }

    /// The same message once more; bytes and names are shared.
    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            order: self.order,
            call: self.call,
            mesh: self.mesh,
            runs: self.runs.clone(),
            name: Arc::clone(&self.name),
            sizes: Arc::clone(&self.sizes),
            deadline: self.deadline,
            flags: self.flags,
            payload: self.payload.clone_ref(py),
            slots: self.slots,
            bytes: self.bytes,
            chain: self.chain.clone(),
            wait_while_down: self.wait_while_down,
        }
    }
}

/// Add one target of a list that was checked.
pub(crate) fn push_target(runs: &mut RunsBuffer, slot: u32, rank: u32) {
    let _ = runs.push(Run {
        slot,
        count: 1,
        slot_stride: 1,
        rank,
        rank_stride: 1,
    });
}
