//! Memory of another process of this host, which takes no part in it.
//!
//! Two ways: the calls `process_vm_readv` and `process_vm_writev`, one copy in the kernel; and, where those are
//! forbidden, the owner's `/proc/self/mem`, whose descriptor it handed over, at half the speed.
//!
//! The calls name the owner by its pid, which may be another's by the time of the call. So nothing is believed before
//! the owner's pidfd has told, after the last copy, that it still lived.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};

use crate::plan::Direction;

#[cfg(test)]
mod tests;

/// The kernel takes no more vectors in one call.
pub(crate) const VECTORS_MAX: usize = 1024;

/// Another process of this host.
#[derive(Debug)]
pub struct Process {
    pid: Pid,
    pidfd: OwnedFd,
}

/// A descriptor that stands for this process, to be handed to who reads from it.
///
/// # Errors
///
/// When there are no more descriptors.
pub fn own_pidfd() -> io::Result<OwnedFd> {
    Ok(rustix::process::pidfd_open(
        rustix::process::getpid(),
        PidfdFlags::empty(),
    )?)
}

impl Process {
    /// The process that handed over this pidfd.
    ///
    /// # Errors
    ///
    /// When it is none, or one of a process that has ended or that has no number in this pid namespace.
    pub fn of(pidfd: OwnedFd) -> io::Result<Self> {
        // Its number here may differ from its own view of it, so that nobody's word is taken for it.
        let number = std::os::fd::AsRawFd::as_raw_fd(&pidfd);
        let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
        let pid = info
            .lines()
            .find_map(|line| line.strip_prefix("Pid:"))
            .and_then(|pid| pid.trim().parse().ok())
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "not the descriptor of a process"))?;
        let pid = Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                "a process that is not to be seen from here",
            )
        })?;
        Ok(Self { pid, pidfd })
    }

    /// This process.
    ///
    /// # Errors
    ///
    /// When there are no more descriptors.
    pub fn this() -> io::Result<Self> {
        Ok(Self {
            pid: rustix::process::getpid(),
            pidfd: own_pidfd()?,
        })
    }

    /// Readable when it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Its number in this pid namespace. It means nothing once the process has ended.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let now = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            match rustix::event::poll(&mut fds, Some(&now)) {
                Ok(ready) => return ready == 0,
                Err(rustix::io::Errno::INTR) => {}
                // What cannot be asked is not believed.
                Err(_) => return false,
            }
        }
    }
}

/// How another process's memory is reached.
#[derive(Debug)]
pub enum Way {
    /// By the calls.
    Calls(Process),
    /// By its `/proc/self/mem`.
    Descriptor(Process, OwnedFd),
}

/// Why a copy ended early.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The owner has no such memory (any more).
    Gone,
    /// This process has no such memory (any more).
    LocalGone,
    /// The owner has ended.
    PeerLost,
    /// The kernel does not allow it.
    Forbidden(io::Error),
    /// Something else.
    System(io::Error),
}

/// Pieces of memory here and there, as long as each other.
#[derive(Default)]
pub(crate) struct Vectors {
    local: Vec<libc::iovec>,
    remote: Vec<libc::iovec>,
}

impl Vectors {
    pub(crate) fn push(&mut self, local: usize, remote: usize, bytes: usize) {
        let vector = |address: usize| libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(address),
            iov_len: bytes,
        };
        self.local.push(vector(local));
        self.remote.push(vector(remote));
    }

    pub(crate) fn clear(&mut self) {
        self.local.clear();
        self.remote.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.local.len()
    }
}

impl Way {
    /// This process's own memory. A copy within it that meets a hole is an error, and not the end of the process.
    ///
    /// # Errors
    ///
    /// When there are no more descriptors, or the way is forbidden even for one's own.
    pub fn own() -> io::Result<Self> {
        let probe = 0_u8;
        let address = std::ptr::from_ref(&probe).expose_provenance();
        let memory = super::ptrace::own_memory().ok();
        super::ptrace::choose(Process::this()?, address, memory)
            .map_err(|refused| io::Error::other(refused.to_string()))
    }

    /// The process whose memory it is.
    pub fn process(&self) -> &Process {
        match self {
            Self::Calls(process) | Self::Descriptor(process, _) => process,
        }
    }

    /// Copy all pieces, in order. With an error comes the number of the piece that could not be copied, or not wholly.
    ///
    /// # Safety
    ///
    /// The local pieces must be the caller's to read from ([`Direction::Write`]) or to write to ([`Direction::Read`]),
    /// or be unmapped.
    pub(crate) unsafe fn copy(
        &self,
        direction: Direction,
        vectors: &mut Vectors,
    ) -> Result<(), (usize, Fault)> {
        let mut at = 0;
        while at < vectors.len() {
            // SAFETY: the caller vouches for the local pieces.
            let copied = match unsafe { self.copy_some(direction, vectors, at) } {
                Ok(copied) if copied > 0 => copied,
                // Nothing, and no error: `/proc/self/mem` of a process that has ended.
                Ok(_) => return Err((at, Fault::PeerLost)),
                Err(errno) => return Err((at, self.fault(errno, vectors, at))),
            };
            at = advance(vectors, at, copied);
        }
        Ok(())
    }

    /// Copy what one call takes. A short count is no error: the next call begins where the hole is, and says so.
    unsafe fn copy_some(
        &self,
        direction: Direction,
        vectors: &Vectors,
        at: usize,
    ) -> Result<usize, io::Error> {
        let copied = match self {
            Self::Calls(process) => {
                let (local, remote) = (&vectors.local[at..], &vectors.remote[at..]);
                let count = local.len().min(VECTORS_MAX) as libc::c_ulong;
                let pid = process.pid.as_raw_nonzero().get();
                // SAFETY: both arrays have `count` vectors. The caller vouches for the local memory; the kernel checks
                // that of the other process.
                unsafe {
                    match direction {
                        Direction::Read => {
                            libc::process_vm_readv(pid, local.as_ptr(), count, remote.as_ptr(), count, 0)
                        }
                        Direction::Write => {
                            libc::process_vm_writev(pid, local.as_ptr(), count, remote.as_ptr(), count, 0)
                        }
                    }
                }
            }
            Self::Descriptor(_, memory) => {
                let (local, place) = (vectors.local[at], vectors.remote[at].iov_base.addr());
                let place =
                    libc::off64_t::try_from(place).map_err(|_| io::Error::from_raw_os_error(libc::EFAULT))?;
                let file = std::os::fd::AsRawFd::as_raw_fd(memory);
                // SAFETY: the caller vouches for the local memory.
                unsafe {
                    match direction {
                        Direction::Read => libc::pread64(file, local.iov_base, local.iov_len, place),
                        Direction::Write => libc::pwrite64(file, local.iov_base, local.iov_len, place),
                    }
                }
            }
        };
        usize::try_from(copied).map_err(|_| io::Error::last_os_error())
    }

    fn fault(&self, error: io::Error, vectors: &Vectors, at: usize) -> Fault {
        let process = self.process();
        // First of all: what an ended process's number stands for now has nothing to say.
        if !process.is_alive() {
            return Fault::PeerLost;
        }
        match error.raw_os_error() {
            Some(libc::ESRCH) => Fault::PeerLost,
            Some(libc::EPERM | libc::EACCES | libc::ENOSYS) => Fault::Forbidden(error),
            Some(libc::EIO) => Fault::Gone,
            Some(libc::EFAULT) => self.whose_hole(vectors.remote[at].iov_base.addr()),
            _ => Fault::System(error),
        }
    }

    /// The kernel does not tell on which side the hole is.
    fn whose_hole(&self, address: usize) -> Fault {
        if self.peek(address).is_ok() {
            Fault::LocalGone
        } else {
            Fault::Gone
        }
    }

    /// Read one byte.
    pub(crate) fn peek(&self, address: usize) -> io::Result<u8> {
        let mut byte = 0_u8;
        let mut vectors = Vectors::default();
        vectors.push(std::ptr::from_mut(&mut byte).expose_provenance(), address, 1);
        // SAFETY: the byte is ours, and outlives the call.
        match unsafe { self.copy_some(Direction::Read, &vectors, 0) }? {
            1 => Ok(byte),
            _ => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        }
    }
}

/// Take what was copied from the front. Returns the number of the first piece that is left.
fn advance(vectors: &mut Vectors, mut at: usize, mut copied: usize) -> usize {
    while let Some(piece) = vectors.local.get_mut(at) {
        if copied < piece.iov_len {
            for side in [piece, &mut vectors.remote[at]] {
                side.iov_base = side.iov_base.wrapping_byte_add(copied);
                side.iov_len -= copied;
            }
            break;
        }
        copied -= piece.iov_len;
        at += 1;
    }
    at
}
