//! Where procs start: at first, again, and elsewhere.

use super::Agent;
use super::hosts::Host;
use super::proc::Proc;
use crate::id::{HostId, MeshId, ProcId};

impl Agent {
    /// Whether there is a place to start it.
    pub(super) fn has_place(&self, id: ProcId) -> bool {
        let Some(proc) = self.procs.get(&id) else {
            return false;
        };
        self.hosts.is_there(proc.host) || (proc.may_move() && self.other_places(proc).next().is_some())
    }

    /// Where its next incarnation starts: where it was, or, when that host is gone and it may move, where the job has the
    /// fewest procs. Spares wait for just this and do not count, and of two such hosts the one with a spare is better.
    pub(super) fn place_for(&self, id: ProcId) -> Option<HostId> {
        let proc = self.procs.get(&id)?;
        if self.hosts.is_there(proc.host) {
            return Some(proc.host);
        }
        if !proc.may_move() {
            return None;
        }
        self.other_places(proc)
            .min_by_key(|&(host, one)| {
                let has_spare = self.ready_spare_on(id, host).is_some();
                (self.load(one), !has_spare, one.number)
            })
            .map(|(host, _)| host)
    }

    /// The hosts that it may move to. The driver needs its own for itself, unless it was meant to share it.
    fn other_places(&self, proc: &Proc) -> impl Iterator<Item = (HostId, &Host)> {
        let own = self.hosts.own();
        let shares = self.lives_on(proc.mesh, own);
        self.hosts.there().filter(move |&(host, _)| shares || host != own)
    }

    fn load(&self, host: &Host) -> usize {
        let counts = |id: &&ProcId| matches!(self.procs.get(id), Some(proc) if !proc.is_spare && !proc.phase.is_over());
        host.procs.iter().filter(counts).count()
    }

    fn lives_on(&self, mesh: MeshId, host: HostId) -> bool {
        let is_rank = |proc: &Proc| proc.mesh == mesh && !proc.is_spare;
        let mut procs = self.hosts.procs(host);
        procs.any(|id| self.procs.get(id).is_some_and(is_rank))
    }

    /// Let it live on this host from its next start on.
    pub(super) fn settle_on(&mut self, id: ProcId, host: HostId) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        if proc.host != host {
            self.hosts.remove(proc.host, id);
            self.hosts.insert(host, id);
            proc.host = host;
            proc.parents = self.templates.parents(host, &proc.keys, &proc.environ);
        }
    }
}
