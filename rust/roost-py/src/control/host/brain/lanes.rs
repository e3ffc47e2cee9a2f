//! This host's part of a data lane between two hosts.

use roost_core::agent::{Input, LaneEnd};
use roost_core::control::ToClient;
use roost_core::id::{HostId, ProcId};

use super::{Brain, Host};
use crate::control::clock::now_ns;
use crate::control::host::launch::Network;
use crate::control::net::Address;

impl Host {
    /// Make this host's part of a lane between two hosts.
    pub(in crate::control::host) fn far(
        &mut self,
        dial: LaneEnd,
        accept: LaneEnd,
        (accept_host, session): (HostId, u64),
    ) {
        let addresses = self.brain.route(accept_host);
        if dial.proc == self.config.driver
            && let Brain::Root(root) = &mut self.brain
        {
            let told = (accept.incarnation, dial.slot, session);
            match root.far(&self.epoll) {
                Ok(far) => far.dial(now_ns(), accept.proc, told, (accept_host, addresses)),
                Err(reason) => self.pair_failed(dial, accept, reason),
            }
        } else if self.running.contains_key(&dial.proc) {
            let addresses = addresses.iter().map(Address::to_string).collect();
            let message = ToClient::Dial {
                proc: accept.proc,
                incarnation: accept.incarnation,
                slot: dial.slot,
                session,
                host: accept_host,
                addresses,
            };
            self.tell_far(dial, accept, &message);
        }
        if self.running.contains_key(&accept.proc) {
            let message = ToClient::Expect {
                proc: dial.proc,
                incarnation: dial.incarnation,
                slot: accept.slot,
                session,
            };
            self.tell_far(accept, dial, &message);
        }
    }

    /// Tell a proc of a lane to another host, and first what it needs for any.
    pub(in crate::control::host) fn tell_far(&mut self, to: LaneEnd, peer: LaneEnd, message: &ToClient) {
        let Some(running) = self.running(to.proc, to.incarnation) else {
            return;
        };
        let is_first = std::mem::replace(&mut running.network, Network::Told) == Network::Untold;
        self.clear_slot(to);
        if is_first {
            let credentials = match &mut self.brain {
                Brain::Root(root) => root.credentials(),
                Brain::Leaf(leaf) => Ok(leaf.credentials.clone()),
            };
            match credentials {
                Ok(credentials) => self.tell(to.proc, &ToClient::Network(Box::new(credentials)), None),
                Err(reason) => return self.pair_failed(to, peer, reason),
            }
            if let Brain::Leaf(leaf) = &self.brain {
                let offset_ns = leaf.uplink.offset_ns();
                self.tell(to.proc, &ToClient::Clock { offset_ns }, None);
            }
        }
        self.tell(to.proc, message, None);
    }

    pub(in crate::control::host) fn pair_failed(&mut self, first: LaneEnd, second: LaneEnd, reason: String) {
        self.inputs.push_back(Input::PairFailed {
            first: first.proc,
            second: second.proc,
            reason,
        });
    }

    pub(in crate::control::host) fn redial(&mut self, proc: ProcId) {
        if let Brain::Root(root) = &mut self.brain
            && let Some(far) = &mut root.far
        {
            far.redial(now_ns(), proc);
        }
    }

    /// The driver is told of a change: its lanes to what ended are over.
    pub(in crate::control::host) fn driver_hears(&mut self, message: &ToClient) {
        if let (Brain::Root(root), ToClient::Member(member)) = (&mut self.brain, message)
            && member.status.is_end()
            && let Some(far) = &mut root.far
        {
            far.ended(member.proc, member.incarnation);
        }
    }
}
