//! A message to an actor that one of the endpoints waits for it: the first sign of a deadlock. Python looks into it.

use pyo3::prelude::*;
use roost_core::wire::ChainBuffer;

use crate::cell::{Cell, Others};
use crate::message::{Mail, Message};

/// (proc, mesh, slot, the message's number there) of an endpoint that waits.
type Link = (u64, u64, u32, u64);

/// What Python's hook is called with.
type Arguments = (
    Py<Message>,
    Others,
    Option<Py<PyAny>>,
    String,
    (u64, u64, u32),
    Vec<Link>,
);

/// A message whose chain leads through the very actor that it goes to.
pub(crate) struct Suspect {
    /// The message that the actor handles, and that waits for this one.
    running: Py<Message>,
    /// The endpoints of the others that run, and of those that wait before it; None for an unknown one.
    others: Others,
    endpoint: Option<Py<PyAny>>,
    name: String,
    /// Its sender, the call and the rank.
    call: (u64, u64, u32),
    /// The endpoints that wait, from the one of this actor on.
    chain: Vec<Link>,
}

impl Suspect {
    /// None when the chain does not lead through this actor.
    pub(crate) fn of(
        py: Python<'_>,
        own: u64,
        cell: &Py<Cell>,
        mail: &Mail,
        chain: &ChainBuffer,
    ) -> Option<Self> {
        let here = cell.get();
        let chain: Vec<Link> = chain
            .as_chain()
            .iter()
            .map(|link| (link.proc.get(), link.mesh.get(), link.slot, link.call))
            .skip_while(|&(proc, mesh, slot, _)| (proc, mesh, slot) != (own, here.mesh, here.slot))
            .collect();
        let &(_, _, _, number) = chain.first()?;
        let (running, others) = here.before(py, number)?;
        let info = |mail: &Mail| mail.endpoint.as_ref().map(|endpoint| endpoint.info.clone_ref(py));
        Some(Self {
            running,
            others,
            endpoint: info(mail),
            name: mail.name_text(),
            call: (mail.sender, mail.call, mail.rank),
            chain,
        })
    }

    pub(crate) fn into_python(self) -> Arguments {
        (
            self.running,
            self.others,
            self.endpoint,
            self.name,
            self.call,
            self.chain,
        )
    }
}
