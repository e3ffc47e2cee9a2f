//! One thread a process that serves what others ask of its memory, and drives what it asks of others.

mod asking;
mod chunks;
mod copying;
mod driver;
mod giving_up;
mod leasing;
mod link;
mod linking;
mod looking;
mod near;
mod nics;
mod operation;
mod peers;
mod proving;
mod reach;
mod serving;
mod shared;
mod summing;
mod timers;
mod waiter;

use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use roost_core::id::HostId;

use crate::error::Error;
use crate::gpu::Exporter;
use crate::handle::{Handle, Peer};
use crate::lane::Lane;
use crate::plan::Part;
use crate::region::{Keep, Memory};

use self::shared::{Command, Shared, lock};

/// Who this process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own {
    /// Its job.
    pub job: u64,
    /// Where it lives.
    pub host: HostId,
    /// Which life of which process it is.
    pub peer: Peer,
}

/// What moves the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backend {
    /// The kernel, between two processes of one host, or memory that they share.
    SameHost,
    /// A NIC, without the other CPU.
    Ibverbs,
    /// Connections, by the other's engine.
    Tcp,
}

impl Backend {
    /// As users write and read it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SameHost => "same_host",
            Self::Ibverbs => "ibverbs",
            Self::Tcp => "tcp",
        }
    }
}

/// What may be chosen when an engine starts.
#[derive(Clone, Default)]
pub struct Options {
    /// The only backend that may be used.
    pub forced: Option<Backend>,
    /// What is opened instead of libibverbs, for tests.
    pub library: Option<PathBuf>,
    /// The only verbs devices that may be used; all when empty.
    pub devices: Vec<String>,
    /// Who knows about GPUs' memory.
    pub exporter: Option<Arc<dyn Exporter>>,
}

/// Who makes links.
pub trait Switch: Send + Sync {
    /// A link to this life of a process is wanted, to ask it. The answer is [`Engine::adopt`] or [`Engine::link_failed`].
    fn ask(&self, peer: Peer, host: HostId);
}

/// Who asks over a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// This process.
    Asks,
    /// The other.
    Serves,
}

/// What is to be copied.
pub struct Transfer {
    /// The buffers' shares, checked by [`plan::check`](crate::plan).
    pub parts: Vec<Part>,
    /// Of all buffers that are read: one and the same version, at least this.
    pub version: Option<u64>,
    /// How long it may take.
    pub timeout: Duration,
    /// Have both sides sum each part's bytes when they are copied, and compare. Memory that is written meanwhile, by whoever,
    /// may then be taken for corrupt; not what its owner writes between two versions, where one is asked for.
    pub checksum: bool,
    /// What keeps this side's memory alive until the completion has been taken.
    pub keep: Keep,
}

/// A transfer that went well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// What the buffers that were read had, where it was asked for.
    pub version: Option<u64>,
    /// Bytes copied.
    pub bytes: u64,
    /// The sum over all that was copied, where it was asked for.
    pub checksum: Option<u64>,
}

/// The end of what was asked for under this token.
pub struct Completion {
    /// As it was given.
    pub token: u64,
    /// How it ended.
    pub result: Result<Done, Error>,
    /// As it was given; of a region that was dropped, the region's.
    pub keep: Keep,
}

/// What there is of each kind; all zero when everything was let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Buffers that are registered.
    pub regions: usize,
    /// Leases that others hold here.
    pub leases_given: usize,
    /// Leases that are held of others.
    pub leases_held: usize,
    /// Others' memory that is mapped here.
    pub mappings: usize,
    /// Registrations with NICs.
    pub memory_regions: usize,
    /// Links, of both roles.
    pub links: usize,
    /// Transfers that are not done.
    pub transfers: usize,
}

/// Something that whoever runs this wants to read once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// With whom.
    pub peer: Peer,
    /// What moves the bytes.
    pub backend: Backend,
    /// Why not a better one, where that is so.
    pub fallback: Option<String>,
}

/// See the module. Cheap to clone; the thread ends with the last clone.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
    _thread: Arc<Thread>,
}

/// Ends with the last who has it.
struct Thread {
    shared: Arc<Shared>,
    handle: Option<thread::JoinHandle<()>>,
    /// A forked child has no such thread.
    maker: u32,
}

impl Drop for Thread {
    fn drop(&mut self) {
        if std::process::id() != self.maker {
            return;
        }
        self.shared.command(Command::Stop);
        if let Some(handle) = self.handle.take() {
            // A panic there was told there.
            let _ = handle.join();
        }
    }
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// Whatever the system refuses: descriptors, a thread.
    pub fn start(own: Own, options: Options, switch: Arc<dyn Switch>) -> io::Result<Self> {
        let shared = Arc::new(Shared::new(own, options, switch)?);
        let handle = Some(driver::start(Arc::clone(&shared))?);
        let thread = Arc::new(Thread {
            shared: Arc::clone(&shared),
            handle,
            maker: std::process::id(),
        });
        Ok(Self {
            shared,
            _thread: thread,
        })
    }

    /// Lets others read and write this memory, which `keep` keeps alive until it is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for memory of no size; [`Error::Unavailable`] when there are too many.
    pub fn register(&self, memory: Memory, keep: Keep) -> Result<Handle, Error> {
        self.shared.register(memory, keep)
    }

    /// From now on the region's content is in change: readers who want a version wait.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] for a region that was dropped; [`Error::Misuse`] during an update.
    pub fn begin_update(&self, region: u64) -> Result<(), Error> {
        self.shared.begin_update(region)
    }

    /// The content is now of this version.
    ///
    /// # Errors
    ///
    /// [`Error::Gone`] for a region that was dropped; [`Error::Misuse`] outside an update.
    pub fn end_update(&self, region: u64, version: u64) -> Result<(), Error> {
        self.shared.end_update(region, version)
    }

    /// Takes the region back from everybody. New transfers of it fail at once; the [`Completion`], with what kept its
    /// memory, comes when nobody uses it any more, after a second at the latest. Again for the same region: an empty one.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] for a region that never was.
    pub fn drop_region(&self, region: u64, token: u64) -> Result<(), Error> {
        self.shared.command(Command::Drop { region, token });
        Ok(())
    }

    /// Asks for copies. Ends by a [`Completion`] with this token, which must not be in use.
    ///
    /// # Errors
    ///
    /// What can be told at once, after which there is no completion: [`Error::Misuse`], [`Error::Refused`] for a handle of
    /// another job, [`Error::Unavailable`] when too many transfers wait.
    pub fn submit(&self, transfer: Transfer, token: u64) -> Result<(), Error> {
        self.shared.submit(transfer, token)
    }

    /// The transfer is not wanted any more. Its completion comes soon, and nothing is written after it.
    pub fn cancel(&self, token: u64) {
        self.shared.command(Command::Cancel { token });
    }

    /// Readable while there are completions.
    pub fn completions(&self) -> BorrowedFd<'_> {
        self.shared.completions()
    }

    /// Takes the completions that there are.
    pub fn drain(&self) -> Vec<Completion> {
        self.shared.drain()
    }

    /// A link that was made, by the number that its maker gave it: the control stream first, then the stripes. A new one for the same role replaces the older.
    pub fn adopt(&self, peer: Peer, role: Role, _link: u64, lanes: Vec<Box<dyn Lane>>) {
        self.shared.command(Command::Adopt { peer, role, lanes });
    }

    /// A link that was asked for is not to be had: now, or never.
    pub fn link_failed(&self, peer: Peer, reason: String, is_dead: bool) {
        self.shared.command(Command::LinkFailed {
            peer,
            reason,
            is_dead,
        });
    }

    /// This life of a process, and all before it, are over.
    pub fn peer_lost(&self, peer: Peer, reason: String) {
        self.shared.command(Command::PeerLost { peer, reason });
    }

    /// What moves bytes between this process and that one, once that is known.
    pub fn backend_of(&self, peer: Peer) -> Option<Backend> {
        lock(&self.shared.backends).get(&peer).copied()
    }

    /// What there is of each kind now.
    pub fn counts(&self) -> Counts {
        *lock(&self.shared.counts)
    }

    /// Takes what is worth a line in the log, once a pair.
    pub fn notices(&self) -> Vec<Notice> {
        std::mem::take(&mut *lock(&self.shared.notices))
    }
}
