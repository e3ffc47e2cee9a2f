//! What lets one process reach another's memory, and what stands in the way.
//!
//! The kernel lets a process reach another's memory when it might trace it: the same user, not marked undumpable, and
//! as Yama's ptrace scope says, where there is Yama. The order in which a way is looked for:
//!
//! 1. The calls as they are: scope 0, no Yama, or `CAP_SYS_PTRACE`.
//! 2. The calls, after the owner has admitted the reader. In scope 1, the default of several distributions, a process
//!    may name one other process that, with all its descendants, may trace it. Named is the narrowest that covers all
//!    readers, and never the whole machine.
//! 3. The owner's `/proc/self/mem`, handed over: its descriptor works in every scope, for another user and where a
//!    filter forbids the calls, because it was the owner who opened it.
//! 4. None: the caller has to send the bytes through a socket, and to say why.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::process::{PTracer, Pid};

use super::vm::{Process, Way};

#[cfg(test)]
mod tests;

const SCOPE_FILE: &str = "/proc/sys/kernel/yama/ptrace_scope";

/// Who may trace whom, beyond what users and capabilities say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// No Yama, or it is off.
    Anyone,
    /// Ancestors, and who was named.
    Related,
    /// Who has `CAP_SYS_PTRACE`.
    Administrator,
    /// Nobody.
    Nobody,
}

impl Scope {
    /// The machine's.
    pub fn current() -> Self {
        fs::read_to_string(SCOPE_FILE).map_or(Self::Anyone, |text| Self::of(&text))
    }

    fn of(text: &str) -> Self {
        match text.trim() {
            "1" => Self::Related,
            "2" => Self::Administrator,
            "3" => Self::Nobody,
            _ => Self::Anyone,
        }
    }
}

/// No way was found.
#[derive(Debug)]
pub enum NoWay {
    /// The owner has ended.
    Lost,
    /// Not allowed; the process is given back, for another try with a descriptor.
    Forbidden {
        /// The owner.
        process: Process,
        /// What stands in the way and what to do about it.
        message: String,
    },
}

impl fmt::Display for NoWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost => f.write_str("the buffer's owner has ended"),
            Self::Forbidden { message, .. } => f.write_str(message),
        }
    }
}

/// Find a way to a process's memory by trying: one byte at an address of a buffer is read. `memory` is the owner's
/// descriptor from [`own_memory`], if it gave one.
///
/// # Errors
///
/// [`NoWay`]: forbidden, or the owner has ended.
pub fn choose(process: Process, address: usize, memory: Option<OwnedFd>) -> Result<Way, NoWay> {
    let calls = Way::Calls(process);
    let error = match calls.peek(address) {
        Err(error) if is_forbidden(&error) => error,
        // A hole is the buffer's affair.
        _ => {
            return if calls.process().is_alive() {
                Ok(calls)
            } else {
                Err(NoWay::Lost)
            };
        }
    };
    let Way::Calls(process) = calls else {
        return Err(NoWay::Lost);
    };
    if !process.is_alive() {
        return Err(NoWay::Lost);
    }
    let Some(memory) = memory else {
        let message = explain(&process, &error);
        return Err(NoWay::Forbidden { process, message });
    };
    let descriptor = Way::Descriptor(process, memory);
    match descriptor.peek(address) {
        Err(error) if is_forbidden(&error) => {
            let message = explain(descriptor.process(), &error);
            match descriptor {
                Way::Descriptor(process, _) | Way::Calls(process) => {
                    Err(NoWay::Forbidden { process, message })
                }
            }
        }
        _ => Ok(descriptor),
    }
}

fn is_forbidden(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EPERM | libc::EACCES | libc::ENOSYS)
    )
}

/// What stands in the way, as far as it can be seen from here.
fn explain(process: &Process, error: &io::Error) -> String {
    let pid = process.pid().as_raw_nonzero();
    let own = rustix::process::geteuid().as_raw();
    let owner = fs::metadata(format!("/proc/{pid}")).map(|about| about.uid());
    let why = match (owner, Scope::current()) {
        (Ok(owner), _) if owner != own && own != 0 => {
            format!("it belongs to user {owner} and this process to user {own}; run both as one user")
        }
        (_, Scope::Related) => "Yama's ptrace scope is 1 and the owner could not name this process; set \
             kernel.yama.ptrace_scope=0, or give CAP_SYS_PTRACE"
            .to_owned(),
        (_, Scope::Administrator) => "Yama's ptrace scope is 2, for administrators alone; set \
             kernel.yama.ptrace_scope=1, or give CAP_SYS_PTRACE"
            .to_owned(),
        (_, Scope::Nobody) => {
            "Yama's ptrace scope is 3, which forbids it to everybody until the machine is started anew"
                .to_owned()
        }
        (_, Scope::Anyone) => {
            "a seccomp filter forbids it, or the owner is marked as not dumpable; in a container \
             add the capability SYS_PTRACE"
                .to_owned()
        }
    };
    format!(
        "the memory of process {pid} cannot be reached directly ({error}): {why}; memory from roost.rdma.empty() needs \
         no such right"
    )
}

/// This process's own memory as a file, to be handed to a reader that has no other way. Who has it can read and
/// change everything in this process, as one who may trace it can.
///
/// # Errors
///
/// When this process is marked as not dumpable, or /proc is not there.
pub fn own_memory() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/proc/self/mem", flags, Mode::empty())?)
}

/// The readers that this process has admitted.
static ADMITTED: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Let a reader reach this process's memory by the calls, where Yama asks that it be named. Whether that was enough,
/// the reader finds out by trying. True when something was changed.
pub fn admit(reader: Pid) -> bool {
    if Scope::current() != Scope::Related {
        return false;
    }
    let mut admitted = ADMITTED.lock().unwrap_or_else(PoisonError::into_inner);
    // Those that have ended narrow nothing any more.
    admitted.retain(|&pid| pid != reader && parent_of(pid).is_some());
    admitted.push(reader);
    let Some(named) = common_ancestor(&admitted, parent_of) else {
        admitted.pop();
        return false;
    };
    rustix::process::set_ptracer(PTracer::ProcessID(named)).is_ok()
}

/// The narrowest process that all of these descend from, or are; none when that is the whole machine.
fn common_ancestor(pids: &[Pid], parent_of: impl Fn(Pid) -> Option<Pid>) -> Option<Pid> {
    // Each line from the process upwards, without the first of all, which everything descends from.
    let line = |pid: Pid| -> Vec<Pid> {
        std::iter::successors(Some(pid), |&pid| parent_of(pid))
            .take_while(|&pid| pid != Pid::INIT)
            .collect()
    };
    let lines: Vec<Vec<Pid>> = pids.iter().map(|&pid| line(pid)).collect();
    let (first, others) = lines.split_first()?;
    let covers_all = |pid: &&Pid| others.iter().all(|line| line.contains(pid));
    first.iter().find(covers_all).copied()
}

fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    parse_parent(&stat)
}

/// The parent's number in a line of `/proc/PID/stat`, whose second field is a name in parentheses with anything in it.
fn parse_parent(stat: &str) -> Option<Pid> {
    let (_, fields) = stat.rsplit_once(')')?;
    let parent = fields.split_ascii_whitespace().nth(1)?;
    Pid::from_raw(parent.parse().ok()?)
}
