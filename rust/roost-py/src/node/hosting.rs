//! The actors of this process, and messages for meshes that are still on their way.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use roost_core::wire::Cancel;

use super::{Action, Node, State};
use crate::cell::{Cell, Cells, Put};
use crate::endpoints::Endpoints;
use crate::message::Mail;
use crate::payload::Payload;
use crate::suspect::Suspect;

/// The actors of one mesh in this process.
pub(crate) struct Hosted {
    pub(crate) cells: Cells,
    pub(crate) endpoints: Arc<Endpoints>,
    /// The endpoints are not those of the class: a test's faults stand before them.
    replaced: bool,
}

/// What has come for a mesh before the mesh has.
#[derive(Default)]
pub(crate) struct Early {
    mails: Vec<(u32, Mail)>,
    /// By who cancels: calls among these messages that were given up meanwhile.
    cancels: Vec<((u64, u32), Cancel)>,
}

impl Early {
    /// Note that a call was given up, where it is one of these.
    pub(super) fn cancel(&mut self, sender: (u64, u32), cancel: Cancel) {
        let is_its = |mail: &Mail| (mail.sender, mail.incarnation) == sender && mail.call == cancel.call;
        if self.mails.iter().any(|(_, mail)| is_its(mail)) {
            self.cancels.push((sender, cancel));
        }
    }
}

impl Node {
    /// The table of a class's endpoints; one for all meshes of the class.
    pub(crate) fn endpoints_of(&self, endpoints: &Bound<'_, PyDict>) -> PyResult<Arc<Endpoints>> {
        let key = endpoints.as_ptr() as usize;
        if let Some((_, table)) = self.lock().tables.get(&key) {
            return Ok(Arc::clone(table));
        }
        let table = Arc::new(Endpoints::from_dict(endpoints)?);
        // The dict is kept, so that its address stays its own.
        self.lock()
            .tables
            .insert(key, (endpoints.clone().unbind(), Arc::clone(&table)));
        Ok(table)
    }
}

impl State {
    /// Meshes are about to be made: what comes with that in one read is not early, it waits for them.
    pub(super) fn expect_meshes(&mut self, spawns: &[u8]) {
        for mesh in crate::spawns::meshes(spawns) {
            if !self.meshes.contains_key(&mesh) {
                self.early.entry(mesh).or_default();
            }
        }
    }

    /// Put a message into a mailbox of this process, or keep it for a mesh that is on its way.
    pub(crate) fn put(
        &mut self,
        py: Python<'_>,
        mesh: u64,
        slot: u32,
        mut mail: Mail,
        actions: &mut Vec<Action>,
    ) {
        let Some(hosted) = self.meshes.get(&mesh) else {
            let early = self.early.entry(mesh).or_insert_with(|| {
                let payload = Payload::plain(PyBytes::new(py, b"").unbind());
                actions.push(Action::System {
                    name: ".early".to_owned(),
                    mesh,
                    sender: mail.sender,
                    ranks: Vec::new(),
                    payload,
                });
                Early::default()
            });
            early.mails.push((slot, mail));
            return;
        };
        let Some(cell) = hosted.cells.get(slot as usize) else {
            let reason = PyBytes::new(py, b"").unbind();
            actions.push(Action::Bounce { mail, reason });
            return;
        };
        if let (None, Some(name)) = (&mail.endpoint, &mail.name) {
            // It came before the mesh did.
            mail.endpoint = hosted.endpoints.get(name);
        }
        if hosted.replaced
            && let Some(endpoint) = &mail.endpoint
        {
            // Sent from here, it brought the endpoint of the class.
            mail.endpoint = hosted.endpoints.get(&endpoint.name);
        }
        if let Some(suspect) = mail
            .chain
            .as_deref()
            .and_then(|chain| Suspect::of(py, self.own, cell, &mail, chain))
        {
            actions.push(Action::Suspect(Box::new(suspect)));
        }
        match cell.get().put(py, mail) {
            Put::Queued => {}
            Put::Ready => {
                let cell = cell.clone_ref(py);
                self.work.queue(cell, actions);
            }
            Put::Ended(mail, reason, credit) => {
                if let Some(amount) = credit {
                    actions.push(Action::Grant {
                        to: (mail.sender, mail.incarnation),
                        actor: (mesh, slot),
                        amount,
                    });
                }
                actions.push(Action::Bounce { mail, reason });
            }
        }
    }
}

pub(super) fn host<'py>(
    slf: &Bound<'py, Node>,
    mesh: u64,
    count: u32,
    endpoints: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyTuple>> {
    let py = slf.py();
    let endpoints = slf.get().endpoints_of(endpoints)?;
    let mut cells = Cells::with_capacity(count as usize);
    for slot in 0..count {
        cells.push(Py::new(py, Cell::new(slf.clone().unbind(), mesh, slot))?);
    }
    let made = PyTuple::new(py, &cells)?;
    let node = slf.get();
    node.hosted.fetch_add(cells.len(), Ordering::Relaxed);
    let mut actions = Vec::new();
    {
        let mut state = node.lock();
        if let Some(old) = state.meshes.insert(
            mesh,
            Hosted {
                cells,
                endpoints,
                replaced: false,
            },
        ) {
            actions.push(Action::Drop(old.cells.into_iter().map(Py::into_any).collect()));
        }
        let early = state.early.remove(&mesh).unwrap_or_default();
        for (slot, mail) in early.mails {
            state.put(py, mesh, slot, mail, &mut actions);
        }
        // In their mailboxes now, from where they are taken back as any other.
        for (sender, cancel) in early.cancels {
            state.take_cancel(py, sender, cancel, &mut actions);
        }
    }
    node.act(py, actions)?;
    Ok(made)
}

pub(super) fn set_endpoints(
    node: &Node,
    py: Python<'_>,
    mesh: u64,
    endpoints: &Bound<'_, PyDict>,
) -> PyResult<bool> {
    let table = Arc::new(Endpoints::from_dict(endpoints)?);
    let old = node.lock().meshes.get_mut(&mesh).map(|hosted| {
        hosted.replaced = true;
        std::mem::replace(&mut hosted.endpoints, table)
    });
    let _ = py;
    Ok(old.is_some())
}

pub(super) fn forget(node: &Node, py: Python<'_>, mesh: u64) {
    let gone = node.lock().meshes.remove(&mesh);
    if let Some(hosted) = gone {
        node.hosted.fetch_sub(hosted.cells.len(), Ordering::Relaxed);
        let _ = py;
        drop(hosted);
    }
}

pub(super) fn give_up_early(
    node: &Node,
    py: Python<'_>,
    mesh: u64,
    reason: &Bound<'_, PyBytes>,
) -> PyResult<()> {
    let early = node.lock().early.remove(&mesh).unwrap_or_default();
    for (_, mail) in early.mails {
        node.bounce(py, &mail, reason)?;
    }
    Ok(())
}
