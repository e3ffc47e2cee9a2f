//! Which spares are needed, and what becomes of the others.

use std::collections::BTreeSet;

use super::Agent;
use super::proc::{Phase, Proc};
use crate::control::Patience;
use crate::id::{HostId, MeshId, ProcId};
use crate::restart::History;

/// Where a mesh needs spares.
#[derive(Debug, Default)]
pub(super) struct Need {
    hosts: BTreeSet<HostId>,
    /// There are ranks that may come to any host.
    anywhere: bool,
}

impl Need {
    pub(super) fn spare_on(&self, host: HostId) -> bool {
        self.anywhere || self.hosts.contains(&host)
    }
}

impl Agent {
    /// Nothing is left of a proc that has ended for good. Who waits for that of a whole mesh waits for its spares too.
    pub(super) fn nothing_left(&mut self, id: ProcId) {
        let Some((mesh, is_spare)) = self.procs.get(&id).map(|proc| (proc.mesh, proc.is_spare)) else {
            return;
        };
        let Some(spares) = self.spares.get(&mesh) else {
            return self.tell_gone(id);
        };
        let is_left = |proc: &Proc| !matches!(proc.phase, Phase::Over { gone: true, .. });
        let mut ranks = self
            .procs
            .values()
            .filter(|proc| proc.mesh == mesh && !proc.is_spare);
        let has_spare = spares
            .procs
            .iter()
            .any(|spare| self.procs.get(spare).is_some_and(is_left));
        let has_rank = ranks.any(is_left);
        let Some(spares) = self.spares.get_mut(&mesh) else {
            return;
        };
        if is_spare {
            if !has_spare && let Some(last) = spares.last.take() {
                self.tell_gone(last);
            }
        } else if has_rank || !has_spare {
            self.tell_gone(id);
        } else {
            spares.last = Some(id);
        }
    }

    /// These ranks are ending: spares of their meshes that no rank can need any more end too.
    pub(super) fn end_useless_spares(&mut self, now_ns: u64, ranks: &[ProcId], patience: Patience) {
        if self.spares.is_empty() {
            return;
        }
        let mut meshes: Vec<MeshId> = ranks
            .iter()
            .filter_map(|id| Some(self.procs.get(id)?.mesh))
            .collect();
        meshes.dedup();
        for mesh in meshes {
            let need = self.needs(mesh);
            for id in self.spares_of(mesh) {
                if self.host_of(id).is_some_and(|host| need.spare_on(host)) {
                    continue;
                }
                // One that waits ends at once; one that still runs the user's `setup` has nothing to lose.
                let is_ready = matches!(self.procs.get(&id).map(|proc| &proc.phase), Some(Phase::Up));
                let patience = if is_ready { patience } else { Patience::NONE };
                self.stop(now_ns, id, "its mesh has ended", patience);
            }
        }
    }

    /// Where there are ranks of this mesh that may have to start again.
    pub(super) fn needs(&self, mesh: MeshId) -> Need {
        let may_start = |proc: &&Proc| {
            proc.mesh == mesh
                && !proc.is_spare
                && !matches!(proc.phase, Phase::Over { .. })
                && proc.ending.as_ref().is_none_or(|ending| ending.restart)
        };
        let mut need = Need::default();
        for proc in self.procs.values().filter(may_start) {
            need.anywhere |= proc.may_move();
            need.hosts.insert(proc.host);
        }
        need
    }

    /// A rank that had ended for good is started again: so are spares that had.
    pub(super) fn begin_spares_again(&mut self, now_ns: u64, rank: ProcId) {
        let Some(mesh) = self.procs.get(&rank).map(|proc| proc.mesh) else {
            return;
        };
        if let Some(spares) = self.spares.get_mut(&mesh) {
            spares.last = None;
        }
        for id in self.spares_of(mesh) {
            if let Some(proc) = self.procs.get_mut(id)
                && let Phase::Over { gone, .. } = proc.phase
            {
                proc.history = History::default();
                proc.ending = None;
                proc.phase = Phase::Down { at_ns: now_ns, gone };
                self.start_next(now_ns, id);
            }
        }
    }

    /// Nothing is kept of a mesh of which no rank is.
    pub(super) fn forget_spares(&mut self, mesh: MeshId) {
        let has_rank = |proc: &Proc| proc.mesh == mesh && !proc.is_spare;
        if self.spares.contains_key(&mesh) && !self.procs.values().any(has_rank) {
            for id in self.spares.remove(&mesh).unwrap_or_default().procs {
                // One that its kernel still holds is forgotten with the job.
                if matches!(
                    self.procs.get(&id).map(|proc| &proc.phase),
                    Some(Phase::Over { gone: true, .. })
                ) {
                    self.forget(id);
                }
            }
        }
    }

    pub(super) fn spares_of(&self, mesh: MeshId) -> Vec<ProcId> {
        self.spares
            .get(&mesh)
            .map(|spares| spares.procs.clone())
            .unwrap_or_default()
    }
}
