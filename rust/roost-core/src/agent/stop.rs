//! Ending procs: in order, and by force.

use super::proc::{Ending, Phase, Proc};
use super::{Agent, Output, Seen, Signal};
use crate::control::{Patience, Status, ToClient};
use crate::id::ProcId;

impl Agent {
    /// End it for good, whatever it is doing. A second stop only shortens the first.
    pub(super) fn stop(&mut self, now_ns: u64, id: ProcId, reason: &str, patience: Patience) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        match &mut proc.phase {
            Phase::Over { .. } => {}
            Phase::Queued | Phase::Asking { .. } => self.end_unstarted(now_ns, id, reason),
            Phase::Down { gone, .. } => {
                let gone = *gone;
                self.end_down(now_ns, id, reason, gone);
            }
            Phase::Dying { .. } => proc.ending = Some(Ending::new(now_ns, reason, patience, false)),
            Phase::Starting { .. } | Phase::Up => self.end_running(now_ns, id, reason, (patience, false)),
        }
    }

    /// End it, then start the next incarnation. A stop that is under way wins.
    pub(super) fn restart(&mut self, now_ns: u64, id: ProcId, reason: &str, patience: Patience) {
        if self.closed {
            return;
        }
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        match &mut proc.phase {
            Phase::Queued | Phase::Asking { .. } | Phase::Dying { .. } => {}
            Phase::Down { at_ns, .. } => *at_ns = now_ns,
            Phase::Over { gone, .. } => {
                let (gone, owner) = (*gone, proc.owner);
                if self.hears(owner) {
                    self.begin_again(now_ns, id, reason, gone);
                }
            }
            Phase::Starting { .. } | Phase::Up => self.end_running(now_ns, id, reason, (patience, true)),
        }
    }

    /// SIGKILL at once. What follows is the policy's to decide.
    pub(super) fn kill(&mut self, id: ProcId, reason: Option<&str>) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        if proc.phase.is_alive() {
            proc.kill_reason = reason.map(str::to_owned);
            self.signal(id, Signal::Kill);
        }
    }

    pub(super) fn close(&mut self, now_ns: u64) {
        self.closed = true;
        let all: Vec<ProcId> = self.procs.keys().copied().collect();
        for id in all {
            self.stop(now_ns, id, "the job ended", Patience::NONE);
        }
    }

    /// Send the signals of a stop whose times have come.
    pub(super) fn escalate(&mut self, now_ns: u64, id: ProcId) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        if !proc.phase.is_alive() {
            return;
        }
        let Some(ending) = &mut proc.ending else { return };
        let signal = if ending.kill_at_ns <= now_ns {
            Signal::Kill
        } else if ending.terminate_at_ns <= now_ns {
            Signal::Terminate
        } else {
            return;
        };
        if ending.sent < Some(signal) {
            ending.sent = Some(signal);
            self.signal(id, signal);
        }
    }

    /// Signal its process, as soon as there is one.
    pub(super) fn signal(&mut self, id: ProcId, signal: Signal) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        proc.signal = proc.signal.max(Some(signal));
        if proc.pid.is_some() {
            let output = Output::Signal {
                proc: id,
                incarnation: proc.incarnation,
                signal,
            };
            self.put_at(id, output);
        }
    }

    fn end_running(&mut self, now_ns: u64, id: ProcId, reason: &str, (patience, restart): (Patience, bool)) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        let new = Ending::new(now_ns, reason, patience, restart);
        let ending = match &mut proc.ending {
            Some(ending) => {
                ending.restart &= restart;
                ending.terminate_at_ns = ending.terminate_at_ns.min(new.terminate_at_ns);
                ending.kill_at_ns = ending.kill_at_ns.min(new.kill_at_ns);
                ending
            }
            None => proc.ending.insert(new),
        };
        let (reason, deadline_ns) = (ending.reason.clone(), ending.terminate_at_ns);
        self.send(id, ToClient::Stop { reason, deadline_ns });
        self.escalate(now_ns, id);
    }

    /// It has no process: nothing needs to end.
    pub(super) fn end_unstarted(&mut self, now_ns: u64, id: ProcId, reason: &str) {
        self.end_down(now_ns, id, reason, true);
    }

    fn end_down(&mut self, now_ns: u64, id: ProcId, reason: &str, gone: bool) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        proc.ending = Some(Ending::new(now_ns, reason, Patience::NONE, false));
        proc.times.died_ns = proc.times.died_ns.or(Some(now_ns));
        proc.phase = Phase::Dying {
            seen: Seen::default(),
            until_ns: now_ns,
            gone,
        };
        self.tell_death(now_ns, id);
    }

    fn begin_again(&mut self, now_ns: u64, id: ProcId, reason: &str, gone: bool) {
        let Some(proc) = self.procs.get_mut(id) else {
            return;
        };
        proc.phase = Phase::Down { at_ns: now_ns, gone };
        proc.ending = None;
        proc.history = crate::restart::History::default();
        self.announce(
            id,
            &Status::Restarting {
                delay_ns: 0,
                reason: reason.to_owned(),
            },
        );
        self.start_next(now_ns, id);
        // Unless it has failed again, for want of a host.
        let is_over = |proc: &Proc| matches!(proc.phase, Phase::Over { .. });
        if !self.procs.get(&id).is_some_and(is_over) {
            self.begin_spares_again(now_ns, id);
        }
    }
}

impl Ending {
    pub(super) fn new(now_ns: u64, reason: &str, patience: Patience, restart: bool) -> Self {
        let terminate_at_ns = now_ns.saturating_add(patience.grace_ns);
        Self {
            reason: reason.to_owned(),
            restart,
            terminate_at_ns,
            kill_at_ns: terminate_at_ns.saturating_add(patience.sigterm_ns),
            sent: None,
        }
    }
}
