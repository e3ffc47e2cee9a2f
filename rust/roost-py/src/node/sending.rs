//! Captured messages on their way out: into the session, or held back until there is credit, room or a connection.

use std::collections::VecDeque;
use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use roost_core::session::SessionError;

use super::{Action, Node, State};
use crate::outgoing::Outgoing;
use crate::payload::Payload;
use crate::peer::{Link, Sent, Stalled, Standing, Wrote};
use crate::targets::mesh_id;

impl State {
    /// A frame was put into this proc's session: it is written now, or with the others at the end of this turn.
    pub(crate) fn wrote(&mut self, proc: u64, actions: &mut Vec<Action>) {
        let (turn, holds) = (self.turn, self.holds);
        let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) else {
            return;
        };
        actions.extend(link.offers.drain(..).map(|offer| Action::Offer { proc, offer }));
        let wrote = if holds && link.far.is_some() {
            link.wrote_with_others(turn)
        } else {
            link.wrote(turn)
        };
        match wrote {
            Wrote::Due => self.flush_one(proc, actions),
            Wrote::Waits => {
                self.dirty.push(proc);
                self.schedule(actions);
            }
            Wrote::Known => {}
        }
    }

    /// Have what waits written at the end of this turn.
    pub(super) fn schedule(&mut self, actions: &mut Vec<Action>) {
        if !std::mem::replace(&mut self.flush_scheduled, true) {
            actions.push(Action::Schedule);
        }
    }

    /// Write what waits.
    pub(crate) fn flush_dirty(&mut self, actions: &mut Vec<Action>) {
        self.holds = false;
        let dirty = std::mem::take(&mut self.dirty);
        for proc in &dirty {
            if let Some(link) = self.peers.get_mut(proc).and_then(|peer| peer.link.as_mut()) {
                link.end_turn();
            }
        }
        self.flush_all(dirty, actions);
    }

    /// Write what the socket takes.
    pub(crate) fn flush_one(&mut self, proc: u64, actions: &mut Vec<Action>) {
        let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) else {
            return;
        };
        if link.far.is_some() {
            return self.flush_far(proc, actions);
        }
        let full = link.flush();
        watch_room(link, proc, full, actions);
    }

    /// Write what the connection to another host takes, or answer by the way that the last frames came.
    fn flush_far(&mut self, proc: u64, actions: &mut Vec<Action>) {
        if self.flush_back(proc, actions) {
            return;
        }
        let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) else {
            return;
        };
        let full = link.flush();
        if link.wakes() {
            actions.push(Action::Redial(proc));
        }
        let full = self.flush_ahead(proc, full, actions);
        self.watch_far(actions);
        if let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) {
            watch_room(link, proc, full, actions);
        }
    }

    /// Somebody waits no longer: whoever waits for room looks again.
    pub(crate) fn made_room(&mut self, actions: &mut Vec<Action>) {
        actions.extend(self.room.drain(..).map(Action::Wake));
    }

    /// Put a captured message on its way. `credited` says that its credit was taken already. It is never refused: whether
    /// there is room was asked before, and what came this far must not get lost.
    pub(crate) fn send(
        &mut self,
        py: Python<'_>,
        proc: u64,
        message: Outgoing,
        credited: bool,
        actions: &mut Vec<Action>,
    ) -> Sent {
        let Some(peer) = self.peers.get_mut(&proc) else {
            return Sent::Waits;
        };
        let Some(link) = peer.link.as_mut().filter(|_| peer.standing == Standing::Live) else {
            peer.bound.admit(message.bytes);
            // Whatever credit it had was that of a connection which is gone.
            peer.backlog.push_back(Stalled::Message(message, false));
            return Sent::Waits;
        };
        // Roost's own messages enter no mailbox.
        let credited = credited || message.is_system();
        if !link.stalled.is_empty() {
            peer.bound.admit(message.bytes);
            link.stalled.push_back(Stalled::Message(message, credited));
            return Sent::Waits;
        }
        if credited
            || link.take_credit(
                message.mesh.get(),
                message.slots,
                message.runs.as_runs(),
                message.bytes,
            )
        {
            let sent = self.push(py, proc, message, actions);
            self.wrote(proc, actions);
            return sent;
        }
        if let Some((slot, _)) = message.runs.as_runs().one() {
            peer.bound.admit(message.bytes);
            link.wait(slot, message);
            return Sent::Waits;
        }
        self.send_each(py, proc, message, actions)
    }

    /// Send one copy an actor, so that a slow one holds up nobody else.
    fn send_each(&mut self, py: Python<'_>, proc: u64, message: Outgoing, actions: &mut Vec<Action>) -> Sent {
        let targets: Vec<(u32, u32)> = message.runs.as_runs().targets().collect();
        for (slot, rank) in targets {
            let Some(one) = message.for_ranks(py, &[rank]) else {
                continue;
            };
            let Some(peer) = self.peers.get_mut(&proc) else {
                continue;
            };
            let Some(link) = peer.link.as_mut() else { continue };
            if link.take_credit(one.mesh.get(), one.slots, one.runs.as_runs(), one.bytes) {
                self.push(py, proc, one, actions);
            } else {
                peer.bound.admit(one.bytes);
                link.wait(slot, one);
            }
        }
        actions.push(Action::Drop(vec![message.payload.pickle.into_any()]));
        self.wrote(proc, actions);
        Sent::Waits
    }

    /// Put a message that has its credit into the session, or behind those that wait for room there.
    fn push(&mut self, py: Python<'_>, proc: u64, message: Outgoing, actions: &mut Vec<Action>) -> Sent {
        let Some(peer) = self.peers.get_mut(&proc) else {
            return Sent::Waits;
        };
        let Some(link) = peer.link.as_mut() else {
            return Sent::Waits;
        };
        let number = match link.push(py, proc, &message.header(), &message.payload) {
            Ok(number) => number,
            Err(SessionError::Encode(_)) => {
                let instead = link.give_back(&message);
                actions.push(Action::Unsent { proc, message });
                for message in instead {
                    self.send_credited(py, proc, message, actions);
                }
                return Sent::Number;
            }
            Err(_) => {
                let bytes = message.bytes;
                if link.hold_back(py, Stalled::Message(message, true)) {
                    peer.bound.admit(bytes);
                }
                return Sent::Waits;
            }
        };
        self.left(py, proc, &message, number);
        actions.push(Action::Drop(vec![message.payload.pickle.into_any()]));
        Sent::Number
    }

    /// A message is in the session under this number.
    pub(super) fn left(&mut self, py: Python<'_>, proc: u64, message: &Outgoing, number: u64) {
        if !message.is_broadcast() {
            return self.sent(message.call, proc, number);
        }
        if let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) {
            link.await_broadcast(
                message.mesh.get(),
                message.runs.as_runs(),
                &message.name,
                number,
                |rank| {
                    message
                        .wait_while_down
                        .then(|| message.for_ranks(py, &[rank]))
                        .flatten()
                },
            );
        }
    }

    /// Send a message that waited for credit and now has it.
    pub(super) fn send_credited(
        &mut self,
        py: Python<'_>,
        proc: u64,
        message: Outgoing,
        actions: &mut Vec<Action>,
    ) {
        if let Some(peer) = self.peers.get_mut(&proc) {
            peer.bound.leave(message.bytes);
        }
        self.made_room(actions);
        self.send(py, proc, message, true, actions);
    }

    /// Frames that had no room, or no segment, may have it now; in their order.
    pub(crate) fn retry_stalled(&mut self, py: Python<'_>, proc: u64, actions: &mut Vec<Action>) {
        let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) else {
            return;
        };
        let stalled = std::mem::take(&mut link.stalled);
        self.send_stalled(py, proc, stalled, actions);
    }

    /// Send what had to wait, in its order; what still cannot go waits again, behind what stalled before it.
    pub(super) fn send_stalled(
        &mut self,
        py: Python<'_>,
        proc: u64,
        stalled: VecDeque<Stalled>,
        actions: &mut Vec<Action>,
    ) {
        for frame in stalled {
            let Some(peer) = self.peers.get_mut(&proc) else {
                return;
            };
            match frame {
                Stalled::Message(message, credited) => {
                    peer.bound.leave(message.bytes);
                    self.send(py, proc, message, credited, actions);
                }
                Stalled::Reply(header, payload) => self.push_reply(py, proc, header, &payload, actions),
                Stalled::PortItem(header, payload) => {
                    self.push_port_item(py, proc, header, &payload, actions);
                }
            }
        }
        self.made_room(actions);
        self.wrote(proc, actions);
    }

    pub(crate) fn sent(&mut self, call: u64, proc: u64, number: u64) {
        if let Some(pending) = self.pending.get_mut(&call) {
            pending.sent(proc, number);
        }
    }
}

/// Have the loop tell when a socket takes more, while it does not.
fn watch_room(link: &mut Link, proc: u64, full: bool, actions: &mut Vec<Action>) {
    let Some(fd) = link.raw_fd() else { return };
    if full && !link.watched {
        link.watched = true;
        actions.push(Action::Watch { fd, proc });
    } else if !full && link.watched {
        link.watched = false;
        actions.push(Action::Unwatch(fd));
    }
}

pub(super) fn send_system(
    node: &Node,
    py: Python<'_>,
    proc: u64,
    mesh: u64,
    name: &str,
    payload: Py<PyBytes>,
    runs: Vec<(u32, u32, u32, u32, u32)>,
) -> PyResult<()> {
    let mut buffer = roost_core::wire::RunsBuffer::new();
    for (slot, count, slot_stride, rank, rank_stride) in runs {
        buffer
            .push(roost_core::wire::Run {
                slot,
                count,
                slot_stride,
                rank,
                rank_stride,
            })
            .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    }
    let payload = Payload::plain(payload);
    let message = Outgoing {
        order: 0,
        call: 0,
        mesh: mesh_id(mesh)?,
        runs: buffer,
        name: Arc::from(name),
        sizes: Arc::from([]),
        deadline: 0,
        flags: 0,
        slots: 0,
        bytes: payload.size(py) as u64,
        chain: None,
        payload,
        wait_while_down: false,
    };
    let mut actions = Vec::new();
    {
        let mut state = node.lock();
        let peer = state.peer(proc);
        if peer.standing == Standing::Unknown {
            peer.standing = Standing::Connecting;
            actions.push(Action::Connect(proc));
        }
        state.send(py, proc, message, true, &mut actions);
    }
    node.act(py, actions)
}

pub(super) fn send_spawn(
    node: &Node,
    py: Python<'_>,
    proc: u64,
    mesh: u64,
    plan: &[u8],
    rest: &[u8],
) -> PyResult<()> {
    let mut actions = Vec::new();
    let sent = {
        let mut state = node.lock();
        let first = mesh_id(mesh)?;
        let link = state.live_link(proc).filter(|link| link.stalled.is_empty());
        let sent = link.is_some_and(|link| link.spawn(first, plan, rest).is_ok());
        if sent {
            state.wrote(proc, &mut actions);
        }
        sent
    };
    if sent {
        return node.act(py, actions);
    }
    let payload = PyBytes::new(py, &[plan, rest].concat()).unbind();
    send_system(node, py, proc, mesh, ".spawn", payload, Vec::new())
}

pub(super) fn flush(node: &Node, py: Python<'_>) -> PyResult<()> {
    let mut actions = Vec::new();
    {
        let mut state = node.lock();
        state.flush_scheduled = false;
        state.turn += 1;
        state.flush_dirty(&mut actions);
    }
    node.act(py, actions)?;
    node.note_releases(py)
}

pub(super) fn has_unsent(node: &Node, py: Python<'_>) -> PyResult<bool> {
    let (mut found, mut actions) = (false, Vec::new());
    {
        let mut state = node.lock();
        let mut unheard = Vec::new();
        for peer in state.peers.values_mut() {
            // The last words to a proc that was never spoken with are on their way too.
            found |= peer.standing == Standing::Connecting && !peer.backlog.is_empty();
            let Some(link) = peer.link.as_mut().filter(|link| !link.closed) else {
                continue;
            };
            // What is held up goes too: an answer in shared memory waits until its receiver, which may be busy, has mapped it.
            found |= link.session.has_unsent() || link.has_ahead() || link.is_held_up();
            // What is on its way between hosts is lost with this process, and is late where news of its end are not.
            if link.far.is_some() && link.session.acknowledged() < link.session.last_sequence() {
                found = true;
                link.session.ask_ack();
                unheard.push(peer.id);
            }
        }
        for proc in unheard {
            state.flush_one(proc, &mut actions);
        }
    }
    node.act(py, actions)?;
    Ok(found)
}

pub(super) fn writable(node: &Node, py: Python<'_>, proc: u64) -> PyResult<()> {
    let mut actions = Vec::new();
    node.lock().flush_one(proc, &mut actions);
    node.act(py, actions)
}

pub(super) fn retry(node: &Node, py: Python<'_>, proc: u64) -> PyResult<()> {
    let mut actions = Vec::new();
    node.lock().retry_stalled(py, proc, &mut actions);
    node.act(py, actions)
}
