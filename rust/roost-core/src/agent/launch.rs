//! From an order to a process that is up, or to the word that there will be none.

use super::proc::Phase;
use super::{Agent, Order, Output, Signal, Source};
use crate::control::{Status, ToClient};
use crate::id::{Incarnation, ProcId};
use crate::limits::LAUNCHES_LOST_MAX;

impl Agent {
    /// Launch it, where its host is there.
    pub(super) fn launch_or_lose(&mut self, now_ns: u64, id: ProcId) {
        match self.procs.get(&id).map(|proc| proc.host) {
            Some(host) if !self.hosts.is_there(host) => self.lose_place(now_ns, id),
            _ => self.launch(id),
        }
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
        let is_late = !proc.phase.is_alive();
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
        if is_late {
            return;
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
        let reason = format!("did not start within {} s", self.start_timeout_ns / 1_000_000_000);
        let incarnation = proc.incarnation;
        if proc.pid.is_none() {
            // A template that stands still answers nothing, and there is no process whose end would tell. Should it be made yet,
            // it is killed.
            proc.signal = Some(Signal::Kill);
            self.launch_failed(now_ns, id, incarnation, reason, String::new());
        } else if proc.ending.is_none() {
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
}
