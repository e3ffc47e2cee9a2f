//! The segments of a sender: who writes and holds each, and which are given back.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::memory::{Mapping, Source, make_file};

/// An idle segment is given back to the system after this time.
const IDLE_TIME_MAX: Duration = Duration::from_secs(30);

/// What a process may have in segments: bytes, in use and idle, and as many segments as leave it descriptors for other things,
/// since each has one.
#[derive(Clone, Copy)]
#[expect(clippy::struct_field_names, reason = "units and bounds stand last")]
pub(super) struct PoolLimits {
    pub(super) bytes_max: usize,
    pub(super) idle_bytes_max: usize,
    pub(super) segments_max: usize,
}

/// The memory of one segment.
pub(super) struct SegmentMemory {
    pub(super) file: OwnedFd,
    pub(super) mapping: Mapping,
}

/// How far a receiver is with a segment's descriptor.
pub(super) enum Reach {
    Offered,
    Ready,
    Refused,
}

/// One segment.
pub(super) struct Segment {
    pub(super) memory: Arc<SegmentMemory>,
    pub(super) generation: u32,
    /// Messages of this process that still name this generation.
    pub(super) writers: u32,
    /// How many parts each receiver was sent and has not released.
    pub(super) holds: HashMap<u64, u32>,
    pub(super) reach: HashMap<u64, Reach>,
    /// Somebody may look at its pages for ever: it is never filled again.
    pub(super) retired: bool,
    pub(super) populated: bool,
    pub(super) idle_since: Instant,
}

impl Segment {
    pub(super) fn is_idle(&self) -> bool {
        self.writers == 0 && self.holds.is_empty()
    }
}

/// All segments of a process as a sender, and who cannot be offered any.
pub(super) struct Segments {
    pub(super) by_id: HashMap<u64, Segment>,
    pub(super) next_id: u64,
    pub(super) bytes: usize,
    /// Segments that are gone, for receivers that still map them.
    pub(super) forgotten: Vec<(u64, u64)>,
    pub(super) refused_until: HashMap<u64, Instant>,
}

impl Segments {
    /// A segment may have become idle: keep it, or give it back.
    pub(super) fn settle(&mut self, id: u64, limits: PoolLimits) {
        let Some(segment) = self.by_id.get_mut(&id) else {
            return;
        };
        if !segment.is_idle() {
            return;
        }
        segment.idle_since = Instant::now();
        if segment.retired || segment.generation == u32::MAX {
            self.remove(id);
        } else if self.idle_bytes() > limits.idle_bytes_max {
            self.remove_oldest_idle();
        }
    }

    /// Remove what is idle for long, and more of it, the oldest first, until no more than `bytes_max` are
    /// left.
    pub(super) fn trim(&mut self, bytes_max: usize, now: Instant) {
        let is_old =
            |segment: &Segment| segment.is_idle() && now.duration_since(segment.idle_since) > IDLE_TIME_MAX;
        let old: Vec<u64> = self
            .by_id
            .iter()
            .filter(|(_, segment)| is_old(segment))
            .map(|(&id, _)| id)
            .collect();
        for id in old {
            self.remove(id);
        }
        while self.bytes > bytes_max && self.remove_oldest_idle() {}
    }

    pub(super) fn remove_oldest_idle(&mut self) -> bool {
        let idle = self.by_id.iter().filter(|(_, segment)| segment.is_idle());
        let oldest = idle
            .min_by_key(|(_, segment)| segment.idle_since)
            .map(|(&id, _)| id);
        oldest.is_some_and(|id| self.remove(id))
    }

    pub(super) fn remove(&mut self, id: u64) -> bool {
        let Some(segment) = self.by_id.remove(&id) else {
            return false;
        };
        self.bytes -= segment.memory.mapping.length();
        let mapped = segment
            .reach
            .iter()
            .filter(|(_, reach)| matches!(reach, Reach::Ready));
        self.forgotten.extend(mapped.map(|(&receiver, _)| (receiver, id)));
        true
    }

    pub(super) fn idle_bytes(&self) -> usize {
        self.by_id
            .values()
            .filter(|segment| segment.is_idle())
            .map(|segment| segment.memory.mapping.length())
            .sum()
    }
}

impl SegmentMemory {
    /// The address of a part, for those that copy it again.
    pub(super) fn source(&self, offset: usize, length: usize) -> Source {
        assert!(
            length <= self.mapping.length() - offset,
            "a part lies inside its segment"
        );
        Source {
            address: self.mapping.pointer(offset),
            length,
        }
    }

    /// Bytes of the whole segment.
    pub(super) fn length(&self) -> usize {
        self.mapping.length()
    }
}

pub(super) fn make_segment(capacity: usize) -> io::Result<Arc<SegmentMemory>> {
    let file = make_file(capacity)?;
    let mapping = Mapping::shared_writable(file.as_fd(), capacity)?;
    mapping.keep_from_children();
    Ok(Arc::new(SegmentMemory { file, mapping }))
}

/// Eight sizes for each doubling: at most an eighth is wasted, and messages of about one size share segments.
pub(super) fn size_class(length: usize) -> Option<usize> {
    let step = (length.checked_next_power_of_two()? / 16).max(super::SEGMENT_BYTES_MIN / 4);
    length.checked_next_multiple_of(step)
}
