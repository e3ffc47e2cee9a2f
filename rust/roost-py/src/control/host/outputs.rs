//! Doing what the agent says.

use std::io;
use std::os::fd::OwnedFd;

use roost_core::agent::{Input, LaneEnd, Output, Signal};
use roost_core::control::ToClient;
use roost_core::id::{Incarnation, ProcId};
use roost_core::limits::STARTED_SLOTS;
use rustix::process::pidfd_send_signal;

use super::Host;
use crate::control::{links, memory, socket};

impl Host {
    pub(super) fn perform(&mut self, output: Output) {
        match output {
            Output::StartTemplate {
                template,
                key,
                environ,
            } => self.start_template(template, &key, &environ),
            Output::Launch(order) => self.launch(&order),
            Output::TakePlace(place) => self.take_place(&place),
            Output::Send {
                to,
                message,
                descriptor,
            } => {
                let mut descriptor = descriptor.and_then(|token| self.tokens.remove(&token));
                for to in to {
                    self.tell(to, &message, descriptor.take());
                }
            }
            Output::Pair { first, second } => self.pair(first, second),
            Output::Far {
                dial,
                accept,
                accept_host,
                session,
            } => self.far(dial, accept, (accept_host, session)),
            Output::Link { link, asks, serves } => self.link(link, asks, serves),
            Output::FarLink {
                link,
                dial,
                accept,
                accept_host,
                dialler_asks,
            } => self.far_link(link, (dial, accept), accept_host, dialler_asks),
            Output::Signal {
                proc,
                incarnation,
                signal,
            } => self.signal(proc, incarnation, signal),
        }
    }

    /// Tell a proc, or the driver. One that is ending is told nothing: its death follows.
    pub(super) fn tell(&mut self, to: ProcId, message: &ToClient, descriptor: Option<OwnedFd>) {
        if to == self.config.driver {
            self.driver_hears(message);
            if matches!(message, ToClient::Redial { .. }) {
                return;
            }
            if let Some((message, descriptor)) = links::message(&mut self.links, message.clone(), descriptor)
            {
                self.door.push(message, descriptor);
            }
            return;
        }
        let Some(running) = self.running.get_mut(&to) else {
            return;
        };
        let Some(lane) = running.control.as_mut() else {
            return;
        };
        let Err(error) = lane.send(message, descriptor) else {
            return;
        };
        // Where the other end is closed, its death is on its way to us.
        if !matches!(
            error.kind(),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
        ) {
            // It would miss what the others hear: it cannot go on.
            if let Some(pidfd) = &running.pidfd {
                let _ = pidfd_send_signal(pidfd, rustix::process::Signal::KILL);
            }
            let text = format!(
                "{} is killed, since nothing can be said to it any more: {error}",
                running.label
            );
            self.close_lane(to);
            self.warn(text);
        }
    }

    /// Make a data lane between two procs.
    fn pair(&mut self, first: LaneEnd, second: LaneEnd) {
        match socket::stream_pair() {
            Ok((one, other)) => {
                self.hand_out(first, second, one);
                self.hand_out(second, first, other);
            }
            Err(error) => {
                let reason = format!("no data lane: {}", io::Error::from(error));
                self.inputs.push_back(Input::PairFailed {
                    first: first.proc,
                    second: second.proc,
                    reason,
                });
            }
        }
    }

    /// Slots come round again: what an old lane left in a proc's page must not count for the new one.
    pub(super) fn clear_slot(&mut self, end: LaneEnd) {
        if let (Some(slot), Some(running)) = (end.slot, self.running(end.proc, end.incarnation)) {
            for counter in [slot, STARTED_SLOTS + slot] {
                let _ = memory::write_at(&running.page, &[0; 8], u64::from(counter) * 8);
            }
        }
    }

    /// Give one end of a lane to its proc.
    pub(super) fn hand_out(&mut self, to: LaneEnd, peer: LaneEnd, end: OwnedFd) {
        self.clear_slot(to);
        let message = ToClient::Connected {
            proc: peer.proc,
            incarnation: peer.incarnation,
            slot: to.slot,
        };
        // One that is ending drops its end, which the other sees.
        self.tell(to.proc, &message, Some(end));
    }

    fn signal(&mut self, id: ProcId, incarnation: Incarnation, signal: Signal) {
        let Some(running) = self.running(id, incarnation) else {
            return;
        };
        let signal = match signal {
            Signal::Terminate => rustix::process::Signal::TERM,
            Signal::Kill => rustix::process::Signal::KILL,
        };
        if let Some(pidfd) = &running.pidfd {
            // It fails only when the process has ended, which is on its way to us.
            let _ = pidfd_send_signal(pidfd, signal);
        }
    }
}
