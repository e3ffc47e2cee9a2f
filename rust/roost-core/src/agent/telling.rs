//! Who hears of what.

use std::collections::BTreeMap;

use super::proc::Proc;
use super::{Agent, Output};
use crate::control::{Activity, HostStatus, Member, Status, ToClient};
use crate::id::{HostId, Incarnation, MeshId, ProcId};

impl Agent {
    /// Have something done on a host that is there.
    pub(super) fn put(&mut self, host: HostId, output: Output) {
        if self.hosts.is_there(host) {
            self.outputs.push_back((host, output));
        }
    }

    /// Have something done where a proc lives.
    pub(super) fn put_at(&mut self, id: ProcId, output: Output) {
        if let Some(host) = self.host_of(id) {
            self.put(host, output);
        }
    }

    /// Queue a message for a proc that can hear it, or the driver.
    pub(super) fn send(&mut self, to: ProcId, message: ToClient) {
        if self.hears(to) {
            self.put_at(
                to,
                Output::Send {
                    to: vec![to],
                    message,
                    descriptor: None,
                },
            );
        }
    }

    /// Whether this proc has a control lane at its other end.
    pub(super) fn hears(&self, id: ProcId) -> bool {
        id == self.driver || self.procs.get(&id).is_some_and(|proc| proc.phase.is_alive())
    }

    /// Tell a change to everybody, and so make a new epoch.
    pub(super) fn announce(&mut self, id: ProcId, status: &Status) {
        self.epoch = self.epoch.saturating_add(1);
        let Some(message) = self.member(id, status.clone()) else {
            return;
        };
        for (host, to) in self.everybody() {
            let (message, descriptor) = (message.clone(), None);
            self.put(
                host,
                Output::Send {
                    to,
                    message,
                    descriptor,
                },
            );
        }
    }

    /// Who hears of each change, by host: not the spares, which talk to nobody.
    pub(super) fn everybody(&self) -> Vec<(HostId, Vec<ProcId>)> {
        let hears = |id: &ProcId| {
            self.procs
                .get(id)
                .is_some_and(|proc| proc.phase.is_alive() && !proc.is_spare)
        };
        self.hosts
            .iter()
            .map(|(host, procs)| {
                let driver = (host == self.hosts.own()).then_some(self.driver);
                let procs = procs.iter().copied().filter(|id| hears(id));
                (host, driver.into_iter().chain(procs).collect::<Vec<_>>())
            })
            .filter(|(_, to)| !to.is_empty())
            .collect()
    }

    /// Tell a first start to the owner alone: who knows nothing of a proc asks when it needs it, and spawning n procs
    /// stays n messages.
    pub(super) fn announce_start(&mut self, id: ProcId, status: Status) {
        let Some(proc) = self.procs.get(&id) else { return };
        if proc.incarnation == Incarnation::default() {
            self.tell(proc.owner, id, status);
        } else {
            self.announce(id, &status);
        }
    }

    pub(super) fn tell(&mut self, to: ProcId, id: ProcId, status: Status) {
        if let Some(message) = self.member(id, status) {
            self.send(to, message);
        }
    }

    pub(super) fn member(&self, id: ProcId, status: Status) -> Option<ToClient> {
        let proc = self.procs.get(&id)?;
        let member = Member {
            epoch: self.epoch,
            proc: id,
            incarnation: proc.incarnation,
            status,
        };
        Some(ToClient::Member(Box::new(member)))
    }

    /// Tell what became of a host to the driver and to the owners of what was there.
    pub(super) fn tell_host(&mut self, (host, name): (HostId, &str), status: &HostStatus, procs: &[ProcId]) {
        let is_left = |proc: &&Proc| !proc.phase.is_over();
        let owners = procs.iter().filter_map(|id| self.procs.get(id)).filter(is_left);
        let owners = owners.map(|proc| proc.owner).filter(|&owner| self.hears(owner));
        let mut hearers: BTreeMap<HostId, Vec<ProcId>> = BTreeMap::new();
        for id in std::iter::once(self.driver).chain(owners) {
            if let Some(of) = self.host_of(id) {
                hearers.entry(of).or_default().push(id);
            }
        }
        for (of, mut to) in hearers {
            to.sort_unstable();
            to.dedup();
            let (name, status, descriptor) = (name.to_owned(), status.clone(), None);
            let message = ToClient::Host { host, name, status };
            self.put(
                of,
                Output::Send {
                    to,
                    message,
                    descriptor,
                },
            );
        }
    }

    /// Tell the owner whether a proc that lives gets on.
    pub(super) fn progress(&mut self, id: ProcId, status: Status) {
        if let Some(proc) = self.procs.get(&id)
            && proc.phase.is_alive()
            && !proc.is_spare
        {
            self.tell(proc.owner, id, status);
        }
    }

    /// Somebody wants to know what actors do. Those of the driver are only seen by the driver itself.
    pub(super) fn look(&mut self, from: ProcId, to: ProcId, mesh: MeshId) {
        if to != self.driver && self.hears(to) {
            self.send(to, ToClient::Look { from, mesh });
        } else {
            self.seen(to, from, mesh, Vec::new());
        }
    }

    pub(super) fn seen(&mut self, from: ProcId, to: ProcId, mesh: MeshId, activities: Vec<Activity>) {
        let seen = ToClient::Seen {
            from,
            mesh,
            activities,
        };
        self.send(to, seen);
    }
}
