//! A death, for people.

use super::Seen;
use super::proc::Proc;
use crate::control::{Death, DeathKind, Exit};
use crate::limits::EARLIER_STDERR_BYTES_MAX;

/// A death for the history: the end of its stderr is enough.
pub(super) fn short(death: &Death) -> Death {
    let mut death = death.clone();
    let mut from = death.stderr.len().saturating_sub(EARLIER_STDERR_BYTES_MAX);
    while !death.stderr.is_char_boundary(from) {
        from += 1;
    }
    death.stderr.drain(..from);
    death
}

/// One death, for people.
pub(super) fn describe(proc: &Proc, seen: &Seen, has_place: bool) -> Death {
    let exit = seen.exit.or(seen.likely);
    let was_up = proc.times.up_ns.is_some();
    let how = how(exit, seen.oom);
    let because = |how: String| match &proc.kill_reason {
        None => how,
        Some(reason) => format!("{how}: {reason}"),
    };
    // What was to start again, and now cannot, was not stopped.
    let ending = proc.ending.as_ref().filter(|one| has_place || !one.restart);
    let (kind, reason) = if let Some(ending) = ending {
        (DeathKind::Stopped, ending.reason.clone())
    } else if let Some(reason) = &proc.lost {
        (DeathKind::Lost, reason.clone())
    } else if let Some(reason) = &proc.start_failure {
        (DeathKind::Start, reason.clone())
    } else if !was_up {
        (DeathKind::Start, because(format!("{how} before it was ready")))
    } else {
        let kind = match exit {
            Some(Exit::Signal(_)) if seen.oom => DeathKind::Oom,
            Some(Exit::Signal(_)) => DeathKind::Signal,
            Some(Exit::Code(_)) | None => DeathKind::Exit,
        };
        (kind, because(how))
    };
    Death {
        kind,
        exit,
        reason,
        stderr: seen.stderr.clone(),
        pid: proc.pid,
        started: None,
        said: None,
        times: proc.times,
        forced: exit.is_some_and(|exit| proc.ending.as_ref().is_some_and(|ending| ending.forced(exit))),
    }
}

/// The names of the signals that end processes; the same numbers on every Linux that has GPUs.
fn signal_name(number: i32) -> Option<&'static str> {
    Some(match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        10 => "SIGUSR1",
        11 => "SIGSEGV",
        12 => "SIGUSR2",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        _ => return None,
    })
}

fn how(exit: Option<Exit>, oom: bool) -> String {
    match exit {
        None => "ended, nobody could say how".to_owned(),
        Some(Exit::Code(code)) => format!("exited with code {code}"),
        Some(Exit::Signal(9)) if oom => "killed by the kernel's memory killer (SIGKILL)".to_owned(),
        Some(Exit::Signal(number)) => match signal_name(number) {
            Some(name) => format!("killed by signal {number} ({name})"),
            None => format!("killed by signal {number}"),
        },
    }
}
