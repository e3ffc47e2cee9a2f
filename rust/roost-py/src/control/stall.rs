//! Whether Python's loop moves: asked now and then, and answered by the loop's next look at its notices. A loop that is
//! stuck (a blocking call, the GIL held, a long collection) is told of with the stack that it is stuck in, and is not dead.

use std::os::fd::OwnedFd;
use std::ptr;

use roost_core::control::ToAgent;
use rustix::fs::{SeekFrom, fstat, ftruncate, seek};

use super::clock::now_ns;
use super::door::Door;
use super::memory;

/// Questions, at least, before a loop counts as stuck. One alone proves nothing: the whole process may have been stopped
/// meanwhile.
const QUESTIONS_MIN: u64 = 6;

/// Between two questions at most: a stall is told of no later than this after its time.
const PAUSE_MAX_NS: u64 = 750_000_000;

/// What is told of a stack; an interpreter with many threads writes more.
const STACK_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Stall {
    after_ns: u64,
    pause_ns: u64,
    next_ns: u64,
    unanswered: u64,
    is_told: bool,
    /// Has the interpreter write its threads' stacks to `stacks`.
    signal: i32,
    stacks: OwnedFd,
}

impl Stall {
    pub(super) fn new(after_ns: u64, signal: i32, stacks: OwnedFd) -> Self {
        Self {
            after_ns,
            pause_ns: (after_ns / QUESTIONS_MIN).clamp(1, PAUSE_MAX_NS),
            next_ns: now_ns(),
            unanswered: 0,
            is_told: false,
            signal,
            stacks,
        }
    }

    /// When it is to be looked at again.
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// Look, when it is time. What the agent is to hear.
    pub(super) fn look(&mut self, door: &Door) -> Option<ToAgent> {
        let now_ns = now_ns();
        if now_ns < self.next_ns {
            return None;
        }
        self.next_ns = now_ns + self.pause_ns;
        if door.moves() {
            self.unanswered = 0;
            door.ask();
            return std::mem::take(&mut self.is_told).then_some(ToAgent::Resumed);
        }
        self.unanswered += 1;
        if self.unanswered < self.after_ns.div_ceil(self.pause_ns)
            || std::mem::replace(&mut self.is_told, true)
        {
            return None;
        }
        let seconds = std::time::Duration::from_nanos(self.after_ns).as_secs_f64();
        Some(ToAgent::Stalled {
            reason: format!("its event loop has not moved for {seconds:.3} s"),
            stack: self.stack(),
        })
    }

    /// Where the threads of this process are. The interpreter's handler for the signal runs in this very thread, so that no
    /// system call of the user's is interrupted; it needs no GIL.
    fn stack(&self) -> String {
        if ftruncate(&self.stacks, 0).is_err() || seek(&self.stacks, SeekFrom::Start(0)).is_err() {
            return String::new();
        }
        // SAFETY: `set` is made empty before it is read. Python has installed a handler for this signal before it gave us its
        // number, and that handler is made for being called anywhere.
        unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, self.signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut());
            libc::raise(self.signal);
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
        }
        let size = fstat(&self.stacks).map_or(0, |stat| usize::try_from(stat.st_size).unwrap_or(0));
        let bytes = memory::read(&self.stacks, size.min(STACK_BYTES_MAX)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
