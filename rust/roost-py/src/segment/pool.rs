//! The sender's side: segments that are filled, shared and used again.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::memory::{Maker, Source, copy, seal, write_file};
use super::segments::{PoolLimits, Reach, Segment, SegmentMemory, Segments, make_segment, size_class};

/// Parts begin at multiples of this, so that vector instructions and every item type find them aligned.
const PART_ALIGNMENT: usize = 64;
/// A segment is used for a message of at least a quarter of its size: filling a used one is ten times faster
/// than a new one.
const OVERSIZE_MAX: usize = 4;
/// A message from this size on gets a segment however many there are: their bytes bound their number, and most of it may be
/// too much for a frame.
const UNCOUNTED_BYTES_MIN: usize = 32 << 20;
/// After a receiver could not map a segment it is offered none for this time, and gets its bytes in the
/// frame.
const REFUSAL_PAUSE: Duration = Duration::from_secs(5);

/// What a message for a receiver has to do about a segment that it names.
pub(crate) enum Way {
    /// Send it: the receiver has mapped the segment.
    Ready,
    /// Wait for the receiver's answer, which comes over the control lane; nothing may overtake this message.
    Wait,
    /// Offer this descriptor over the control lane, then wait.
    Offer(OwnedFd),
    /// Send the bytes in the frame: the receiver cannot map the segment.
    Inline,
}

/// All segments of a process as a sender.
pub(super) struct Pool {
    state: Mutex<Segments>,
    limits: PoolLimits,
    maker: Maker,
}

/// A filled place in a segment.
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) generation: u32,
    pub(super) offset: usize,
    pub(super) length: usize,
    pub(super) memory: Arc<SegmentMemory>,
}

impl Pool {
    pub(super) fn new(limits: PoolLimits) -> Self {
        // Ids of two processes never meet in practice: a random start, then counting. A receiver refuses one
        // that it has already.
        let next_id = RandomState::new().hash_one(std::process::id());
        let state = Segments {
            by_id: HashMap::new(),
            next_id,
            bytes: 0,
            forgotten: Vec::new(),
            refused_until: HashMap::new(),
        };
        Self {
            state: Mutex::new(state),
            limits,
            maker: Maker::this(),
        }
    }

    /// Copy the parts of one message into one segment. `None` says that there is no memory for it, or no descriptor.
    ///
    /// Each place counts as a writer, see [`Pool::done_writing`].
    ///
    /// # Safety
    ///
    /// As for [`copy`], for each source.
    pub(super) unsafe fn fill(&self, sources: &[Source]) -> Option<Vec<Place>> {
        let mut offsets = Vec::with_capacity(sources.len());
        let mut total = 0usize;
        for source in sources {
            offsets.push(total);
            total = total
                .checked_add(source.length)?
                .checked_next_multiple_of(PART_ALIGNMENT)?;
        }
        let writers = u32::try_from(sources.len()).ok()?;
        let (id, generation, memory, is_new) = self.take(total, writers)?;
        for (source, &offset) in sources.iter().zip(&offsets) {
            let filled = if is_new {
                // SAFETY: the caller vouches for the sources.
                unsafe { write_file(*source, &memory.file, offset) }
            } else {
                // SAFETY: as above; no receiver looks at this segment, and no other message was given it.
                unsafe { copy(*source, &memory.mapping, offset) };
                Ok(())
            };
            if filled.is_err() {
                self.destroy(id);
                return None;
            }
        }
        if is_new && seal(memory.file.as_fd()).is_err() {
            self.destroy(id);
            return None;
        }
        let place = |(source, &offset): (&Source, &usize)| Place {
            segment: id,
            generation,
            offset,
            length: source.length,
            memory: memory.clone(),
        };
        Some(sources.iter().zip(&offsets).map(place).collect())
    }

    fn take(&self, length: usize, writers: u32) -> Option<(u64, u32, Arc<SegmentMemory>, bool)> {
        let mut state = self.lock();
        let fits = |segment: &Segment| {
            let capacity = segment.memory.mapping.length();
            segment.is_idle() && capacity >= length && capacity / OVERSIZE_MAX <= length
        };
        let usable = state.by_id.iter().filter(|(_, segment)| fits(segment));
        let best = usable
            .min_by_key(|(_, segment)| segment.memory.mapping.length())
            .map(|(&id, _)| id);
        if let Some(segment) = best.and_then(|id| state.by_id.get_mut(&id)) {
            segment.writers = writers;
            segment.generation += 1;
            let memory = segment.memory.clone();
            let is_populated = std::mem::replace(&mut segment.populated, true);
            let generation = segment.generation;
            drop(state);
            if !is_populated {
                memory.mapping.populate();
            }
            return best.map(|id| (id, generation, memory, false));
        }
        let capacity = size_class(length)?;
        let is_full = state.by_id.len() >= self.limits.segments_max && length < UNCOUNTED_BYTES_MIN;
        if is_full && !state.remove_oldest_idle() {
            return None;
        }
        state.trim(self.limits.bytes_max.checked_sub(capacity)?, Instant::now());
        if state.bytes + capacity > self.limits.bytes_max {
            return None;
        }
        state.bytes += capacity;
        let id = state.next_id;
        state.next_id = state.next_id.wrapping_add(1);
        drop(state);
        let Ok(memory) = make_segment(capacity) else {
            self.lock().bytes -= capacity;
            return None;
        };
        let segment = Segment {
            memory: memory.clone(),
            generation: 0,
            writers,
            holds: HashMap::new(),
            reach: HashMap::new(),
            retired: false,
            populated: false,
            idle_since: Instant::now(),
        };
        self.lock().by_id.insert(id, segment);
        Some((id, 0, memory, true))
    }

    fn destroy(&self, id: u64) {
        let mut state = self.lock();
        state.remove(id);
    }

    /// One part of a message is no longer needed by its sender.
    pub(super) fn done_writing(&self, id: u64) {
        if !self.maker.is_here() {
            return;
        }
        let mut state = self.lock();
        if let Some(segment) = state.by_id.get_mut(&id) {
            segment.writers = segment.writers.saturating_sub(1);
            state.settle(id, self.limits);
        }
    }

    /// One part is on its way to a receiver, which will release it.
    pub(super) fn hold(&self, id: u64, receiver: u64) {
        if let Some(segment) = self.lock().by_id.get_mut(&id) {
            *segment.holds.entry(receiver).or_insert(0) += 1;
        }
    }

    /// What to do before a message that names a segment is sent to a receiver.
    pub(super) fn way(&self, id: u64, receiver: u64) -> Way {
        let mut state = self.lock();
        let pause = state
            .refused_until
            .get(&receiver)
            .is_some_and(|until| Instant::now() < *until);
        let Some(segment) = state.by_id.get_mut(&id) else {
            return Way::Inline;
        };
        match segment.reach.get(&receiver) {
            Some(Reach::Ready) => return Way::Ready,
            Some(Reach::Offered) => return Way::Wait,
            Some(Reach::Refused) => return Way::Inline,
            None if pause => return Way::Inline,
            None => {}
        }
        match segment.memory.file.try_clone() {
            Ok(file) => {
                segment.reach.insert(receiver, Reach::Offered);
                Way::Offer(file)
            }
            Err(_) => Way::Inline,
        }
    }

    /// A receiver's answer to an offer, or the news that the offer could not be made.
    pub(super) fn answered(&self, id: u64, receiver: u64, ok: bool) {
        let mut state = self.lock();
        if !ok {
            state
                .refused_until
                .insert(receiver, Instant::now() + REFUSAL_PAUSE);
        }
        match state
            .by_id
            .get_mut(&id)
            .map(|segment| segment.reach.get_mut(&receiver))
        {
            Some(Some(reach @ Reach::Offered)) => *reach = if ok { Reach::Ready } else { Reach::Refused },
            None if ok => state.forgotten.push((receiver, id)),
            _ => {} // the answer of an incarnation that is gone, or a refusal of what is gone
        }
    }

    /// A receiver let go of one part, or says that a segment must never be filled again.
    pub(super) fn released(&self, id: u64, generation: u32, receiver: u64, retire: bool) {
        let mut state = self.lock();
        let Some(segment) = state.by_id.get_mut(&id) else {
            return;
        };
        if segment.generation != generation {
            return; // a peer that is wrong about what it holds must not free what another holds
        }
        if retire {
            segment.retired = true;
            return;
        }
        if let Some(count) = segment.holds.get_mut(&receiver) {
            *count -= 1;
            if *count == 0 {
                segment.holds.remove(&receiver);
            }
        }
        state.settle(id, self.limits);
    }

    /// A receiver ended: it holds nothing any more, and its next incarnation has mapped nothing.
    pub(super) fn receiver_gone(&self, receiver: u64) {
        let mut state = self.lock();
        state.refused_until.remove(&receiver);
        state.forgotten.retain(|(other, _)| *other != receiver);
        let ids: Vec<u64> = state.by_id.keys().copied().collect();
        for id in ids {
            if let Some(segment) = state.by_id.get_mut(&id) {
                segment.reach.remove(&receiver);
                if segment.holds.remove(&receiver).is_some() {
                    state.settle(id, self.limits);
                }
            }
        }
    }

    /// Give idle memory back that was not used for a while.
    pub(super) fn trim(&self) {
        self.lock().trim(usize::MAX, Instant::now());
    }

    /// The segments that are gone, each with a receiver that still maps it and is to be told.
    pub(super) fn drain_forgotten(&self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.lock().forgotten)
    }

    /// Bytes in all segments, and those that are idle.
    pub(super) fn bytes(&self) -> (usize, usize) {
        let state = self.lock();
        (state.bytes, state.idle_bytes())
    }

    fn lock(&self) -> MutexGuard<'_, Segments> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
