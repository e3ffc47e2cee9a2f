//! Seeing procs end.
//!
//! The first tombstone to fall is the death; the pidfd, up to a second later, says that the memory is free. What the
//! proc had said, printed and started is read in between, and only then the agent hears of it.

use std::os::fd::{AsFd, OwnedFd};

use roost_core::agent::{Input, Seen, TemplateId};
use roost_core::control::Exit;
use roost_core::id::{Incarnation, JobId, ProcId};
use roost_core::limits::STARTED_SLOTS;
use rustix::event::epoll;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_send_signal, waitid};

use super::launch::Running;
use super::pump::Pump;
use super::{Host, is_readable};
use crate::control::clock::now_ns;
use crate::control::descendants::{self, Target};
use crate::control::memory;
use crate::control::procfs::Stat;
use crate::page;

/// After its tombstone fell a process that ends in order may seem to run for a moment, on another CPU or waiting for one.
/// Longer than this it really does: it has replaced its program (`exec`), and with it what made it a proc.
const CLOSING_NS: u64 = 40_000_000;

/// How often it is looked at meanwhile.
const LOOK_NS: u64 = 500_000;

/// A zombie whose parent was ending too becomes ours within this time.
const UNREAPED_NS: u64 = 5_000_000_000;

#[derive(Debug)]
pub(super) struct Closing {
    proc: ProcId,
    until_ns: u64,
}

#[derive(Debug)]
pub(super) struct Unreaped {
    pub(super) proc: ProcId,
    pub(super) incarnation: Incarnation,
    pub(super) made_as: (ProcId, Incarnation),
    pidfd: OwnedFd,
    until_ns: u64,
}

impl Closing {
    /// A spare has taken a proc's place.
    pub(super) fn follow(&mut self, spare: ProcId, proc: ProcId) {
        if self.proc == spare {
            self.proc = proc;
        }
    }
}

impl Host {
    pub(super) fn tombstone(&mut self, id: ProcId, number: usize) {
        let Some(running) = self.running.get_mut(&id) else {
            return;
        };
        if let Some(tombstone) = running.tombstones[number].take() {
            let _ = epoll::delete(&self.epoll, &tombstone);
        }
        self.ending(id);
    }

    /// A process is ending, or seems to be.
    fn ending(&mut self, id: ProcId) {
        let Some(running) = self.running.get_mut(&id) else {
            return;
        };
        if running.died {
            return;
        }
        let Some(pid) = running.pid else {
            // Its template has not told yet that it was there at all; that is looked at again then.
            return;
        };
        let gone = running.pidfd.as_ref().is_some_and(is_readable);
        let stat = Stat::of(pid);
        let runs = !gone && stat.is_some_and(|stat| !stat.is_exiting());
        let now_ns = now_ns();
        let closing = self.closing.iter().position(|closing| closing.proc == id);
        match closing {
            _ if !runs => {}
            None => {
                self.closing.push(Closing {
                    proc: id,
                    until_ns: now_ns + CLOSING_NS,
                });
                return;
            }
            Some(index) if now_ns < self.closing[index].until_ns => return,
            Some(_) => {}
        }
        closing.map(|index| self.closing.swap_remove(index));
        self.died(id, pid, stat.filter(Stat::is_exiting));
    }

    /// Read what it left, and tell the agent.
    fn died(&mut self, id: ProcId, pid: u32, stat: Option<Stat>) {
        let likely = stat.as_ref().map(Stat::exit);
        // What it said last counts, and what its template says of it. A template tells the status before it reaps, so
        // that it is there when nothing is to be seen of the process any more.
        self.hear(id, usize::MAX);
        if likely.is_none() {
            let templates: Vec<TemplateId> = self.templates.keys().copied().collect();
            for template in templates {
                self.template_readable(template);
            }
        }
        let oom = likely.is_none_or(|exit| exit == Exit::Signal(9)) && self.oom_kills_rose();
        let mark_job = self.config.job;
        let Some(running) = self.running.get_mut(&id) else {
            return;
        };
        running.died = true;
        running.pumps.iter_mut().for_each(Pump::rest);
        if let Some(pidfd) = &running.pidfd {
            // For one that has replaced its program; the others do not notice.
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
        if let Some(group) = Pid::from_raw(pid.cast_signed()) {
            // The number is still taken: the process has not been reaped, or a moment ago.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let incarnation = running.incarnation;
        let [started, said] = last_numbers(running);
        let seen = Seen {
            exit: stat.filter(Stat::is_final).as_ref().map(Stat::exit),
            likely,
            oom,
            stderr: running.pumps[1].tail(),
            started,
            said,
        };
        let mark = mark_of(mark_job, running);
        self.sweeper.add(Target { mark, pid: Some(pid) });
        self.close_lane(id);
        self.inputs.push_back(Input::Died {
            proc: id,
            incarnation,
            seen,
        });
    }

    /// Its pidfd says that it is gone, with its memory.
    pub(super) fn process_ended(&mut self, id: ProcId) {
        self.ending(id);
        let Some(running) = self.drop_running(id) else {
            return;
        };
        let (incarnation, made_as) = (running.incarnation, running.made_as);
        let mark = mark_of(self.config.job, &running);
        let (Some(pid), Some(pidfd)) = (running.pid, running.pidfd) else {
            return;
        };
        // It stays readable for as long as it is kept.
        let _ = epoll::delete(&self.epoll, &pidfd);
        let exit = wait_exit(&pidfd).or_else(|| {
            if running.is_status_told {
                return None;
            }
            // The template's child: it tells the status, and reaps, unless it ends itself.
            self.unreaped.push(Unreaped {
                proc: id,
                incarnation,
                made_as,
                pidfd,
                until_ns: now_ns() + UNREAPED_NS,
            });
            zombie_exit(pid)
        });
        if let Some(exit) = exit {
            self.inputs.push_back(Input::Exited {
                proc: id,
                incarnation,
                exit,
            });
        }
        self.inputs.push_back(Input::Gone {
            proc: id,
            incarnation,
        });
        // Once more: what it forked while it was ending.
        self.sweeper.add(Target { mark, pid: Some(pid) });
    }

    /// A tombstone may have fallen before the template's answer was here.
    pub(super) fn look_at_early_end(&mut self, id: ProcId) {
        let fallen = self
            .running
            .get(&id)
            .is_some_and(|running| running.tombstones.iter().any(Option::is_none));
        if fallen {
            self.ending(id);
        }
    }

    /// Look again at those that seemed to run.
    pub(super) fn look_again(&mut self) {
        let ids: Vec<ProcId> = self.closing.iter().map(|closing| closing.proc).collect();
        for id in ids {
            self.ending(id);
            if self.running.get(&id).is_none_or(|running| running.died) {
                self.closing.retain(|closing| closing.proc != id);
            }
        }
        let now_ns = now_ns();
        self.unreaped.retain(|one| one.until_ns > now_ns);
    }

    pub(super) fn next_look_ns(&self) -> Option<u64> {
        (!self.closing.is_empty()).then(|| now_ns() + LOOK_NS)
    }

    /// Their parent has ended: some are our children now.
    pub(super) fn reap_again(&mut self) {
        let inputs = &mut self.inputs;
        self.unreaped.retain(|one| match wait_exit(&one.pidfd) {
            Some(exit) => {
                inputs.push_back(Input::Exited {
                    proc: one.proc,
                    incarnation: one.incarnation,
                    exit,
                });
                false
            }
            None => true,
        });
    }

    fn oom_kills_rose(&mut self) -> bool {
        self.oom_kills
            .as_mut()
            .is_some_and(crate::control::procfs::OomKills::rose)
    }

    /// The time to end in order is over.
    pub(super) fn kill_rest(&mut self) {
        let ids: Vec<ProcId> = self.running.keys().copied().collect();
        for id in ids {
            let Some(running) = self.drop_running(id) else {
                continue;
            };
            if let Some(pidfd) = &running.pidfd {
                let _ = pidfd_send_signal(pidfd, Signal::KILL);
            }
            let mark = mark_of(self.config.job, &running);
            self.sweeper.add(Target {
                mark,
                pid: running.pid,
            });
        }
    }
}

/// The mark of a process, which what it starts carries too: that stays, whatever it becomes.
fn mark_of(job: JobId, running: &Running) -> String {
    let (proc, incarnation) = running.made_as;
    descendants::mark(job, Some(proc), incarnation)
}

/// The status of a process that has ended, if it is our child.
pub(super) fn wait_exit(pidfd: &OwnedFd) -> Option<Exit> {
    let status = waitid(
        WaitId::PidFd(pidfd.as_fd()),
        WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
    )
    .ok()??;
    status
        .exit_status()
        .map(Exit::Code)
        .or_else(|| status.terminating_signal().map(Exit::Signal))
}

/// The status of a process that has ended and that its parent, whoever that is, has not reaped.
fn zombie_exit(pid: u32) -> Option<Exit> {
    Stat::of(pid).filter(Stat::is_zombie).as_ref().map(Stat::exit)
}

/// Its started page: what it had started and what it had said, by slot, each without the zeros at the end.
fn last_numbers(running: &Running) -> [Vec<u64>; 2] {
    // A page of ours has that length; should it be unreadable, anything may have been started, and be on its way.
    let bytes = memory::read_written(&running.page, page::BYTES as u64)
        .unwrap_or_else(|_| vec![u8::MAX; page::BYTES]);
    let mut started: Vec<u64> = bytes
        .chunks_exact(8)
        .map(|slot| u64::from_le_bytes(slot.try_into().expect("eight bytes")))
        .collect();
    let said = started.split_off(started.len().min(STARTED_SLOTS as usize));
    [started, said].map(|mut counters| {
        let used = counters.iter().rposition(|&counter| counter != 0);
        counters.truncate(used.map_or(0, |last| last + 1));
        counters
    })
}
