//! What follows when a process ends.

use std::collections::BTreeMap;

use super::proc::{Phase, Proc};
use super::words::{describe, short};
use super::{Agent, Output, Seen};
use crate::control::{Death, DeathKind, Exit, Status};
use crate::id::{Incarnation, ProcId};
use crate::limits::{DEATHS_KEPT_MAX, ENDED_PROCS_MAX, EXIT_STATUS_WAIT_NS};
use crate::restart::{Decision, Scope};

impl Agent {
    /// Its end was seen. It is told at once when the exit status is known, else a little later.
    pub(super) fn died(&mut self, now_ns: u64, id: ProcId, incarnation: Incarnation, seen: Seen) {
        let Some(proc) = self.current(id, incarnation) else {
            return;
        };
        if !proc.phase.is_alive() {
            return;
        }
        proc.times.died_ns = Some(now_ns);
        let exit = seen.exit.or(proc.exit);
        let seen = Seen { exit, ..seen };
        let known = exit.is_some();
        proc.phase = Phase::Dying {
            seen,
            until_ns: now_ns.saturating_add(EXIT_STATUS_WAIT_NS),
            gone: false,
        };
        if known {
            self.tell_death(now_ns, id);
        }
    }

    pub(super) fn exited(&mut self, now_ns: u64, id: ProcId, incarnation: Incarnation, exit: Exit) {
        let Some(proc) = self.current(id, incarnation) else {
            return;
        };
        if let Phase::Dying { seen, .. } = &mut proc.phase {
            seen.exit = Some(exit);
            self.tell_death(now_ns, id);
        } else {
            proc.exit = Some(exit);
        }
    }

    pub(super) fn gone(&mut self, now_ns: u64, id: ProcId, incarnation: Incarnation) {
        let Some(proc) = self.current(id, incarnation) else {
            return;
        };
        match &mut proc.phase {
            Phase::Dying { gone, .. } => *gone = true,
            Phase::Over { gone, .. } if !*gone => {
                *gone = true;
                self.nothing_left(id);
            }
            Phase::Down { gone, .. } => {
                *gone = true;
                self.start_next(now_ns, id);
            }
            _ => {}
        }
    }

    /// Tell everybody, and decide what comes next.
    pub(super) fn tell_death(&mut self, now_ns: u64, id: ProcId) {
        let has_place = self.has_place(id);
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        let Phase::Dying { seen, gone, .. } = &mut proc.phase else {
            return;
        };
        let (seen, gone) = (std::mem::take(seen), *gone);
        let mut death = describe(proc, &seen, has_place);
        death.times.detected_ns = Some(now_ns);
        if proc.is_spare {
            return self.spare_ended(now_ns, id, death, gone);
        }
        let decision = self.decide(now_ns, id, &death, has_place);
        match decision {
            Decision::Restart { delay_ns } => self.tell_restart(now_ns, id, &seen, (death, delay_ns, gone)),
            Decision::Ended => self.tell_end(id, &seen, &Status::Stopped { death }, gone),
            Decision::GiveUp => {
                let earlier = self
                    .procs
                    .get_mut(id)
                    .map(|proc| std::mem::take(&mut proc.earlier));
                let earlier = earlier.unwrap_or_default();
                self.tell_end(id, &seen, &Status::Failed { death, earlier }, gone);
            }
        }
        self.stop_owned(now_ns, id);
        // Nor are the actors constructed again that it owned on the procs of others.
        self.procs.forget_constructors_of(id);
        self.end_useless_spares(now_ns, &[id], self.patience);
    }

    /// What follows from a death: the policy's word, if there is a host to start it on.
    fn decide(&mut self, now_ns: u64, id: ProcId, death: &Death, has_place: bool) -> Decision {
        let Some(proc) = self.procs.get_mut(id) else {
            return Decision::Ended;
        };
        let clean = death.kind == DeathKind::Exit && death.exit.is_some_and(Exit::is_clean);
        let decision = match (&proc.ending, &proc.policy) {
            (Some(ending), _) if ending.restart => Decision::Restart { delay_ns: 0 },
            (Some(_), _) => Decision::Ended,
            (None, Some(policy)) => proc.history.decide(policy, now_ns, clean, self.random.fraction()),
            (None, None) if clean => Decision::Ended,
            (None, None) => Decision::GiveUp,
        };
        match decision {
            _ if self.closed => Decision::Ended,
            Decision::Restart { .. } if !has_place => Decision::GiveUp,
            decision => decision,
        }
    }

    fn tell_restart(
        &mut self,
        now_ns: u64,
        id: ProcId,
        seen: &Seen,
        (death, delay_ns, gone): (Death, u64, bool),
    ) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        let reason = death.reason.clone();
        let scope = match proc.ending {
            // Asked for, so that no policy is at work.
            Some(_) => None,
            None => proc.policy.map(|policy| policy.scope),
        };
        if proc.ending.is_none() {
            if proc.earlier.len() == DEATHS_KEPT_MAX {
                proc.earlier.remove(0);
            }
            proc.earlier.push(short(&death));
        }
        proc.phase = Phase::Down {
            at_ns: now_ns.saturating_add(delay_ns),
            gone,
        };
        self.announce_death(id, seen, &Status::Dead { death });
        let delay_ns = if self.ready_spare(id).is_some() {
            0
        } else {
            delay_ns
        };
        self.announce(id, &Status::Restarting { delay_ns, reason });
        if let Some(scope) = scope {
            self.restart_with(now_ns, id, scope);
        }
        // Those that are lost with their host start when all that is lost is known.
        if self.procs.get(&id).is_some_and(|proc| proc.lost.is_none()) {
            self.start_next(now_ns, id);
        }
    }

    /// It stays down.
    fn tell_end(&mut self, id: ProcId, seen: &Seen, status: &Status, gone: bool) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        proc.phase = Phase::Over {
            last: Box::new(status.clone()),
            gone,
        };
        // Nobody starts it again but by a restart, which begins a history of its own.
        proc.earlier.clear();
        self.announce_death(id, seen, status);
        self.refuse_waiting(id);
        if gone {
            self.nothing_left(id);
        }
    }

    /// Its owner may wait for its memory. Of those that ended long ago nothing is kept.
    pub(super) fn tell_gone(&mut self, id: ProcId) {
        if let Some(owner) = self.procs.get(&id).map(|proc| proc.owner)
            && self.hears(owner)
        {
            self.tell(owner, id, Status::Gone);
        }
        self.ended.push_back(id);
        if self.ended.len() > ENDED_PROCS_MAX
            && let Some(oldest) = self.ended.pop_front()
            && let Some(Phase::Over { gone: true, .. }) = self.procs.get(&oldest).map(|proc| &proc.phase)
            && let Some(forgotten) = self.forget(oldest)
        {
            self.forget_spares(forgotten.mesh);
        }
    }

    /// Tell the end of an incarnation: each receiver hears which of *its* messages were started, and what it may still get.
    fn announce_death(&mut self, id: ProcId, seen: &Seen, status: &Status) {
        let peers = self.lanes.remove_all(id);
        // Of one whose page nobody has read everything may have been started.
        let is_known = self.procs.get(&id).is_some_and(|proc| proc.lost.is_none());
        let last_of = |counters: &[u64], to: &ProcId| {
            let slot = (*peers.get(to)?)?;
            is_known.then(|| counters.get(slot as usize).copied().unwrap_or(0))
        };
        self.epoch = self.epoch.saturating_add(1);
        for (host, procs) in self.everybody() {
            let mut told: BTreeMap<(Option<u64>, Option<u64>), Vec<ProcId>> = BTreeMap::new();
            for to in procs {
                let last = (last_of(&seen.started, &to), last_of(&seen.said, &to));
                told.entry(last).or_default().push(to);
            }
            for ((started, said), to) in told {
                let mut status = status.clone();
                if let Status::Dead { death } | Status::Failed { death, .. } | Status::Stopped { death } =
                    &mut status
                {
                    (death.started, death.said) = (started, said);
                }
                if let Some(message) = self.member(id, status) {
                    let descriptor = None;
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
        }
    }

    /// Nothing is kept of it.
    pub(super) fn forget(&mut self, id: ProcId) -> Option<Proc> {
        let proc = self.procs.remove(id)?;
        self.hosts.remove(proc.host, id);
        Some(proc)
    }

    /// The ranks that start again with this one.
    fn restart_with(&mut self, now_ns: u64, id: ProcId, scope: Scope) {
        let Some(dead) = self.procs.get(&id) else { return };
        let (mesh, number, label) = (dead.mesh, dead.number, dead.label.clone());
        let concerned = |proc: &Proc| match scope {
            Scope::One => false,
            Scope::All => true,
            Scope::Rest => proc.number > number,
        };
        let others: Vec<ProcId> = self
            .procs
            .iter()
            .filter(|(other, proc)| {
                let is_other_rank = **other != id && proc.mesh == mesh && !proc.is_spare;
                is_other_rank && concerned(proc) && proc.phase.is_alive()
            })
            .map(|(&other, _)| other)
            .collect();
        let reason = format!("starts again together with {label}");
        for other in others {
            self.restart(now_ns, other, &reason, self.patience);
        }
    }

    /// What it spawned does not outlive it.
    fn stop_owned(&mut self, now_ns: u64, owner: ProcId) {
        let reason = format!("its owner {} ended", self.label(owner));
        let mut owned: Vec<(u64, ProcId)> = self
            .procs
            .iter()
            .filter(|(_, proc)| proc.owner == owner && !proc.is_spare)
            .map(|(&id, proc)| (proc.number, id))
            .collect();
        owned.sort_unstable_by(|one, other| other.cmp(one));
        let owned: Vec<ProcId> = owned.into_iter().map(|(_, id)| id).collect();
        for &id in &owned {
            self.stop(now_ns, id, &reason, self.patience);
        }
        self.end_useless_spares(now_ns, &owned, self.patience);
    }
}
