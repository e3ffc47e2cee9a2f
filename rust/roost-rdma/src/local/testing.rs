//! Processes and memory for the tests of this crate.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use roost_core::id::{HostId, Incarnation, ProcId};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::{Place, Process, Way};
use crate::handle::{Handle, Peer};
use crate::plan::{Direction, Part, Run};

pub(crate) const PAGE: usize = 4096;

/// A child of this process, with a copy of its memory, that says when it is ready and then waits for a word. It runs
/// as a child of many threads may: no memory is allocated and no lock taken in it.
pub(crate) struct Forked {
    pid: Pid,
    is_reaped: bool,
    ready: std::io::PipeReader,
    word: std::io::PipeWriter,
}

impl Forked {
    /// `before` runs in the child with its number of words so far: 0 before it is ready, then once a word.
    pub(crate) fn new(before: impl Fn(u8)) -> Self {
        let (ready, ready_there) = std::io::pipe().unwrap();
        let (word_there, word) = std::io::pipe().unwrap();
        // SAFETY: the child calls nothing but `before`, `read`, `write` and `_exit`; the tests' closures keep to calls of
        // the kernel and stores.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: numbers alone. What is left of a test that was killed ends with it.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let mut byte = 0_u8;
            for number in 0.. {
                before(number);
                // SAFETY: both descriptors are the child's copies, the byte outlives the calls.
                unsafe {
                    libc::write(ready_there.as_raw_fd(), (&raw const byte).cast(), 1);
                    // The copies of the other ends keep the pipe open, so that the child ends by a kill alone.
                    if libc::read(word_there.as_raw_fd(), (&raw mut byte).cast(), 1) != 1 {
                        libc::_exit(0);
                    }
                }
            }
        }
        Self {
            pid: Pid::from_raw(pid).expect("a child"),
            is_reaped: false,
            ready,
            word,
        }
    }

    pub(crate) fn wait_ready(&mut self) {
        self.ready.read_exact(&mut [0]).unwrap();
    }

    /// Let the child do its next step, without waiting for it.
    pub(crate) fn tell(&mut self) {
        self.word.write_all(&[1]).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) fn pidfd(&self) -> OwnedFd {
        rustix::process::pidfd_open(self.pid, PidfdFlags::empty())
            .unwrap_or_else(|_| std::fs::File::open("/dev/null").unwrap().into())
    }

    pub(crate) fn process(&self) -> Process {
        Process::of(self.pidfd()).unwrap()
    }

    pub(crate) fn way(&self) -> Arc<Way> {
        Arc::new(Way::Calls(self.process()))
    }

    /// Kill it, without taking its number away.
    pub(crate) fn strike(&self) {
        rustix::process::kill_process(self.pid, Signal::KILL).ok();
    }

    pub(crate) fn kill(&mut self) {
        if !self.is_reaped {
            self.strike();
            rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty()).ok();
            self.is_reaped = true;
        }
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Private memory of whole pages, filled with one byte; a forked child has its own copy of it, at the same address.
pub(crate) struct Pages {
    address: usize,
    bytes: usize,
}

impl Pages {
    pub(crate) fn new(bytes: usize, fill: u8) -> Self {
        // SAFETY: the kernel chooses the address.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
                rustix::mm::MapFlags::PRIVATE,
            )
        };
        let mut pages = Self {
            address: address.unwrap().expose_provenance(),
            bytes,
        };
        pages.fill(fill);
        pages
    }

    pub(crate) fn address(&self) -> usize {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn fill(&mut self, fill: u8) {
        self.get_mut().fill(fill);
    }

    pub(crate) fn get(&self) -> &[u8] {
        // SAFETY: mapped for the life of the value; the tests look when nobody writes.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.address), self.bytes) }
    }

    pub(crate) fn get_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe {
            std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(self.address), self.bytes)
        }
    }

    /// Unmap pages, in this process; the tests look at them no more.
    pub(crate) fn punch(&self, from: usize, bytes: usize) {
        // SAFETY: pages of this value alone.
        unsafe {
            rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(self.address + from), bytes).ok();
        }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.punch(0, self.bytes);
    }
}

/// A part of a buffer that nobody checks.
pub(crate) fn part(direction: Direction, size: u64, runs: Vec<Run>) -> Part {
    Part {
        direction,
        handle: Arc::new(Handle {
            job: 1,
            host: HostId::new(2).unwrap(),
            owner: Peer {
                proc: ProcId::new(3).unwrap(),
                incarnation: Incarnation(0),
            },
            region: 1,
            key: [0; 16],
            size,
        }),
        runs,
    }
}

/// All of one memory into, or out of, another of the same size.
pub(crate) fn whole(direction: Direction, local: &Pages) -> Arc<[Part]> {
    let bytes = local.bytes() as u64;
    let run = Run {
        remote: 0,
        local: local.address(),
        bytes,
    };
    Arc::new([part(direction, bytes, vec![run])])
}

pub(crate) fn at(way: &Arc<Way>, base: usize) -> Place {
    Place::Process {
        way: Arc::clone(way),
        base: base as u64,
    }
}
