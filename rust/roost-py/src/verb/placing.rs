//! The frame, or the mail, for each proc of a mesh.

use std::sync::Arc;

use pyo3::prelude::*;
use roost_core::wire::{Chain, MessageHeader, RunsBuffer};

use super::sending::Sending;
use super::{Mode, Packed, Verb};
use crate::message::{Mail, Origin, flags};
use crate::node::State;
use crate::outgoing::{Outgoing, push_target};
use crate::payload::Payload;
use crate::peer::Standing;
use crate::targets::Place;

/// How far the quick way got.
enum Quick {
    Sent,
    /// It must wait for credit, or there is no connection.
    NoCredit,
    /// It has its credit, and must wait for room in the session.
    NoRoom,
}

impl Verb {
    fn flags(&self) -> u8 {
        if self.mode == Mode::Stream {
            flags::STREAM
        } else {
            0
        }
    }

    /// Send to one proc's part of the mesh.
    pub(super) fn send_place(
        &self,
        py: Python<'_>,
        state: &mut State,
        place: &Place,
        sending: &mut Sending<'_>,
    ) {
        let proc = place.proc.get();
        if proc == state.own {
            return self.send_here(py, state, place, sending);
        }
        let targets = self.targets.get();
        match state.standing(proc, &mut sending.actions) {
            Standing::Gone => return sending.refuse(place),
            Standing::Down if !targets.wait_while_down => return sending.refuse(place),
            _ => {}
        }
        let payload = match sending.packed {
            Packed::Same(payload) => payload,
            Packed::Each(all) => return self.send_each(py, state, place, all, sending),
        };
        let mut has_credit = false;
        if !targets.wait_while_down {
            match self.send_now(py, state, place, payload, sending) {
                Quick::Sent => return,
                Quick::NoRoom => has_credit = true,
                Quick::NoCredit => {}
            }
        }
        let message = self.outgoing(py, place, payload, sending);
        state.keep_for_again(py, proc, &message);
        let sent = state.send(py, proc, message, has_credit, &mut sending.actions);
        sending.note(sent);
    }

    /// The quick way: straight into the session's log.
    fn send_now(
        &self,
        py: Python<'_>,
        state: &mut State,
        place: &Place,
        payload: &Payload,
        sending: &mut Sending<'_>,
    ) -> Quick {
        let (proc, runs, targets) = (place.proc.get(), place.runs.as_runs(), self.targets.get());
        let (mesh, bytes) = (targets.mesh.get(), payload.size(py) as u64);
        let Some(link) = state.live_link(proc) else {
            return Quick::NoCredit;
        };
        if !link.take_credit(mesh, targets.slots, runs, bytes) {
            return Quick::NoCredit;
        }
        let header = MessageHeader {
            call: sending.call,
            mesh: targets.mesh,
            deadline_ns: sending.deadline,
            flags: self.flags(),
            runs,
            endpoint: &self.endpoint.name,
            sizes: &targets.sizes,
            chain: sending
                .chain
                .as_ref()
                .map_or(Chain::EMPTY, |chain| chain.as_chain()),
        };
        let Ok(number) = link.push(py, proc, &header, payload) else {
            return Quick::NoRoom;
        };
        if sending.call == 0 {
            link.await_broadcast(mesh, runs, &self.endpoint.name, number, |_| None);
        } else {
            state.sent(sending.call, proc, number);
        }
        state.wrote(proc, &mut sending.actions);
        Quick::Sent
    }

    /// Send each rank of one proc its own arguments.
    fn send_each(
        &self,
        py: Python<'_>,
        state: &mut State,
        place: &Place,
        all: &[Payload],
        sending: &mut Sending<'_>,
    ) {
        let proc = place.proc.get();
        for (slot, rank) in place.runs.as_runs().targets() {
            let Some(payload) = all.get(rank as usize) else {
                continue;
            };
            let mut message = self.outgoing(py, place, payload, sending);
            message.runs = RunsBuffer::new();
            push_target(&mut message.runs, slot, rank);
            state.keep_for_again(py, proc, &message);
            let sent = state.send(py, proc, message, false, &mut sending.actions);
            sending.note(sent);
        }
    }

    /// Send to actors of this very process.
    fn send_here(&self, py: Python<'_>, state: &mut State, place: &Place, sending: &mut Sending<'_>) {
        let targets = self.targets.get();
        let mesh = targets.mesh.get();
        for (slot, rank) in place.runs.as_runs().targets() {
            let payload = match sending.packed {
                Packed::Same(payload) => payload,
                Packed::Each(all) => match all.get(rank as usize) {
                    Some(payload) => payload,
                    None => continue,
                },
            };
            let mail = Mail {
                sender: state.own,
                incarnation: state.hello.incarnation.0,
                origin: Origin::Here,
                call: sending.call,
                rank,
                flags: self.flags(),
                deadline: sending.deadline,
                endpoint: Some(Arc::clone(&self.endpoint)),
                name: None,
                sizes: (!targets.sizes.is_empty()).then(|| Arc::clone(&targets.sizes)),
                payload: payload.private(py),
                bytes: 0,
                page: None,
                chain: sending.chain.clone(),
            };
            state.put(py, mesh, slot, mail, &mut sending.actions);
        }
    }

    /// The message as it waits here.
    fn outgoing(&self, py: Python<'_>, place: &Place, payload: &Payload, sending: &Sending<'_>) -> Outgoing {
        let targets = self.targets.get();
        Outgoing {
            order: sending.order,
            call: sending.call,
            mesh: targets.mesh,
            runs: place.runs.clone(),
            name: Arc::clone(&self.endpoint.name),
            sizes: Arc::clone(&targets.sizes),
            deadline: sending.deadline,
            flags: self.flags(),
            slots: targets.slots,
            bytes: payload.size(py) as u64,
            payload: payload.clone_ref(py),
            chain: sending.chain.clone(),
            wait_while_down: targets.wait_while_down,
        }
    }
}

impl State {
    /// Keep a call's message for the next incarnation of its receiver, when it may be sent again.
    fn keep_for_again(&mut self, py: Python<'_>, proc: u64, message: &Outgoing) {
        if message.wait_while_down
            && let Some(pending) = self.pending.get_mut(&message.call)
        {
            pending.again.push((proc, message.clone_ref(py)));
        }
    }
}
