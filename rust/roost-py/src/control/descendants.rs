//! Ending what a proc leaves behind: its process group, its session, and what carries its mark, wherever it went.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::process;

use roost_core::id::{Incarnation, JobId, ProcId};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::procfs::{self, Stat};

/// Rounds of search. Each ends everything that it finds, so that only what forks in between needs another.
const ROUNDS_MAX: usize = 10;

/// Whose descendants are meant.
#[derive(Debug, Clone)]
pub(super) struct Target {
    /// The variable that they carry.
    pub(super) mark: String,
    /// The proc's process: also the number of its group and its session.
    pub(super) pid: Option<u32>,
}

/// The variable by which the descendants of one incarnation are known.
pub(super) fn mark(job: JobId, proc: Option<ProcId>, incarnation: Incarnation) -> String {
    // Always of one length, so that the template can write a proc's over its own.
    format!(
        "ROOST_PROC={job}/{:016x}/{:08x}",
        proc.map_or(0, ProcId::get),
        incarnation.0
    )
}

/// Kill all descendants of these, but not `spare`. Gives the descriptors of those that it killed.
pub(super) fn kill(targets: &[Target], spare: Option<u32>) -> Vec<OwnedFd> {
    let mut killed = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let found = find(targets, spare);
        if found.is_empty() {
            break;
        }
        for (pid, stat) in found {
            killed.extend(kill_exactly(pid, &stat));
        }
    }
    killed
}

fn find(targets: &[Target], spare: Option<u32>) -> Vec<(u32, Stat)> {
    let own = process::id();
    let mut all: HashMap<u32, (Stat, bool)> = HashMap::new();
    for pid in procfs::processes().filter(|&pid| pid != own && Some(pid) != spare) {
        let Some(stat) = Stat::of(pid).filter(|stat| !stat.is_zombie()) else {
            continue;
        };
        let belongs = targets.iter().any(|target| {
            target
                .pid
                .is_some_and(|leader| [stat.group, stat.session, stat.parent].contains(&leader))
                || procfs::has_variable(pid, target.mark.as_bytes())
        });
        all.insert(pid, (stat, belongs));
    }
    // Children of those found, however they were started.
    loop {
        let more: Vec<u32> = all
            .iter()
            .filter(|(_, (stat, belongs))| {
                !belongs && all.get(&stat.parent).is_some_and(|(_, parent)| *parent)
            })
            .map(|(&pid, _)| pid)
            .collect();
        if more.is_empty() {
            break;
        }
        for pid in more {
            all.entry(pid).and_modify(|(_, belongs)| *belongs = true);
        }
    }
    all.into_iter()
        .filter(|(_, (_, belongs))| *belongs)
        .map(|(pid, (stat, _))| (pid, stat))
        .collect()
}

/// Kill the process that was seen, and no other that has its number by now.
fn kill_exactly(pid: u32, seen: &Stat) -> Option<OwnedFd> {
    let number = Pid::from_raw(pid.cast_signed())?;
    let pidfd = pidfd_open(number, PidfdFlags::empty()).ok()?;
    if Stat::of(pid)?.start != seen.start {
        return None;
    }
    pidfd_send_signal(&pidfd, Signal::KILL).ok()?;
    Some(pidfd)
}
