//! What callers and the thread share.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use super::near::Near;
use super::summing::SumWanted;
use super::{Backend, Completion, Counts, Notice, Options, Own, Role, Switch, Transfer};
use crate::checksum::Checksum;
use crate::error::Error;
use crate::handle::{Handle, Peer};
use crate::lane::Lane;
use crate::limits::TRANSFERS_MAX;
use crate::local::Moved;
use crate::plan::{self, Misuse, Part};
use crate::region::{Keep, Memory, Region, Regions};
use crate::stamp::Stamps;
use crate::stream::Fault;

/// What the thread is asked to do.
pub(super) enum Command {
    Submit {
        transfer: Transfer,
        token: u64,
    },
    Cancel {
        token: u64,
    },
    /// An update for which somebody may wait is over.
    Updated,
    /// The threads that copy are done with a share of a transfer.
    Moved {
        token: u64,
        share: usize,
        result: Result<Moved, Error>,
    },
    /// A thread has summed this side of a share.
    SummedHere {
        token: u64,
        share: usize,
        result: Result<Vec<u64>, Fault>,
    },
    /// A thread has summed what was asked for over a link.
    SummedFor {
        link: u64,
        slot: u8,
        sum: Box<Checksum>,
        wanted: SumWanted,
        result: Result<Vec<u64>, Fault>,
    },
    /// Nobody has the engine any more.
    Stop,
    Drop {
        region: u64,
        token: u64,
    },
    Adopt {
        peer: Peer,
        role: Role,
        lanes: Vec<Box<dyn Lane>>,
    },
    LinkFailed {
        peer: Peer,
        reason: String,
        is_dead: bool,
    },
    PeerLost {
        peer: Peer,
        reason: String,
    },
}

pub(super) struct Shared {
    pub(super) own: Own,
    pub(super) options: Options,
    pub(super) switch: Arc<dyn Switch>,
    inbox: Mutex<Vec<Command>>,
    /// Readable while the inbox has something.
    inbox_event: OwnedFd,
    done: Mutex<Vec<Completion>>,
    done_event: OwnedFd,
    stamps: Arc<Stamps>,
    /// Questions for stamps that wait for the end of an update.
    pub(super) lookers: AtomicUsize,
    /// Transfers that are not done.
    pub(super) transfers: AtomicUsize,
    pub(super) regions: Mutex<Regions<u64>>,
    pub(super) near: Near,
    pub(super) backends: Mutex<HashMap<Peer, Backend>>,
    pub(super) counts: Mutex<Counts>,
    pub(super) notices: Mutex<Vec<Notice>>,
}

impl Shared {
    pub(super) fn new(own: Own, options: Options, switch: Arc<dyn Switch>) -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC.union(EventfdFlags::NONBLOCK);
        Ok(Self {
            own,
            options,
            switch,
            inbox: Mutex::default(),
            inbox_event: eventfd(0, flags)?,
            done: Mutex::default(),
            done_event: eventfd(0, flags)?,
            stamps: Stamps::new(),
            lookers: AtomicUsize::new(0),
            transfers: AtomicUsize::new(0),
            regions: Mutex::default(),
            near: Near::default(),
            backends: Mutex::default(),
            counts: Mutex::default(),
            notices: Mutex::default(),
        })
    }

    pub(super) fn register(&self, memory: Memory, keep: Keep) -> Result<Handle, Error> {
        let size = memory.bytes();
        let added = self
            .stamps
            .take()
            .and_then(|slot| lock(&self.regions).add(memory, keep, Arc::new(slot)));
        let (region, key) = added.map_err(|error| Error::Unavailable(error.to_string()))?;
        let Own {
            job,
            host,
            peer: owner,
        } = self.own;
        Ok(Handle {
            job,
            host,
            owner,
            region,
            key,
            size,
        })
    }

    fn own<T>(&self, region: u64, what: impl FnOnce(&Region<u64>) -> Result<T, Misuse>) -> Result<T, Error> {
        let regions = lock(&self.regions);
        match regions.own(region) {
            Some(region) if !region.is_dropping() => Ok(what(region)?),
            _ => Err(Error::Gone("it was dropped".to_owned())),
        }
    }

    pub(super) fn begin_update(&self, region: u64) -> Result<(), Error> {
        self.own(region, |region| region.slot.begin())
    }

    pub(super) fn end_update(&self, region: u64, version: u64) -> Result<(), Error> {
        self.own(region, |region| region.slot.end(version))?;
        // Whoever came to wait before this looks again; whoever comes after it sees the new stamp. Both orders need the
        // fence here and the one between coming to wait and looking.
        fence(Ordering::SeqCst);
        if self.lookers.load(Ordering::Relaxed) > 0 {
            self.command(Command::Updated);
        }
        Ok(())
    }

    /// Checks what can be checked here, and hands it to the thread, where it is not done at once.
    pub(super) fn submit(&self, transfer: Transfer, token: u64) -> Result<(), Error> {
        plan::check(&transfer.parts)?;
        let is_ours = |part: &Part| part.handle.job == self.own.job;
        if let Some(at) = transfer.parts.iter().position(|part| !is_ours(part)) {
            return Err(Error::Refused(format!("part {at} names a buffer of another job")));
        }
        if let Some(done) = self.near.copy(&transfer) {
            let (result, keep) = (Ok(done), transfer.keep);
            self.complete(&mut vec![Completion { token, result, keep }]);
            return Ok(());
        }
        if self.transfers.fetch_add(1, Ordering::Relaxed) >= TRANSFERS_MAX {
            self.transfers.fetch_sub(1, Ordering::Relaxed);
            return Err(Error::Unavailable(format!(
                "{TRANSFERS_MAX} transfers wait already"
            )));
        }
        self.command(Command::Submit { transfer, token });
        Ok(())
    }

    /// The thread hears of it.
    pub(super) fn command(&self, command: Command) {
        let mut inbox = lock(&self.inbox);
        inbox.push(command);
        if inbox.len() == 1 {
            raise(&self.inbox_event);
        }
    }

    /// What the thread is asked to do now.
    pub(super) fn commands(&self) -> Vec<Command> {
        let mut inbox = lock(&self.inbox);
        lower(&self.inbox_event);
        std::mem::take(&mut inbox)
    }

    pub(super) fn inbox(&self) -> BorrowedFd<'_> {
        self.inbox_event.as_fd()
    }

    /// Whoever asked hears of these ends.
    pub(super) fn complete(&self, ends: &mut Vec<Completion>) {
        let mut done = lock(&self.done);
        if done.is_empty() {
            raise(&self.done_event);
        }
        done.append(ends);
    }

    pub(super) fn completions(&self) -> BorrowedFd<'_> {
        self.done_event.as_fd()
    }

    pub(super) fn drain(&self) -> Vec<Completion> {
        let mut done = lock(&self.done);
        lower(&self.done_event);
        std::mem::take(&mut done)
    }
}

/// A panic elsewhere has been told there; what a lock guards here is whole between two statements.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An event that is readable already may be full; then it is readable all the same.
fn raise(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

/// An event that is not readable is as it should be.
fn lower(event: &OwnedFd) {
    let _ = rustix::io::read(event, &mut [0; 8]);
}
