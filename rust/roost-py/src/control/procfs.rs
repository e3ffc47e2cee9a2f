//! What `/proc` says about a process.

use std::fs;
use std::path::{Path, PathBuf};

use roost_core::control::Exit;

/// The part of `/proc/…/stat` that is needed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) state: u8,
    pub(super) parent: u32,
    pub(super) group: u32,
    pub(super) session: u32,
    flags: u64,
    /// Start time in clock ticks since boot: with the process id, a name that is not reused.
    pub(super) start: u64,
    /// Set as soon as the end is decided, where it is not zero; long before a busy machine gets around to it.
    exit_status: i32,
}

/// The thread, of a process the first, has entered `exit`: no instruction of its program runs in it any more.
const FLAG_EXITING: u64 = 0x4;

impl Stat {
    pub(super) fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Of a thread of this process.
    fn of_thread(thread: &str) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/self/task/{thread}/stat")).ok()?)
    }

    fn parse(text: &[u8]) -> Option<Self> {
        // The name of the program, in brackets, may hold anything; what follows the last bracket is fixed.
        let end = text.iter().rposition(|&byte| byte == b')')?;
        let fields: Vec<&str> = std::str::from_utf8(&text[end + 1..])
            .ok()?
            .split_ascii_whitespace()
            .collect();
        // The first of them is field 3 of proc(5).
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            state: *field(3)?.as_bytes().first()?,
            parent: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            session: field(6)?.parse().ok()?,
            flags: field(9)?.parse().ok()?,
            start: field(22)?.parse().ok()?,
            exit_status: field(52).and_then(|text| text.parse().ok()).unwrap_or(0),
        })
    }

    /// Whether a signal or a debugger has stopped it.
    pub(super) fn is_halted(&self) -> bool {
        matches!(self.state, b'T' | b't')
    }

    pub(super) fn is_zombie(&self) -> bool {
        matches!(self.state, b'Z' | b'X')
    }

    /// Whether its program will not run again: its main thread has ended, or all of it was told to.
    pub(super) fn is_exiting(&self) -> bool {
        self.is_zombie() || self.flags & FLAG_EXITING != 0 || self.exit_status != 0
    }

    /// How it ends, when it is ending.
    pub(super) fn exit(&self) -> Exit {
        Exit::from_wait_status(self.exit_status)
    }

    /// Whether that is certain: zero is also what stands there before the end is decided.
    pub(super) fn is_final(&self) -> bool {
        self.is_zombie() || self.exit_status != 0
    }
}

/// The processes of this machine, as far as they can be seen.
pub(super) fn processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

/// Threads of this process. One that was joined may be listed for a moment longer: those that are ending do not count.
pub(super) fn threads() -> usize {
    fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .filter_map(|entry| Stat::of_thread(entry.ok()?.file_name().to_str()?))
        .filter(|stat| !stat.is_exiting())
        .count()
}

/// Whether the environment that a process was started with, or that it has put in its place, has this variable.
pub(super) fn has_variable(pid: u32, name_and_value: &[u8]) -> bool {
    let Ok(environ) = fs::read(format!("/proc/{pid}/environ")) else {
        return false;
    };
    environ
        .split(|&byte| byte == 0)
        .any(|variable| variable == name_and_value)
}

/// How often the kernel's memory killer struck in our control group.
#[derive(Debug)]
pub(super) struct OomKills {
    path: PathBuf,
    seen: u64,
}

impl OomKills {
    /// The counter of this process's control group, which its procs share; none where there are no such groups.
    pub(super) fn find() -> Option<Self> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let candidates = groups.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, group) = rest.split_once(':')?;
            let group = group.trim_start_matches('/');
            match controllers {
                "" => Some(Path::new("/sys/fs/cgroup").join(group).join("memory.events")),
                "memory" => Some(
                    Path::new("/sys/fs/cgroup/memory")
                        .join(group)
                        .join("memory.oom_control"),
                ),
                _ => None,
            }
        });
        candidates.into_iter().find_map(|path| {
            Some(Self {
                seen: Self::read(&path)?,
                path,
            })
        })
    }

    /// Whether it struck since the last call.
    pub(super) fn rose(&mut self) -> bool {
        let now = Self::read(&self.path).unwrap_or(self.seen);
        std::mem::replace(&mut self.seen, now) < now
    }

    fn read(path: &Path) -> Option<u64> {
        let text = fs::read_to_string(path).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("oom_kill "))?
            .trim()
            .parse()
            .ok()
    }
}
