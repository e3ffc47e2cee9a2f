//! What hosts are told: what the agent says, carriers, the ways to each other, and that it is over.

use roost_core::agent::Output;
use roost_core::carrier::Carrier;
use roost_core::id::HostId;
use roost_core::trunk::ToHost;

use super::super::address::Address;
use super::Remotes;
use super::remote::{Remote, State};

impl Remotes {
    /// Let a host end its work for this job in order.
    pub(crate) fn detach(&mut self, number: u64, reason: &str, shutdown: bool) {
        let Some(remote) = self.all.get_mut(&number) else {
            return;
        };
        match &mut remote.joined {
            Some(joined) if joined.fenced_until_ns.is_none() => {
                joined.ending = true;
                let end = ToHost::End {
                    reason: reason.to_owned(),
                    shutdown,
                };
                // Should it not hear it, its verdict or the end of its lease follows.
                let _ = joined.line.trunk.send(&end);
                self.flush(number);
            }
            Some(_) => {}
            // It may work for us already: once it has said so, it is let go as one that joined.
            None if matches!(remote.state, State::Claiming { .. }) => {}
            None => self.forget(number),
        }
    }

    /// Let all hosts end their work for this job, but those that have been asked to already.
    pub(crate) fn detach_all(&mut self, reason: &str) {
        let is_ending = |remote: &Remote| remote.joined.as_ref().is_some_and(|joined| joined.ending);
        let numbers: Vec<u64> = self
            .all
            .iter()
            .filter(|(_, remote)| !is_ending(remote))
            .map(|(&number, _)| number)
            .collect();
        for number in numbers {
            self.detach(number, reason, false);
        }
    }

    /// Have it done on a host.
    pub(crate) fn send(&mut self, host: HostId, output: Output) {
        let Some(&number) = self.by_host.get(&host) else {
            return;
        };
        if let Output::Far { accept_host, .. } | Output::FarLink { accept_host, .. } = &output {
            self.tell_route(number, *accept_host);
        }
        if let Some(joined) = self.joined(number)
            && let Err(error) = joined.line.trunk.send(&ToHost::Output(output))
        {
            let reason = error.to_string();
            self.lose(number, &reason);
        }
    }

    /// Send a carrier to its first host. Given back where that has no connection now.
    pub(crate) fn carry(&mut self, carrier: Carrier) -> Result<(), Carrier> {
        let host = carrier.hosts.first().map(|first| first.host);
        let Some(number) = host.and_then(|host| self.by_host.get(&host).copied()) else {
            return Err(carrier);
        };
        let is_live = |remote: &Remote| matches!(remote.state, State::Live);
        if !self.all.get(&number).is_some_and(is_live) {
            return Err(carrier);
        }
        let Some(joined) = self.joined(number) else {
            return Err(carrier);
        };
        if let Err(error) = joined.line.trunk.send(&ToHost::Carrier(carrier)) {
            let reason = error.to_string();
            self.lose(number, &reason);
        }
        Ok(())
    }

    /// Where a host is reached, for others.
    pub(crate) fn addresses(&self, host: HostId) -> Option<&[String]> {
        let joined = self.all.get(self.by_host.get(&host)?)?.joined.as_ref()?;
        Some(&joined.addresses)
    }

    /// A host's name, and where it is reached.
    pub(crate) fn route(&self, host: HostId) -> Vec<Address> {
        self.by_host
            .get(&host)
            .and_then(|number| self.all.get(number)?.joined.as_ref())
            .map_or_else(Vec::new, |joined| {
                joined
                    .addresses
                    .iter()
                    .filter_map(|text| text.parse().ok())
                    .collect()
            })
    }

    fn tell_route(&mut self, number: u64, to: HostId) {
        let addresses = match self
            .by_host
            .get(&to)
            .and_then(|number| self.all.get(number)?.joined.as_ref())
        {
            Some(joined) => joined.addresses.clone(),
            None => return,
        };
        if let Some(joined) = self.joined(number)
            && joined.host != to
            && joined.routes.insert(to)
        {
            let _ = joined.line.trunk.send(&ToHost::Route { host: to, addresses });
        }
    }
}
