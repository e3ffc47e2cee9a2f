//! Ends what procs leave behind, on a thread of its own: a search through `/proc` may take milliseconds.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{WaitId, WaitIdOptions, waitid};
use std::os::fd::{AsFd, OwnedFd};

use crate::control::descendants::{self, Target};

/// Searches that may wait. One search serves all that wait, so more never helps.
const WAITING_MAX: usize = 4096;

const STACK_BYTES: usize = 256 << 10;

/// Before a search: whoever waits for the dead hears of it first, what dies together is searched for together, and one that
/// comes back is there before. On a busy host the search would take the processor that all of them need.
const PAUSE: Duration = Duration::from_millis(50);

/// How long a killed process may take to be reaped.
const REAP_WAIT: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

#[derive(Debug)]
pub(super) struct Sweeper {
    targets: Option<SyncSender<Target>>,
    thread: Option<JoinHandle<()>>,
    /// What found no room: handed over with the next.
    late: Vec<Target>,
}

impl Sweeper {
    /// Its thread shares the file table of the control thread.
    pub(super) fn start() -> io::Result<Self> {
        let (targets, receiver) = sync_channel(WAITING_MAX);
        let thread = Builder::new()
            .name("roost-sweeper".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || sweep(&receiver))?;
        Ok(Self {
            targets: Some(targets),
            thread: Some(thread),
            late: Vec::new(),
        })
    }

    /// End the descendants of this one.
    pub(super) fn add(&mut self, target: Target) {
        self.late.push(target);
        while let (Some(target), Some(targets)) = (self.late.pop(), &self.targets) {
            match targets.try_send(target) {
                Ok(()) => {}
                Err(TrySendError::Full(target)) => return self.late.push(target),
                // The thread has failed: the marks are swept by the procs themselves when the driver ends.
                Err(TrySendError::Disconnected(_)) => return,
            }
        }
    }

    /// Wait for all searches.
    pub(super) fn finish(&mut self) {
        if let Some(targets) = self.targets.take() {
            for target in self.late.drain(..) {
                let _ = targets.send(target);
            }
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn sweep(targets: &Receiver<Target>) {
    while let Ok(first) = targets.recv() {
        let mut all = vec![first];
        let begin = Instant::now();
        // Until the pause is over, or nobody is left who could add to it.
        while let Ok(target) = targets.recv_timeout(PAUSE.saturating_sub(begin.elapsed())) {
            all.push(target);
        }
        reap(&descendants::kill(&all, None));
    }
}

/// Orphans of procs that the driver started itself come to the driver: nobody else takes their status.
fn reap(killed: &[OwnedFd]) {
    for pidfd in killed {
        let mut set = [PollFd::new(pidfd, PollFlags::IN)];
        if matches!(poll(&mut set, Some(&REAP_WAIT)), Ok(1..)) {
            // It fails for what is not our child, which its own parent reaps.
            let _ = waitid(
                WaitId::PidFd(pidfd.as_fd()),
                WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
            );
        }
    }
}
