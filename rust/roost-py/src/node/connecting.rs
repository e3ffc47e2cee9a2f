//! Other procs: how they stand, their connections, and the epochs of membership.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use pyo3::prelude::*;

use super::{Action, Node, State};
use crate::peer::{Link, Peer, Standing};

impl State {
    /// The live connection to this very incarnation.
    pub(crate) fn link(&mut self, proc: u64, incarnation: u32) -> Option<&mut Link> {
        let peer = self.peers.get_mut(&proc)?;
        if peer.incarnation == incarnation {
            peer.link.as_mut().filter(|link| !link.closed)
        } else {
            None
        }
    }

    /// The record of another proc, made when it is new.
    pub(crate) fn peer(&mut self, proc: u64) -> &mut Peer {
        let queue = self.queue;
        self.peers.entry(proc).or_insert_with(|| Peer::new(proc, queue))
    }

    /// How a proc stands; a connection is asked for when there is none yet.
    pub(crate) fn standing(&mut self, proc: u64, actions: &mut Vec<Action>) -> Standing {
        let peer = self.peer(proc);
        if peer.standing == Standing::Unknown {
            peer.standing = Standing::Connecting;
            actions.push(Action::Connect(proc));
        }
        peer.standing
    }

    /// Whether there is a connection to a proc of this host other than this one.
    pub(crate) fn is_near(&self, proc: u64) -> bool {
        let link = self.peers.get(&proc).and_then(|peer| peer.link.as_ref());
        link.is_some_and(|link| link.far.is_none())
    }

    /// Whether there is a connection to a proc of another host.
    pub(crate) fn is_far(&self, proc: u64) -> bool {
        let link = self.peers.get(&proc).and_then(|peer| peer.link.as_ref());
        link.is_some_and(|link| link.far.is_some())
    }

    /// There is a connection to a proc's incarnation: what waited for it is sent.
    pub(super) fn connect(
        &mut self,
        py: Python<'_>,
        proc: u64,
        incarnation: u32,
        link: Link,
        actions: &mut Vec<Action>,
    ) {
        self.far_links += usize::from(link.far.is_some());
        let peer = self.peer(proc);
        peer.incarnation = incarnation;
        peer.standing = Standing::Live;
        let old = peer.link.replace(link);
        let backlog = std::mem::take(&mut peer.backlog);
        self.send_stalled(py, proc, backlog, actions);
        self.flush_one(proc, actions);
        if let Some(mut old) = old {
            actions.push(Action::Drop(waiting_payloads(&mut old)));
            actions.extend(old.take_fd().map(Action::Close));
        }
    }

    pub(crate) fn live_link(&mut self, proc: u64) -> Option<&mut Link> {
        let peer = self.peers.get_mut(&proc)?;
        peer.link.as_mut().filter(|_| peer.standing == Standing::Live)
    }
}

pub(super) fn adopt(
    node: &Node,
    py: Python<'_>,
    proc: u64,
    incarnation: u32,
    fd: i32,
    slot: Option<u32>,
) -> PyResult<()> {
    // SAFETY: Python hands over a descriptor that it owns and does not use again.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut actions = Vec::new();
    let raw = fd.as_raw_fd();
    {
        let mut state = node.lock();
        let link = Link::new(fd, &state.hello, slot, state.epoch);
        state.connect(py, proc, incarnation, link, &mut actions);
    }
    node.read_on(py, proc, raw)?;
    node.act(py, actions)
}

impl Node {
    /// The loop calls us when this socket of a proc can be read.
    pub(super) fn read_on(&self, py: Python<'_>, proc: u64, fd: i32) -> PyResult<()> {
        let hooks = self.hooks()?;
        if let Some(readable) = hooks.own(py, |own| &own.readable) {
            hooks
                .event_loop
                .call_method1(py, "add_reader", (fd, readable, proc))?;
        }
        Ok(())
    }
}

pub(super) fn revive(node: &Node, py: Python<'_>, proc: u64, comes: bool) -> PyResult<()> {
    let mut actions = Vec::new();
    {
        let mut state = node.lock();
        let peer = state.peer(proc);
        if peer.standing == Standing::Live {
            return Ok(());
        }
        if comes || !peer.backlog.is_empty() {
            peer.standing = Standing::Connecting;
        } else {
            peer.standing = Standing::Unknown;
        }
        if !comes && peer.standing == Standing::Connecting {
            actions.push(Action::Connect(proc));
        }
    }
    node.act(py, actions)
}

pub(super) fn set_epoch(node: &Node, py: Python<'_>, epoch: u32) -> PyResult<()> {
    let held: Vec<u64> = {
        let mut state = node.lock();
        state.epoch = epoch;
        let mut held = Vec::new();
        for peer in state.peers.values_mut() {
            if let Some(link) = &mut peer.link {
                link.session.set_epoch(epoch);
                held.push(peer.id);
            }
        }
        held
    };
    for proc in held {
        node.parse(py, proc)?;
    }
    Ok(())
}

pub(super) fn forget_owned(node: &Node, mesh: u64, procs: &[u64]) {
    let gone: Vec<Peer> = {
        let mut state = node.lock();
        state.stopped.remove(&mesh);
        for peer in state.peers.values_mut() {
            if let Some(link) = &mut peer.link {
                link.forget_mesh(mesh);
            }
        }
        procs.iter().filter_map(|proc| state.peers.remove(proc)).collect()
    };
    drop(gone);
}

pub(super) fn close(node: &Node, py: Python<'_>) -> PyResult<()> {
    let mut actions = Vec::new();
    let (peers, meshes, pending, work) = {
        let mut state = node.lock();
        let peers = std::mem::take(&mut state.peers);
        for peer in peers.values() {
            let fd = peer.link.as_ref().and_then(Link::raw_fd);
            actions.extend(fd.map(|fd| Action::Ended { fd }));
        }
        (
            peers,
            std::mem::take(&mut state.meshes),
            std::mem::take(&mut state.pending),
            std::mem::take(&mut state.work),
        )
    };
    let done = node.act(py, actions);
    drop((peers, meshes, pending, work));
    if let Ok(hooks) = node.hooks() {
        hooks.close();
    }
    done
}

/// What an old connection held, to be dropped where Python may run.
fn waiting_payloads(link: &mut Link) -> Vec<Py<PyAny>> {
    link.take_waiting()
        .into_iter()
        .map(|message| message.payload.pickle.into_any())
        .collect()
}
