//! The frame, or the mail, for each proc of a mesh.

use std::sync::Arc;

use pyo3::prelude::*;
use roost_core::wire::{Chain, MessageHeader, Run, Runs, RunsBuffer};

use super::sending::Outcome;
use super::{Mode, Packed, Verb};
use crate::message::{Mail, Origin, flags};
use crate::node::{Action, State};
use crate::outgoing::Outgoing;
use crate::payload::Payload;
use crate::peer::Standing;
use crate::targets::Place;

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
        call: u64,
        deadline: i64,
        packed: &Packed,
        outcome: &mut Outcome,
        actions: &mut Vec<Action>,
    ) {
        let proc = place.proc.get();
        if proc == state.own {
            self.send_here(py, state, place, call, deadline, packed, actions);
            return;
        }
        let targets = self.targets.get();
        match state.standing(proc, actions) {
            Standing::Gone => return outcome.refuse(place),
            Standing::Down if !targets.wait_while_down => return outcome.refuse(place),
            _ => {}
        }
        let Packed::Same(payload) = packed else {
            return self.send_each(py, state, place, call, deadline, packed, outcome, actions);
        };
        let bytes = payload.size(py) as u64;
        let flags = self.flags();
        if !targets.wait_while_down {
            // The quick way: straight into the session's log.
            if let Some(link) = state.live_link(proc) {
                let runs = place.runs.as_runs();
                if link.take_credit(targets.mesh.get(), targets.slots, runs, bytes) {
                    let header = self.header(call, deadline, flags, runs);
                    if let Ok(number) = link.push(py, proc, &header, payload) {
                        if call == 0 {
                            link.await_broadcast(
                                targets.mesh.get(),
                                runs,
                                &self.endpoint.name,
                                number,
                                |_| None,
                            );
                        } else {
                            state.sent(call, proc, number);
                        }
                        state.wrote(proc, actions);
                        return;
                    }
                    let message = self.outgoing(py, place, (call, outcome.order), deadline, flags, payload);
                    outcome.note(state.send(py, proc, message, true, actions));
                    return;
                }
            }
        }
        let message = self.outgoing(py, place, (call, outcome.order), deadline, flags, payload);
        state.keep_for_again(py, proc, &message);
        outcome.note(state.send(py, proc, message, false, actions));
    }

    /// Send each rank of one proc its own arguments.
    fn send_each(
        &self,
        py: Python<'_>,
        state: &mut State,
        place: &Place,
        call: u64,
        deadline: i64,
        packed: &Packed,
        outcome: &mut Outcome,
        actions: &mut Vec<Action>,
    ) {
        let Packed::Each(all) = packed else { return };
        let proc = place.proc.get();
        for (slot, rank) in place.runs.as_runs().targets() {
            let Some(payload) = all.get(rank as usize) else {
                continue;
            };
            let mut message =
                self.outgoing(py, place, (call, outcome.order), deadline, self.flags(), payload);
            message.runs = one_run(slot, rank);
            state.keep_for_again(py, proc, &message);
            outcome.note(state.send(py, proc, message, false, actions));
        }
    }

    /// Send to actors of this very process.
    fn send_here(
        &self,
        py: Python<'_>,
        state: &mut State,
        place: &Place,
        call: u64,
        deadline: i64,
        packed: &Packed,
        actions: &mut Vec<Action>,
    ) {
        let targets = self.targets.get();
        let mesh = targets.mesh.get();
        for (slot, rank) in place.runs.as_runs().targets() {
            let payload = match packed {
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
                call,
                rank,
                flags: self.flags(),
                deadline,
                endpoint: Some(Arc::clone(&self.endpoint)),
                name: None,
                sizes: (!targets.sizes.is_empty()).then(|| Arc::clone(&targets.sizes)),
                payload: payload.private(py),
                bytes: 0,
                page: None,
            };
            state.put(py, mesh, slot, mail, actions);
        }
    }

    fn header<'a>(&'a self, call: u64, deadline: i64, flags: u8, runs: Runs<'a>) -> MessageHeader<'a> {
        let targets = self.targets.get();
        MessageHeader {
            call,
            mesh: targets.mesh,
            deadline_ns: deadline,
            flags,
            runs,
            endpoint: &self.endpoint.name,
            sizes: &targets.sizes,
            chain: Chain::EMPTY,
        }
    }

    fn outgoing(
        &self,
        py: Python<'_>,
        place: &Place,
        (call, order): (u64, u64),
        deadline: i64,
        flags: u8,
        payload: &Payload,
    ) -> Outgoing {
        let targets = self.targets.get();
        Outgoing {
            order,
            call,
            mesh: targets.mesh,
            runs: place.runs.clone(),
            name: Arc::clone(&self.endpoint.name),
            sizes: Arc::clone(&targets.sizes),
            deadline,
            flags,
            slots: targets.slots,
            bytes: payload.size(py) as u64,
            payload: payload.clone_ref(py),
            wait_while_down: targets.wait_while_down,
        }
    }
}

fn one_run(slot: u32, rank: u32) -> RunsBuffer {
    let mut runs = RunsBuffer::new();
    // Part of a list that was checked.
    let _ = runs.push(Run {
        slot,
        count: 1,
        slot_stride: 1,
        rank,
        rank_stride: 1,
    });
    runs
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
