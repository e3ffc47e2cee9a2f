//! What Python and the control thread share.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use roost_core::control::{ToAgent, ToClient};
use roost_core::id::{HostId, Incarnation, JobId, ProcId};
use roost_core::trust::Secure;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::links::LinkEnd;
use super::net::Wanted;
use super::socket;
use crate::node::Board;
use crate::peer::Letter;

/// Commands that wait for the control thread. It takes them at once; so many only wait when it is stuck.
const COMMANDS_MAX: usize = 1 << 16;

/// From Python to the control thread.
#[derive(Debug)]
pub(super) enum Command {
    /// For the agent, and whether its descriptor lies in the hand-over socket.
    Message(ToAgent, HasDescriptor),
    /// Tell the agent when Python's loop has not moved for this long; the signal has Python write down its stack.
    Watch { after_ns: u64, signal: i32 },
    /// After so much silence the driver gives another host up.
    Silence(u64),
    /// Where the actors of this process are to be seen.
    Show(Board),
    /// Where links to memory go; the socket for them lies in the hand-over socket.
    Links(LinkEnd),
    /// A data lane to another host has no connection, and needs one.
    Redial(ProcId),
    /// Frames that go along the tree of hosts.
    Post(Vec<Letter>),
    /// Call a host.
    Attach { number: u64, wanted: Box<Wanted> },
    /// Let a host end its work for this job.
    Detach {
        number: u64,
        reason: String,
        shutdown: bool,
    },
    /// Whoever gave a host knows that it is not there any more.
    Lose { number: u64, reason: String },
    /// End everything, until then at the latest.
    Close { until_ns: u64 },
}

/// Whether a descriptor lies in the hand-over socket for what is said.
pub(super) type HasDescriptor = bool;

/// From the control thread to Python.
#[derive(Debug)]
pub(super) struct Notice {
    pub(super) what: What,
    pub(super) has_descriptor: HasDescriptor,
}

/// What Python is told.
#[derive(Debug)]
pub(super) enum What {
    /// By the agent.
    Message(ToClient),
    /// A data lane to a proc of another host; its socket comes with it.
    Lane(Box<FarEnd>),
    /// Of a host that was asked for.
    Host(Box<HostNews>),
    /// Of the station of this host's agent.
    Station(StationNews),
    /// Frames that have come along the tree of hosts.
    Letters(Vec<Letter>),
    /// What to add to this host's clock to get the root's.
    Clock { offset_ns: i64 },
}

impl From<ToClient> for What {
    fn from(message: ToClient) -> Self {
        Self::Message(message)
    }
}

/// This process's end of a data lane to another host, without its socket.
#[derive(Debug)]
pub(super) struct FarEnd {
    pub(super) proc: ProcId,
    pub(super) incarnation: Incarnation,
    pub(super) slot: Option<u32>,
    pub(super) secure: Secure,
    pub(super) session: u64,
    pub(super) connection: u64,
    pub(super) dials: bool,
}

/// What has become of a host that Python has numbered.
#[derive(Debug)]
pub(super) struct HostNews {
    pub(super) number: u64,
    pub(super) status: &'static str,
    pub(super) host: Option<HostId>,
    /// Names and texts, for people and for Python.
    pub(super) details: Vec<(&'static str, String)>,
}

/// What has happened at the station.
#[derive(Debug)]
pub(super) enum StationNews {
    Listening {
        address: String,
    },
    Client {
        job: JobId,
        from: String,
    },
    ClientEnded {
        job: JobId,
        reason: String,
    },
    /// It listens no more.
    Done,
}

/// The queues between the two. No descriptor is in here: whoever drops the last reference would close it, and the two
/// sides have different file tables.
#[derive(Debug, Default)]
pub(super) struct Shared {
    notices: Mutex<VecDeque<Notice>>,
    commands: Mutex<VecDeque<Command>>,
    ended: Count,
    /// How often Python said that this proc is up, as a spare and as a rank, and how often the host's agent was told.
    ups: AtomicU64,
    ups_told: Count,
    /// How often the thread asked whether Python's loop moves, and which of these questions was answered.
    asked: AtomicU64,
    answered: AtomicU64,
}

/// How often something has happened, which is waited for. It never falls: who wakes up late has missed nothing.
#[derive(Debug, Default)]
struct Count(Mutex<u64>, Condvar);

impl Count {
    fn add(&self) {
        *lock(&self.0) += 1;
        self.1.notify_all();
    }

    /// Gives whether it has happened so often in time.
    fn wait(&self, times: u64, timeout: Duration) -> bool {
        let (guard, _) = self
            .1
            .wait_timeout_while(lock(&self.0), timeout, |count| *count < times)
            .unwrap_or_else(PoisonError::into_inner);
        *guard >= times
    }
}

/// One side's descriptors for it, in its own table.
#[derive(Debug)]
pub(super) struct Ends {
    /// Readable when there are notices.
    pub(super) event: OwnedFd,
    /// Readable when there are commands.
    pub(super) wake: OwnedFd,
    /// Carries descriptors between the two tables.
    pub(super) handover: OwnedFd,
}

impl Ends {
    /// Python's ends, and the far end of the hand-over socket; the thread copies the two others.
    pub(super) fn new() -> Result<(Self, OwnedFd), Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let (handover, far) = socket::packet_pair()?;
        Ok((
            Self {
                event: eventfd(0, flags)?,
                wake: eventfd(0, flags)?,
                handover,
            },
            far,
        ))
    }

    /// The same once more, in the same table.
    pub(super) fn copy(&self) -> Result<Self, Errno> {
        let copy = |end: &OwnedFd| fcntl_dupfd_cloexec(end, 0);
        Ok(Self {
            event: copy(&self.event)?,
            wake: copy(&self.wake)?,
            handover: copy(&self.handover)?,
        })
    }
}

/// There is no room for another command.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Full;

impl Shared {
    /// Python's side: give commands, which the thread takes together.
    pub(super) fn commands(&self, ends: &Ends, more: impl IntoIterator<Item = Command>) -> Result<(), Full> {
        let mut commands = lock(&self.commands);
        if commands.len() >= COMMANDS_MAX {
            return Err(Full);
        }
        let slept = commands.is_empty();
        commands.extend(more);
        if slept && !commands.is_empty() {
            signal(&ends.wake);
        }
        Ok(())
    }

    /// Python's side: take all notices. That it does shows that its loop moves.
    pub(super) fn take_notices(&self, ends: &Ends) -> VecDeque<Notice> {
        self.answered
            .store(self.asked.load(Ordering::Relaxed), Ordering::Relaxed);
        let mut notices = lock(&self.notices);
        reset(&ends.event);
        std::mem::take(&mut *notices)
    }

    /// Python's side: wait for the thread's end. Gives whether it came.
    pub(super) fn wait_ended(&self, timeout: Duration) -> bool {
        self.ended.wait(1, timeout)
    }

    /// Python's side: this proc is about to say that it is up. Gives how often it then has.
    pub(super) fn count_up(&self) -> u64 {
        self.ups.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Python's side: wait until the agent was told so often that this proc is up. Gives whether it was.
    pub(super) fn wait_up_told(&self, times: u64, timeout: Duration) -> bool {
        self.ups_told.wait(times, timeout)
    }

    /// The thread's side: take all commands.
    pub(super) fn take_commands(&self, ends: &Ends) -> VecDeque<Command> {
        let mut commands = lock(&self.commands);
        reset(&ends.wake);
        std::mem::take(&mut *commands)
    }

    /// The thread's side: give a notice.
    pub(super) fn notify(&self, ends: &Ends, notice: Notice) {
        let mut notices = lock(&self.notices);
        notices.push_back(notice);
        if notices.len() == 1 {
            signal(&ends.event);
        }
    }

    /// The thread's side: whether the last question was answered.
    pub(super) fn moves(&self) -> bool {
        self.asked.load(Ordering::Relaxed) == self.answered.load(Ordering::Relaxed)
    }

    /// The thread's side: ask whether the loop moves.
    pub(super) fn ask(&self, ends: &Ends) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        signal(&ends.event);
    }

    /// The thread's side: it has ended.
    pub(super) fn end(&self) {
        self.ended.add();
    }

    /// The thread's side: the agent was told that this proc is up.
    pub(super) fn up_told(&self) {
        self.ups_told.add();
    }
}

/// A panic in the control thread must not become one in Python's; what the lock guards is whole between any two lines.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn signal(event: &OwnedFd) {
    // It fails only when the counter is full, and then the other side is awake already.
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

fn reset(event: &OwnedFd) {
    // It fails only when there was no signal, which is what is wanted.
    let _ = rustix::io::read(event, &mut [0_u8; 8]);
}
