//! The memory that the ranks of a group share.
//!
//! Each rank has a line of its own, which only it writes, and a slot of two buffers. Pieces of operations are counted from
//! the group's beginning; piece `n` lies in buffer `n % 2` of every slot. A rank puts its piece there, says so in `posted`,
//! and reads the others' once all have. It may write a buffer again two pieces later: it has seen then that all others have
//! begun the piece between, so that they are done with this one.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::HostGroupError;

/// More ranks than any host has GPUs: memory and barriers grow with them.
pub const RANKS_MAX: usize = 64;
/// What one piece of one rank may have: the larger, the fewer waits; and the sooner it is out of the caches.
const BUFFER_BYTES_MAX: usize = 1024 * 1024;
/// What all buffers of a group may have.
const BUFFERS_BYTES_MAX: usize = 32 * 1024 * 1024;

const MAGIC: u64 = u64::from_ne_bytes(*b"roosthg1");
const PAGE: usize = 4096;

/// What all ranks write.
#[repr(C, align(128))]
struct Head {
    magic: u64,
    token: [u64; 2],
    ranks: u64,
    bell: Bell,
}

/// Rung by whoever ends a wait.
#[repr(C, align(128))]
pub(super) struct Bell {
    pub(super) rings: AtomicU32,
    pub(super) sleepers: AtomicU32,
}

/// What one rank writes.
#[repr(C, align(128))]
pub(super) struct Line {
    /// How many pieces it has put into its slot.
    pub(super) posted: AtomicU64,
    /// Of how many pieces its share is reduced.
    pub(super) reduced: AtomicU64,
    /// What it is doing, of the operations that its two buffers are of: the bytes, and their kind.
    pub(super) doing: [(AtomicU64, AtomicU64); 2],
}

const _: () = assert!(size_of::<Head>() + RANKS_MAX * size_of::<Line>() <= 3 * PAGE);
const SLOTS_AT: usize = 3 * PAGE;

/// The mapped memory of a group.
#[derive(Debug)]
pub(super) struct Segment {
    at: *mut Head,
    bytes: usize,
    ranks: usize,
    buffer_bytes: usize,
}

// SAFETY: an address of shared memory that stays mapped as long as this lives; what lies there are atomics, and slots whose
// use `turn` orders by them.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// New memory for so many ranks, all of it there at once, and how other processes of this host find it while the file
    /// is open.
    pub(super) fn make(ranks: usize) -> Result<(Self, File, String), HostGroupError> {
        let bytes = SLOTS_AT + ranks * 2 * buffer_bytes(ranks);
        // SAFETY: a name that ends in zero; the descriptor is ours, if there is one.
        let file = unsafe {
            let fd = libc::memfd_create(
                c"roost-ranks".as_ptr(),
                libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
            );
            if fd < 0 {
                return Err(failed("memory"));
            }
            File::from_raw_fd(fd)
        };
        let length = libc::off_t::try_from(bytes).map_err(|_| failed("memory"))?;
        // A lack of memory is to be an error here, and not a signal at some later write; and nobody makes it shorter.
        // SAFETY: calls on a descriptor of ours.
        let made = unsafe {
            libc::fallocate(file.as_raw_fd(), 0, 0, length) == 0
                && libc::fcntl(
                    file.as_raw_fd(),
                    libc::F_ADD_SEALS,
                    libc::F_SEAL_SHRINK | libc::F_SEAL_GROW,
                ) == 0
        };
        if !made {
            return Err(failed("memory"));
        }
        let segment = Self::map(&file, bytes, ranks)?;
        let mut token = [0_u64; 2];
        // SAFETY: writes the 16 bytes.
        if unsafe { libc::getrandom(token.as_mut_ptr().cast(), size_of_val(&token), 0) } != 16 {
            return Err(failed("a name"));
        }
        let offer = format!(
            "{} {} {} {:x} {:x}",
            host(),
            std::process::id(),
            file.as_raw_fd(),
            token[0],
            token[1]
        );
        let head = segment.at;
        // SAFETY: nobody else knows of this memory yet.
        unsafe {
            (*head).magic = MAGIC;
            (*head).token = token;
            (*head).ranks = ranks as u64;
        }
        Ok((segment, file, offer))
    }

    /// The memory of an offer; None when this process cannot reach it: on another host, or in another container.
    pub(super) fn open(offer: &str, ranks: usize) -> Option<Self> {
        let mut words = offer.rsplitn(5, ' ');
        let token = [words.next()?, words.next()?].map(|word| u64::from_str_radix(word, 16));
        let (fd, pid) = (words.next()?, words.next()?);
        if words.next()? != host() {
            return None;
        }
        let path = format!("/proc/{pid}/fd/{fd}");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC | libc::O_NONBLOCK)
            .open(path)
            .ok()?;
        let bytes = SLOTS_AT + ranks * 2 * buffer_bytes(ranks);
        if file.metadata().ok()?.size() != bytes as u64 {
            return None;
        }
        let segment = Self::map(&file, bytes, ranks).ok()?;
        // The number may be another process's by now: what lies there says whether it is the one that was meant.
        // SAFETY: so many bytes are mapped, and were written before the offer was made.
        let head = unsafe { &*segment.at };
        let same = head.magic == MAGIC
            && head.ranks == ranks as u64
            && token[1] == Ok(head.token[0])
            && token[0] == Ok(head.token[1]);
        same.then_some(segment)
    }

    fn map(file: &File, bytes: usize, ranks: usize) -> Result<Self, HostGroupError> {
        // SAFETY: new addresses, which `Drop` gives back.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(failed("memory"));
        }
        Ok(Self {
            at: at.cast(),
            bytes,
            ranks,
            buffer_bytes: buffer_bytes(ranks),
        })
    }

    /// What a buffer holds: a multiple of every element's size.
    pub(super) fn buffer_bytes(&self) -> usize {
        self.buffer_bytes
    }

    pub(super) fn bell(&self) -> &Bell {
        // SAFETY: mapped, aligned, and only atomics.
        unsafe { &(*self.at).bell }
    }

    /// In rank order.
    pub(super) fn lines(&self) -> &[Line] {
        // SAFETY: mapped behind the head, aligned as that is, and only atomics.
        unsafe { std::slice::from_raw_parts(self.at.add(1).cast(), self.ranks) }
    }

    /// The buffer of a rank for a piece.
    pub(super) fn buffer(&self, rank: usize, piece: u64) -> *mut u8 {
        let number = 2 * rank + usize::from(piece % 2 == 1);
        // SAFETY: the mapping has two for each rank.
        unsafe { self.at.cast::<u8>().add(SLOTS_AT + number * self.buffer_bytes) }
    }

    /// Who has not come so far.
    pub(super) fn behind(
        &self,
        what: impl Fn(&Line) -> &AtomicU64,
        wanted: u64,
    ) -> impl Iterator<Item = usize> {
        self.lines()
            .iter()
            .enumerate()
            // In one order with the stores and the sleepers' number, see `waiting`.
            .filter(move |(_, line)| what(line).load(Ordering::SeqCst) < wanted)
            .map(|(rank, _)| rank)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing that is lent out lives longer.
        unsafe { libc::munmap(self.at.cast(), self.bytes) };
    }
}

fn buffer_bytes(ranks: usize) -> usize {
    (BUFFERS_BYTES_MAX / (2 * ranks)).min(BUFFER_BYTES_MAX) / PAGE * PAGE
}

/// What processes have in common that see each other's numbers: the kernel's boot, and the namespace of the numbers.
fn host() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let numbers = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{}/{}", boot.trim(), numbers.display())
}

fn failed(what: &'static str) -> HostGroupError {
    HostGroupError::System {
        what,
        why: std::io::Error::last_os_error().to_string(),
    }
}
