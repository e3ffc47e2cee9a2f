//! Starting procs: the first time, and again.

use std::sync::Arc;

use super::Agent;
use super::proc::{Phase, Proc, Shared};
use super::template::Keys;
use crate::control::{Launch, Rank, Spawn, Status, TemplateKey, Times, ToClient};
use crate::id::{Incarnation, ProcId};
use crate::limits::ASK_WARNING_NS;

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

    pub(super) fn warn_unanswered(&mut self, id: ProcId) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        let Phase::Asking { warn_at_ns, .. } = &mut proc.phase else {
            return;
        };
        *warn_at_ns = None;
        let (owner, seconds) = (proc.owner, ASK_WARNING_NS / 1_000_000_000);
        let text = format!(
            "{} is down: what to start it with has not been answered for {seconds} s",
            proc.label
        );
        self.send(owner, ToClient::Warning { text });
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
