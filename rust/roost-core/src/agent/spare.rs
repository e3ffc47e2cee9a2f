//! Spares: procs without a rank. One waits, as warm as can be, until a rank of its mesh has to start again; then its process
//! is that rank's next incarnation, and a new one waits in its stead.
//!
//! A spare serves the ranks that start on its host, and there the place is made for one that comes from a host that is lost.
//! Who spawns a mesh over several hosts says on which of them spares wait.
//!
//! Nobody hears of a spare, so nobody talks to it, and its death is nobody's failure: it is replaced, within the mesh's
//! policy.

use std::collections::VecDeque;

use super::proc::{Phase, Proc};
use super::{Agent, Input, Output, Place};
use crate::control::{Bytes, Death, Status, ToClient};
use crate::id::{HostId, ProcId};
use crate::limits::{SPARE_PAUSE_NS, SPARE_PLANS_MAX};
use crate::restart::Decision;

/// Those of one mesh.
#[derive(Debug, Default)]
pub(super) struct Spares {
    pub(super) procs: Vec<ProcId>,
    /// What the constructors of its actors begin with, each once.
    plans: VecDeque<Bytes>,
    /// The last of its ranks, which nothing is left of: told when that is true of the spares.
    pub(super) last: Option<ProcId>,
}

impl Agent {
    /// A mesh gets one more.
    pub(super) fn begin_spare(&mut self, now_ns: u64, id: ProcId) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        proc.is_spare = true;
        let owner = proc.owner;
        self.spares.entry(proc.mesh).or_default().procs.push(id);
        if self.closed || !self.hears(owner) {
            return self.end_unstarted(now_ns, id, "its owner has ended");
        }
        self.launch_or_lose(now_ns, id);
    }

    /// It waits for a place from now on, unless there is one.
    pub(super) fn spare_ready(&mut self, now_ns: u64, id: ProcId) {
        let Some((mesh, host)) = self.procs.get(&id).map(|proc| (proc.mesh, proc.host)) else {
            return;
        };
        for start in self
            .spares
            .get(&mesh)
            .map(|spares| spares.plans.clone())
            .unwrap_or_default()
        {
            self.send(id, ToClient::Prepare { start });
        }
        let waits = |proc: &&Proc| {
            let is_down = matches!(proc.phase, Phase::Down { gone: true, .. });
            is_down && proc.mesh == mesh && !proc.is_spare
        };
        let here = self.hosts.procs(host);
        let ranks = here.filter_map(|id| Some((*id, self.procs.get(id)?)));
        let first = ranks
            .filter(|(_, proc)| waits(proc))
            .min_by_key(|(_, proc)| proc.number);
        if let Some((rank, _)) = first {
            self.start_next(now_ns, rank);
        }
    }

    /// A spare that could take the place of this rank now.
    pub(super) fn ready_spare(&self, id: ProcId) -> Option<ProcId> {
        self.ready_spare_on(id, self.host_of(id)?)
    }

    /// The same were it to start on that host: a spare cannot leave its own.
    pub(super) fn ready_spare_on(&self, id: ProcId, host: HostId) -> Option<ProcId> {
        let rank = self.procs.get(&id).filter(|proc| !proc.is_spare)?;
        let is_ready = |spare: &Proc| {
            matches!(spare.phase, Phase::Up)
                && spare.host == host
                && spare.ending.is_none()
                && spare.signal.is_none()
                && spare.exit.is_none()
                // What a process is executed with cannot be changed afterwards.
                && (&spare.launch.environ, &spare.launch.command) == (&rank.launch.environ, &rank.launch.command)
        };
        let spares = self.spares.get(&rank.mesh)?.procs.iter();
        spares
            .copied()
            .find(|spare| self.procs.get(spare).is_some_and(is_ready))
    }

    /// Start the incarnation of a rank by letting a spare take its place. Gives whether there was one.
    pub(super) fn take_spare(&mut self, now_ns: u64, id: ProcId) -> bool {
        let Some(spare_id) = self.ready_spare(id) else {
            return false;
        };
        let Some(spare) = self.procs.get_mut(spare_id) else {
            return false;
        };
        let (pid, spare_incarnation) = (spare.pid, spare.incarnation);
        // The rank needs the host more than the next spare does: that takes the pause which the rank was spared.
        let pause_ns = spare.policy.map_or(0, |policy| policy.backoff_min_ns);
        let at_ns = now_ns.saturating_add(pause_ns.min(SPARE_PAUSE_NS));
        spare.phase = Phase::Down { at_ns, gone: true };
        let Some(rank) = self.procs.get_mut(id) else {
            return false;
        };
        rank.phase = Phase::Starting { ready: false };
        rank.pid = pid;
        let host = rank.host;
        let (owner, incarnation, label) = (rank.owner, rank.incarnation, rank.label.clone());
        let become_it = ToClient::Become {
            incarnation,
            spec: rank.launch.spec.clone(),
            recorded: rank.recorded.payloads(),
        };
        let owner_is_here = self.host_of(owner) == Some(host);
        let place = Place {
            spare: (spare_id, spare_incarnation),
            proc: (id, incarnation),
            owner_slot: owner_is_here.then(|| self.first_lane(id, owner)).flatten(),
            label,
        };
        if let Some(spare) = self.procs.get_mut(spare_id) {
            spare.became = Some(place.clone());
        }
        self.put(host, Output::TakePlace(place));
        self.send(id, become_it);
        let epoch = self.epoch;
        self.send(id, ToClient::Epoch { epoch, host });
        self.first_far_lane(id);
        self.connect_waiting(id);
        true
    }

    /// A host that has not yet done what [`Output::TakePlace`] says still speaks of the spare.
    pub(super) fn follow_place(&self, input: &mut Input) {
        let (Input::Message { from: id, .. }
        | Input::Died { proc: id, .. }
        | Input::Exited { proc: id, .. }
        | Input::Gone { proc: id, .. }) = &*input
        else {
            return;
        };
        if let Some(spare) = self.procs.get(id)
            && let Some(place) = &spare.became
            // What its next life says is its own.
            && !(matches!(input, Input::Message { .. }) && spare.phase.is_alive())
        {
            input.follow(place);
        }
    }

    /// Its end counts against nothing but itself. One that ends over and over is not started for ever.
    pub(super) fn spare_ended(&mut self, now_ns: u64, id: ProcId, death: Death, gone: bool) {
        let random = self.random.fraction();
        let is_wanted = !self.closed
            && self.procs.get(&id).is_some_and(|proc| {
                self.hosts.is_there(proc.host) && self.needs(proc.mesh).spare_on(proc.host)
            });
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        let decision = match &proc.policy {
            Some(policy) if is_wanted && proc.ending.is_none() => {
                proc.history.decide(policy, now_ns, false, random)
            }
            // It was told to end with the mesh, which has been started again since.
            Some(_) if is_wanted => Decision::Restart { delay_ns: 0 },
            _ => Decision::Ended,
        };
        if let Decision::Restart { delay_ns } = decision {
            let at_ns = now_ns.saturating_add(delay_ns.max(SPARE_PAUSE_NS));
            proc.phase = Phase::Down { at_ns, gone };
            return;
        }
        let (owner, label) = (proc.owner, proc.label.clone());
        if decision == Decision::GiveUp {
            let text = format!(
                "{label} ended as often as its mesh's policy mends a rank, and is not replaced: {}\n{}",
                death.reason, death.stderr
            );
            self.send(
                owner,
                ToClient::Warning {
                    text: text.trim_end().to_owned(),
                },
            );
        }
        if let Some(proc) = self.procs.get_mut(id) {
            let last = Box::new(Status::Stopped { death });
            proc.phase = Phase::Over { last, gone };
        }
        if gone {
            self.nothing_left(id);
        }
    }

    /// A rank has this to construct, and so may they.
    pub(super) fn prepare_spares(&mut self, rank: ProcId, start: &Bytes) {
        let Some(spares) = self
            .procs
            .get(&rank)
            .and_then(|proc| self.spares.get_mut(&proc.mesh))
        else {
            return;
        };
        if spares.plans.contains(start) {
            return;
        }
        if spares.plans.len() == SPARE_PLANS_MAX {
            spares.plans.pop_front();
        }
        spares.plans.push_back(start.clone());
        for id in spares.procs.clone() {
            if self
                .procs
                .get(&id)
                .is_some_and(|proc| matches!(proc.phase, Phase::Up))
            {
                self.send(id, ToClient::Prepare { start: start.clone() });
            }
        }
    }
}
