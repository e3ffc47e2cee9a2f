//! The receiver's side: segments of others, mapped once, and views that tell when they are gone.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::memory::{Maker, Mapping, Source, check_file};
use super::origin;
use super::private::PrivatePool;

/// Segments that a process maps at most; each takes two of the kernel's 65,530 mappings.
const SEGMENTS_MAX: usize = 8192;

/// A frame that names shared memory in a way that no sound sender does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum PlaceError {
    /// The segment was never mapped here.
    Unknown {
        /// The segment's id.
        segment: u64,
    },
    /// The part ends behind the segment.
    OutOfRange {
        /// Where the part begins.
        offset: u64,
        /// Its bytes.
        length: u64,
        /// The segment's bytes.
        size: usize,
    },
    /// The segment was filled again while it is held here.
    StillHeld {
        /// The generation that is held.
        held: u32,
        /// The generation that the frame names.
        named: u32,
    },
}

impl fmt::Display for PlaceError {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { segment } => {
                write!(text, "shared segment {segment:x} was not mapped here")
            }
            Self::OutOfRange { offset, length, size } => {
                write!(
                    text,
                    "a part of {length} bytes at {offset} passes the end of a shared segment of {size}"
                )
            }
            Self::StillHeld { held, named } => {
                write!(
                    text,
                    "generation {named} of a shared segment came while generation {held} is held"
                )
            }
        }
    }
}

impl std::error::Error for PlaceError {}

/// A message to the sender of a segment: one part was let go of, or the segment must never be filled again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Release {
    pub(crate) sender: u64,
    pub(crate) segment: u64,
    pub(crate) generation: u32,
    pub(crate) retire: bool,
}

/// Both mappings of one segment.
pub(super) struct ReceivedMemory {
    /// What was sent, for copies: its pages stay mapped from one generation to the next.
    shared: Mapping,
    /// What is handed out: writing to it changes nothing for anyone else.
    private: Mapping,
}

struct Received {
    sender: u64,
    memory: Arc<ReceivedMemory>,
    generation: u32,
    holds: u32,
    /// The ranges of the private mapping that were handed out in this generation; each is handed out once.
    handed: Vec<(usize, usize)>,
    is_retired: bool,
    is_forgotten: bool,
}

/// All segments of others that a process maps.
pub(super) struct Map {
    state: Mutex<State>,
    kept_bytes_max: usize,
    maker: Maker,
    pub(super) private: Arc<PrivatePool>,
}

#[derive(Default)]
struct State {
    segments: HashMap<u64, Received>,
    released: Vec<Release>,
    kept_bytes: usize,
}

impl Map {
    pub(super) fn new(kept_bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            kept_bytes_max,
            maker: Maker::this(),
            private: Arc::default(),
        }
    }

    /// Map a segment that a sender offers.
    ///
    /// # Errors
    ///
    /// When it is not what it is said to be, or there is no room for it; the sender then sends bytes.
    pub(super) fn add(&self, sender: u64, id: u64, length: usize, file: &OwnedFd) -> io::Result<()> {
        let mut state = self.lock();
        if state.segments.contains_key(&id) || state.segments.len() >= SEGMENTS_MAX || length == 0 {
            return Err(io::Error::new(
                io::ErrorKind::QuotaExceeded,
                "no room for one more shared segment",
            ));
        }
        check_file(file.as_fd(), length)?;
        let memory = ReceivedMemory {
            shared: Mapping::shared_readable(file.as_fd(), length)?,
            private: Mapping::private(file.as_fd(), length)?,
        };
        let received = Received {
            sender,
            memory: Arc::new(memory),
            generation: 0,
            holds: 0,
            handed: Vec::new(),
            is_retired: false,
            is_forgotten: false,
        };
        state.segments.insert(id, received);
        Ok(())
    }

    /// Take in one part that a frame names; it is released when the hold is dropped.
    ///
    /// # Errors
    ///
    /// When no sound sender would name it so.
    pub(super) fn accept(
        self: &Arc<Self>,
        id: u64,
        generation: u32,
        offset: u64,
        length: u64,
    ) -> Result<Hold, PlaceError> {
        let mut state = self.lock();
        let Some(received) = state
            .segments
            .get_mut(&id)
            .filter(|received| !received.is_forgotten)
        else {
            return Err(PlaceError::Unknown { segment: id });
        };
        let size = received.memory.shared.length();
        let end = offset
            .checked_add(length)
            .and_then(|end| usize::try_from(end).ok())
            .filter(|&end| end <= size);
        let (Some(end), Ok(start)) = (end, usize::try_from(offset)) else {
            return Err(PlaceError::OutOfRange { offset, length, size });
        };
        if received.holds == 0 {
            received.generation = generation;
        } else if received.generation != generation {
            return Err(PlaceError::StillHeld {
                held: received.generation,
                named: generation,
            });
        }
        received.holds += 1;
        let memory = received.memory.clone();
        Ok(Hold {
            map: self.clone(),
            memory,
            segment: id,
            generation,
            offset: start,
            length: end - start,
        })
    }

    /// The sender gave a segment up; it is unmapped with its last view.
    pub(super) fn forget(&self, id: u64) {
        let mut state = self.lock();
        if let Some(received) = state.segments.get_mut(&id) {
            received.is_forgotten = true;
            if received.holds == 0 {
                state.segments.remove(&id);
            }
        }
    }

    /// A sender ended: nothing of it will be named any more, and nobody waits for its releases.
    pub(super) fn sender_gone(&self, sender: u64) {
        let mut state = self.lock();
        state.released.retain(|release| release.sender != sender);
        for received in state
            .segments
            .values_mut()
            .filter(|received| received.sender == sender)
        {
            received.is_forgotten = true;
        }
        state
            .segments
            .retain(|_, received| !received.is_forgotten || received.holds > 0);
    }

    /// A child is about to be forked that will look at the pages of what is held now: they must never be
    /// filled again.
    pub(super) fn before_fork(&self) {
        let mut state = self.lock();
        let state = &mut *state;
        for (&segment, received) in &mut state.segments {
            if received.holds > 0 && !received.is_retired {
                received.is_retired = true;
                let Received {
                    sender, generation, ..
                } = *received;
                state.released.push(Release {
                    sender,
                    segment,
                    generation,
                    retire: true,
                });
            }
        }
    }

    /// What the senders are to be told, in this order.
    pub(super) fn drain_released(&self) -> Vec<Release> {
        std::mem::take(&mut self.lock().released)
    }

    /// Whether a sender waits to be told of a release.
    pub(super) fn has_released(&self) -> bool {
        !self.lock().released.is_empty()
    }

    /// Mapped segments, and bytes that views of them keep.
    pub(super) fn figures(&self) -> (usize, usize) {
        let state = self.lock();
        (state.segments.len(), state.kept_bytes)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One part that was received and not let go of yet.
pub(crate) struct Hold {
    map: Arc<Map>,
    memory: Arc<ReceivedMemory>,
    segment: u64,
    generation: u32,
    offset: usize,
    length: usize,
}

impl Hold {
    /// Bytes of the part.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The part as it was sent.
    pub(super) fn source(&self) -> Source {
        Source {
            address: self.memory.shared.pointer(self.offset),
            length: self.length,
        }
    }

    /// The memory for copies of what this hold names.
    pub(super) fn private_pool(&self) -> &Arc<PrivatePool> {
        &self.map.private
    }

    /// The address of the part in the private mapping, for the first who asks, as long as not too much is
    /// kept already. Whoever gets it calls [`Hold::give_up`] when it is no longer looked at.
    pub(super) fn claim(&self) -> Option<*mut u8> {
        let mut state = self.map.lock();
        if state.kept_bytes + self.length > self.map.kept_bytes_max {
            return None;
        }
        let received = state.segments.get_mut(&self.segment)?;
        let end = self.offset + self.length;
        // The first part of a page and the last of the one before may share it: they belong to this process
        // alone all the same.
        if received
            .handed
            .iter()
            .any(|&(start, stop)| start < end && self.offset < stop)
        {
            return None;
        }
        received.handed.push((self.offset, end));
        state.kept_bytes += self.length;
        let address = self.memory.private.pointer(self.offset);
        origin::claimed(address, self.source());
        Some(address)
    }

    /// What was claimed is no longer looked at.
    pub(super) fn give_up(&self) {
        if !self.map.maker.is_here() {
            return;
        }
        origin::given_up(self.memory.private.pointer(self.offset));
        let mut state = self.map.lock();
        state.kept_bytes = state.kept_bytes.saturating_sub(self.length);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.map.maker.is_here() {
            return;
        }
        let mut state = self.map.lock();
        let Some(received) = state.segments.get_mut(&self.segment) else {
            return;
        };
        received.holds -= 1;
        let Received {
            sender, is_forgotten, ..
        } = *received;
        if received.holds == 0 && !received.handed.is_empty() {
            received.handed.clear();
            // What was written here would hide the next generation. Without the discard the segment cannot be
            // used again.
            if received.memory.private.discard().is_err() {
                let retire = Release {
                    sender,
                    segment: self.segment,
                    generation: self.generation,
                    retire: true,
                };
                state.released.push(retire);
            }
        }
        if is_forgotten {
            if state
                .segments
                .get(&self.segment)
                .is_some_and(|received| received.holds == 0)
            {
                state.segments.remove(&self.segment);
            }
            return;
        }
        let release = Release {
            sender,
            segment: self.segment,
            generation: self.generation,
            retire: false,
        };
        state.released.push(release);
    }
}
