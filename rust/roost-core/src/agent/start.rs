//! Starting procs: the first time, and again.

use std::sync::Arc;

use super::proc::{Phase, Proc, Shared};
use super::template::Keys;
use super::{Agent, Order, Output, Signal, Source};
use crate::control::{Launch, Rank, Spawn, Status, TemplateKey, Times, ToClient};
use crate::id::{Incarnation, ProcId};
use crate::limits::{ASK_WARNING_NS, LAUNCHES_LOST_MAX};

impl Agent {
    pub(super) fn spawn(&mut self, now_ns: u64, from: ProcId, spawn: Spawn) {
        let key = spawn.template.unwrap_or_default();
        let light = TemplateKey {
            preload: Vec::new(),
            sys_path: key.sys_path.clone(),
        };
        let environ = spawn.template_environ;
        let shared = Shared {
            mesh: spawn.mesh,
            owner: spawn.owner,
            keys: Arc::new(Keys { template: key, light }),
            environ,
            policy: spawn.policy,
            logs: spawn.logs,
            ask: spawn.ask,
        };
        for rank in spawn.ranks {
            if let Some(id) = self.begin(now_ns, from, &shared, rank) {
                self.begin_start(now_ns, id);
            }
        }
        for spare in spawn.spares {
            if let Some(id) = self.begin(now_ns, from, &shared, spare) {
                self.begin_spare(now_ns, id);
            }
        }
    }

    /// Enter a proc into the table.
    fn begin(&mut self, now_ns: u64, from: ProcId, shared: &Shared, rank: Rank) -> Option<ProcId> {
        let id = rank.proc;
        if id == self.driver || self.procs.contains_key(&id) {
            let text = format!(
                "{} has the id of another proc, {id}, and is not started",
                rank.label
            );
            self.send(from, ToClient::Warning { text });
            return None;
        }
        let host = rank.host;
        let parents = self.templates.parents(host, &shared.keys, &shared.environ);
        let mut proc = Proc::new(shared.clone(), self.spawned, rank, parents);
        self.spawned += 1;
        proc.times.started_ns = Some(now_ns);
        proc.start_by_ns = Some(now_ns.saturating_add(self.start_timeout_ns));
        self.procs.insert(id, proc);
        self.hosts.insert(host, id);
        Some(id)
    }

    fn begin_start(&mut self, now_ns: u64, id: ProcId) {
        let owner = self.procs.get(&id).map_or(self.driver, |proc| proc.owner);
        if self.closed || !self.hears(owner) {
            return self.end_unstarted(now_ns, id, "its owner has ended");
        }
        self.announce_starting(id);
        self.launch_or_lose(now_ns, id);
    }

    /// Launch it, where its host is there.
    pub(super) fn launch_or_lose(&mut self, now_ns: u64, id: ProcId) {
        match self.procs.get(&id).map(|proc| proc.host) {
            Some(host) if !self.hosts.is_there(host) => self.lose_place(now_ns, id),
            _ => self.launch(id),
        }
    }

    fn announce_starting(&mut self, id: ProcId) {
        let Some(proc) = self.procs.get(&id) else { return };
        let actors = proc.recorded.meshes();
        let status = Status::Starting {
            times: proc.times,
            actors,
            host: proc.host,
        };
        self.announce_start(id, status);
    }

    /// Give the order for a queued proc, when its template can take it.
    pub(super) fn launch(&mut self, id: ProcId) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        let template = proc.parent();
        let forks = match self.templates.room(template) {
            Ok(Some(forks)) => forks,
            Ok(None) => return,
            Err((host, start)) => return self.put(host, start),
        };
        proc.phase = Phase::Starting { ready: false };
        let source = if forks && !proc.launch.is_cold() {
            Source::Fork
        } else {
            Source::Cold(proc.launch.environ.as_ref().unwrap_or(&proc.environ).clone())
        };
        let (host, owner) = (proc.host, proc.owner);
        let mut order = Order {
            proc: id,
            incarnation: proc.incarnation,
            owner,
            owner_is_here: false,
            owner_slot: None,
            label: proc.label.clone(),
            template,
            source,
            command: proc.launch.command.clone(),
            spec: proc.launch.spec.clone(),
            recorded: proc.recorded.payloads(),
            logs: proc.logs,
            is_spare: proc.is_spare,
        };
        self.templates.requested(template, id);
        order.owner_is_here = self.host_of(owner) == Some(host);
        if order.owner_is_here && !order.is_spare {
            order.owner_slot = self.first_lane(id, owner);
        }
        self.put(host, Output::Launch(Box::new(order)));
        let epoch = self.epoch;
        self.send(id, ToClient::Epoch { epoch, host });
    }

    /// The lane to its owner, which it is born with. Gives the place in the owner's started page.
    pub(super) fn first_lane(&mut self, id: ProcId, owner: ProcId) -> Option<u32> {
        let (own, owner_slot) = (self.take_slot(id), self.take_slot(owner));
        self.lanes.insert((id, own), (owner, owner_slot));
        owner_slot
    }

    pub(super) fn launched(&mut self, now_ns: u64, id: ProcId, incarnation: Incarnation, pid: u32) {
        let Some(proc) = self.current(id, incarnation) else {
            return;
        };
        proc.pid = Some(pid);
        if let Some(signal) = proc.signal {
            let output = Output::Signal {
                proc: id,
                incarnation,
                signal,
            };
            self.put_at(id, output);
        } else if matches!(proc.phase, Phase::Starting { ready: true }) {
            self.up(now_ns, id);
        }
        self.first_far_lane(id);
        self.connect_waiting(id);
        self.template_answered(id);
    }

    /// A proc says that it is ready.
    pub(super) fn up(&mut self, now_ns: u64, id: ProcId) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        let Phase::Starting { ready } = &mut proc.phase else {
            return;
        };
        let Some(pid) = proc.pid else {
            *ready = true;
            return;
        };
        proc.phase = Phase::Up;
        proc.times.up_ns = Some(now_ns);
        if proc.is_spare {
            return self.spare_ready(now_ns, id);
        }
        // Who waits for the end of a proc that is being stopped does not want to hear that it came up.
        if proc.ending.is_none() {
            let status = Status::Up {
                pid,
                times: proc.times,
            };
            self.announce_start(id, status);
        }
    }

    /// The process could not be made.
    pub(super) fn launch_failed(
        &mut self,
        now_ns: u64,
        id: ProcId,
        incarnation: Incarnation,
        reason: String,
        stderr: String,
    ) {
        let Some(proc) = self.current(id, incarnation) else {
            return;
        };
        if !matches!(
            proc.phase,
            Phase::Queued | Phase::Starting { .. } | Phase::Asking { .. }
        ) {
            return;
        }
        proc.start_failure = Some(reason);
        let seen = super::Seen {
            stderr,
            ..super::Seen::default()
        };
        proc.phase = Phase::Dying {
            seen,
            until_ns: now_ns,
            gone: true,
        };
        proc.times.died_ns = Some(now_ns);
        // Before it is asked again, perhaps at once.
        self.template_answered(id);
        self.tell_death(now_ns, id);
    }

    /// It takes too long, with its template or by itself.
    pub(super) fn end_overdue_start(&mut self, now_ns: u64, id: ProcId) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        if proc.start_by_ns.is_none_or(|by_ns| by_ns > now_ns) {
            return;
        }
        proc.start_by_ns = None;
        if proc.ending.is_some() {
            return;
        }
        let reason = format!("did not start within {} s", self.start_timeout_ns / 1_000_000_000);
        let incarnation = proc.incarnation;
        if matches!(proc.phase, Phase::Queued) {
            self.launch_failed(now_ns, id, incarnation, reason, String::new());
        } else {
            proc.start_failure = Some(reason);
            self.signal(id, Signal::Kill);
        }
    }

    /// The template ended with the order in its hands: nothing of the proc has run, so it is ordered again.
    pub(super) fn launch_lost(&mut self, now_ns: u64, id: ProcId, incarnation: Incarnation) {
        let Some(proc) = self.current(id, incarnation) else {
            return;
        };
        if !matches!(proc.phase, Phase::Starting { .. }) {
            return;
        }
        proc.launches_lost += 1;
        if proc.launches_lost > LAUNCHES_LOST_MAX {
            let reason = format!("its template ended {LAUNCHES_LOST_MAX} times while it forked");
            self.launch_failed(now_ns, id, incarnation, reason, String::new());
            return;
        }
        if proc.ending.is_some() || proc.signal == Some(Signal::Kill) {
            self.launch_failed(
                now_ns,
                id,
                incarnation,
                "its template ended".to_owned(),
                String::new(),
            );
            return;
        }
        proc.phase = Phase::Queued;
        self.lanes.remove_all(id);
        self.launch(id);
    }

    /// Start the next incarnation of a proc that is down, or ask for what to start.
    pub(super) fn start_next(&mut self, now_ns: u64, id: ProcId) {
        let has_spare = self.ready_spare(id).is_some();
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        // The pause spares a host that starts the same thing over and over; a spare has been started already.
        if !matches!(proc.phase, Phase::Down { at_ns, gone: true } if at_ns <= now_ns || has_spare) {
            return;
        }
        let Some(next) = proc.incarnation.next() else {
            return;
        };
        if !self.has_place(id) {
            return self.lose_place(now_ns, id);
        }
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        if proc.ask && !proc.is_spare {
            proc.phase = Phase::Asking {
                warn_at_ns: Some(now_ns.saturating_add(ASK_WARNING_NS)),
            };
            let owner = proc.owner;
            self.send(
                owner,
                ToClient::Ask {
                    proc: id,
                    incarnation: next,
                },
            );
        } else {
            self.start_incarnation(now_ns, id, next);
        }
    }

    fn start_incarnation(&mut self, now_ns: u64, id: ProcId, incarnation: Incarnation) {
        let Some(host) = self.place_for(id) else {
            return self.lose_place(now_ns, id);
        };
        self.settle_on(id, host);
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        proc.renew(incarnation);
        proc.times = Times {
            started_ns: Some(now_ns),
            ..Times::default()
        };
        proc.start_by_ns = Some(now_ns.saturating_add(self.start_timeout_ns));
        if !proc.is_spare {
            self.announce_starting(id);
            if self.take_spare(now_ns, id) {
                return;
            }
        }
        self.launch(id);
    }

    /// The owner's answer to [`ToClient::Ask`].
    pub(super) fn respawn(
        &mut self,
        now_ns: u64,
        id: ProcId,
        incarnation: Incarnation,
        launch: Result<Launch, String>,
    ) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        if !matches!(proc.phase, Phase::Asking { .. }) || proc.incarnation.next() != Some(incarnation) {
            return;
        }
        match launch {
            Ok(launch) => {
                proc.launch = launch;
                self.start_incarnation(now_ns, id, incarnation);
            }
            Err(reason) => {
                proc.renew(incarnation);
                proc.times.started_ns = Some(now_ns);
                self.announce_starting(id);
                self.launch_failed(now_ns, id, incarnation, reason, String::new());
            }
        }
    }

    /// A proc, when it is still in this incarnation.
    pub(super) fn current(&mut self, id: ProcId, incarnation: Incarnation) -> Option<&mut Proc> {
        self.procs
            .get_mut(id)
            .filter(|proc| proc.incarnation == incarnation)
    }

    /// The next place in a proc's started page; the driver has no page.
    pub(super) fn take_slot(&mut self, id: ProcId) -> Option<u32> {
        self.procs.get_mut(id).map(Proc::take_slot)
    }
}
