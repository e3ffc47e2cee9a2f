//! This host's part of a data lane between two hosts.

use roost_core::agent::{Input, LaneEnd, Life};
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

    /// Tell a proc of a lane to another host.
    pub(in crate::control::host) fn tell_far(&mut self, to: LaneEnd, peer: LaneEnd, message: &ToClient) {
        self.clear_slot(to);
        if let Err(reason) = self.tell_network((to.proc, to.incarnation), message) {
            self.pair_failed(to, peer, reason);
        }
    }

    /// Tell a proc of a connection to another host, and first what it needs for any.
    pub(in crate::control::host) fn tell_network(
        &mut self,
        to: Life,
        message: &ToClient,
    ) -> Result<(), String> {
        let Some(running) = self.running(to.0, to.1) else {
            return Ok(());
        };
        if std::mem::replace(&mut running.network, Network::Told) == Network::Untold {
            let credentials = match &mut self.brain {
                Brain::Root(root) => root.credentials(),
                Brain::Leaf(leaf) => Ok(leaf.credentials.clone()),
            }?;
            self.tell(to.0, &ToClient::Network(Box::new(credentials)), None);
            if let Brain::Leaf(leaf) = &self.brain {
                let offset_ns = leaf.uplink.offset_ns();
                self.tell(to.0, &ToClient::Clock { offset_ns }, None);
            }
        }
        self.tell(to.0, message, None);
        Ok(())
    }

    /// Make a link from this host to memory on another, or from there to memory here.
    pub(in crate::control::host) fn dial_link(
        &mut self,
        link: u32,
        (dial, accept): (Life, Life),
        host: HostId,
        asks: bool,
    ) {
        let addresses = self.brain.route(host);
        let made = if dial.0 == self.config.driver
            && let Brain::Root(root) = &mut self.brain
        {
            let end = (accept, asks);
            root.far(&self.epoll)
                .map(|far| far.dial_link(now_ns(), link, end, (host, addresses)))
        } else {
            let message = ToClient::DialLink {
                link,
                proc: accept.0,
                incarnation: accept.1,
                asks,
                host,
                addresses: addresses.iter().map(Address::to_string).collect(),
            };
            self.tell_network(dial, &message)
        };
        if let Err(reason) = made {
            let (asks, serves) = if asks { (dial, accept) } else { (accept, dial) };
            self.inputs.push_back(Input::LinkFailed { asks, serves, reason });
        }
    }

    pub(in crate::control::host) fn pair_failed(&mut self, first: LaneEnd, second: LaneEnd, reason: String) {
        self.inputs.push_back(Input::PairFailed {
            first: first.proc,
            second: second.proc,
            reason,
        });
    }

    /// The driver wants a connection to this proc again: it dials, since nobody can dial its host.
    pub(in crate::control::host) fn redial(&mut self, proc: ProcId) {
        if let Brain::Root(root) = &mut self.brain
            && let Some(far) = &mut root.far
        {
            far.redial(now_ns(), proc);
        }
    }

    /// The driver is told something: what its lanes to other hosts take from it.
    pub(in crate::control::host) fn driver_hears(&mut self, message: &ToClient) {
        let Brain::Root(root) = &mut self.brain else {
            return;
        };
        let Some(far) = &mut root.far else { return };
        match message {
            ToClient::Member(member) if member.status.is_end() => {
                far.ended(member.proc, member.incarnation);
            }
            ToClient::Redial { proc } => {
                far.redial(now_ns(), *proc);
            }
            _ => {}
        }
    }
}
