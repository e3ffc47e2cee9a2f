//! The hosts of the job: which procs can be started where, and what becomes of those whose host is gone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::proc::{Ending, Phase};
use super::{Agent, Input, Seen};
use crate::control::{DeathKind, HostStatus, Patience, Status};
use crate::id::{HostId, ProcId};
use crate::limits::HOSTS_REMEMBERED_MAX;

/// A host that procs can be started on.
#[derive(Debug)]
pub(super) struct Host {
    name: String,
    /// Its place in the order of joining.
    pub(super) number: u64,
    pub(super) procs: BTreeSet<ProcId>,
}

/// All of them, by id; one that is gone does not come back.
#[derive(Debug)]
pub(super) struct Hosts {
    /// The driver's.
    own: HostId,
    there: BTreeMap<HostId, Host>,
    /// What became of the last that are gone, for those who ask for procs on them.
    gone: VecDeque<(HostId, String)>,
    joined: u64,
}

impl Hosts {
    pub(super) fn new(own: HostId) -> Self {
        let mut hosts = Self {
            own,
            there: BTreeMap::new(),
            gone: VecDeque::new(),
            joined: 0,
        };
        hosts.join(own, "the driver's host".to_owned());
        hosts
    }

    pub(super) fn own(&self) -> HostId {
        self.own
    }

    pub(super) fn is_there(&self, host: HostId) -> bool {
        self.there.contains_key(&host)
    }

    /// The hosts with the procs that each has; the driver's comes first.
    pub(super) fn iter(&self) -> impl Iterator<Item = (HostId, &BTreeSet<ProcId>)> {
        let own = self.there.get_key_value(&self.own);
        let others = self.there.iter().filter(|(host, _)| **host != self.own);
        own.into_iter()
            .chain(others)
            .map(|(&host, one)| (host, &one.procs))
    }

    /// All that are there.
    pub(super) fn there(&self) -> impl Iterator<Item = (HostId, &Host)> {
        self.there.iter().map(|(&host, one)| (host, one))
    }

    /// The procs of one that is there.
    pub(super) fn procs(&self, host: HostId) -> impl Iterator<Item = &ProcId> {
        self.there.get(&host).into_iter().flat_map(|one| &one.procs)
    }

    pub(super) fn insert(&mut self, host: HostId, proc: ProcId) {
        if let Some(host) = self.there.get_mut(&host) {
            host.procs.insert(proc);
        }
    }

    pub(super) fn remove(&mut self, host: HostId, proc: ProcId) {
        if let Some(host) = self.there.get_mut(&host) {
            host.procs.remove(&proc);
        }
    }

    /// Why nothing can be started there.
    pub(super) fn why_gone(&self, host: HostId) -> String {
        let known = self.gone.iter().find(|(one, _)| *one == host);
        known.map_or_else(|| format!("{host} is not attached"), |(_, why)| why.clone())
    }

    /// Gives whether it is new.
    fn join(&mut self, host: HostId, name: String) -> bool {
        if self.is_there(host) || self.gone.iter().any(|(one, _)| *one == host) {
            return false;
        }
        let number = self.joined;
        self.joined += 1;
        let procs = BTreeSet::new();
        self.there.insert(host, Host { name, number, procs });
        true
    }

    fn take(&mut self, host: HostId, status: &HostStatus) -> Option<Host> {
        let taken = self.there.remove(&host)?;
        let why = match status {
            HostStatus::Lost { reason } => format!("its host {} is lost: {reason}", taken.name),
            HostStatus::Joined | HostStatus::Left => format!("its host {} was detached", taken.name),
        };
        if self.gone.len() == HOSTS_REMEMBERED_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back((host, why));
        Some(taken)
    }
}

impl Agent {
    /// Take in what another host has to say. What is said of procs that are not there, and all that a host says which is
    /// gone, comes too late.
    pub fn handle_from(&mut self, now_ns: u64, host: HostId, mut input: Input) {
        self.follow_place(&mut input);
        if self.is_said_by(host, &input) {
            self.handle(now_ns, input);
        }
    }

    fn is_said_by(&self, host: HostId, input: &Input) -> bool {
        let has = |proc: ProcId| self.hosts.is_there(host) && self.host_of(proc) == Some(host);
        match input {
            Input::Message { from: proc, .. }
            | Input::Launched { proc, .. }
            | Input::LaunchFailed { proc, .. }
            | Input::LaunchLost { proc, .. }
            | Input::Died { proc, .. }
            | Input::Exited { proc, .. }
            | Input::Gone { proc, .. } => has(*proc),
            Input::PairFailed { first, second, .. } => has(*first) || has(*second),
            Input::LinkFailed { asks, serves, .. } => has(asks.0) || has(serves.0),
            Input::TemplateReady(template)
            | Input::TemplateRefused { template, .. }
            | Input::TemplateFailed { template, .. }
            | Input::TemplateEnded { template, .. } => self.templates.host(*template) == Some(host),
            Input::HostJoined { .. }
            | Input::HostLost { .. }
            | Input::HostLeft { .. }
            | Input::Close
            | Input::Tick => false,
        }
    }

    /// Where a proc lives, or the driver; none for one that nobody knows.
    pub fn host_of(&self, id: ProcId) -> Option<HostId> {
        if id == self.driver {
            Some(self.hosts.own())
        } else {
            self.procs.get(&id).map(|proc| proc.host)
        }
    }

    pub(super) fn host_joined(&mut self, host: HostId, name: &str) {
        if self.hosts.join(host, name.to_owned()) {
            self.tell_host((host, name), &HostStatus::Joined, &[]);
        }
    }

    pub(super) fn host_lost(&mut self, now_ns: u64, host: HostId, reason: String) {
        self.host_gone(now_ns, host, &HostStatus::Lost { reason });
    }

    pub(super) fn host_left(&mut self, now_ns: u64, host: HostId) {
        self.host_gone(now_ns, host, &HostStatus::Left);
    }

    /// Nothing is said to it any more, and nothing that it had is left.
    fn host_gone(&mut self, now_ns: u64, host: HostId, status: &HostStatus) {
        if host == self.hosts.own() {
            return;
        }
        let Some(taken) = self.hosts.take(host, status) else {
            return;
        };
        self.outputs.retain(|(to, _)| *to != host);
        self.templates.forget(host);
        let mut procs: Vec<(u64, ProcId)> = taken
            .procs
            .iter()
            .filter_map(|id| Some((self.procs.get(id)?.number, *id)))
            .collect();
        procs.sort_unstable();
        let procs: Vec<ProcId> = procs.into_iter().map(|(_, id)| id).collect();
        // Before anything is told of one of them: what is told of the first must not reach the last.
        for &id in &procs {
            self.end_with_host(now_ns, id, status);
        }
        self.tell_host((host, &taken.name), status, &procs);
        for id in procs {
            self.tell_lost(now_ns, id, status);
        }
    }

    /// The process of this proc, where it has one, runs no more as far as anybody can tell.
    fn end_with_host(&mut self, now_ns: u64, id: ProcId, status: &HostStatus) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        let why = self.hosts.why_gone(proc.host);
        if *status == HostStatus::Left && !matches!(proc.phase, Phase::Over { .. }) {
            proc.ending = Some(Ending::new(now_ns, &why, Patience::NONE, false));
        }
        match &mut proc.phase {
            Phase::Starting { .. } | Phase::Up | Phase::Queued => {
                proc.lost = Some(why);
                proc.times.died_ns = Some(now_ns);
                proc.phase = Phase::Dying {
                    seen: Seen {
                        exit: proc.exit,
                        ..Seen::default()
                    },
                    until_ns: now_ns,
                    gone: true,
                };
            }
            Phase::Dying { gone, .. } => {
                *gone = true;
                if proc.ending.as_ref().is_some_and(|ending| ending.restart) {
                    proc.lost = Some(why);
                }
            }
            Phase::Down { gone, .. } => *gone = true,
            Phase::Asking { .. } | Phase::Over { .. } => {}
        }
    }

    /// Tell what became of this proc, whose host is gone.
    fn tell_lost(&mut self, now_ns: u64, id: ProcId, status: &HostStatus) {
        let stays = *status == HostStatus::Left || !self.has_place(id);
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        match &mut proc.phase {
            Phase::Dying { .. } => self.tell_death(now_ns, id),
            Phase::Down { .. } | Phase::Asking { .. } if stays => self.lose_place(now_ns, id),
            Phase::Over { gone, .. } if !*gone => {
                *gone = true;
                self.nothing_left(id);
            }
            _ => {}
        }
    }

    /// It has no process, and no place to start one.
    pub(super) fn lose(&mut self, now_ns: u64, id: ProcId, why: String) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        proc.lost = Some(why);
        proc.times.died_ns = proc.times.died_ns.or(Some(now_ns));
        proc.phase = Phase::Dying {
            seen: Seen::default(),
            until_ns: now_ns,
            gone: true,
        };
        self.tell_death(now_ns, id);
    }

    /// Its host is gone, and there is no other.
    pub(super) fn lose_place(&mut self, now_ns: u64, id: ProcId) {
        if let Some(host) = self.host_of(id) {
            let why = self.hosts.why_gone(host);
            self.lose(now_ns, id, why);
        }
    }
}

/// Why there is no proc to talk to any more, for who asks.
pub(super) fn why_over(label: &str, last: &Status) -> String {
    match last {
        Status::Failed { death, .. } if death.kind == DeathKind::Lost => {
            format!("{label} has ended: {}", death.reason)
        }
        _ => format!("{label} has ended"),
    }
}
