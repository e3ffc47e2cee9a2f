//! Which actors of a proc a message is for, and which rank each has in it.

use super::bytes::{put, u32_at};
use super::{EncodeError, ProtocolError};
use crate::limits;

const RUN_BYTES: usize = 20;

/// No slot has this number: in a credit it stands for a port.
const SLOT_END: u32 = u32::MAX;

/// Actors of one proc in even steps, and the rank that each has in the message's mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Run {
    /// The first actor's slot.
    pub slot: u32,
    /// How many actors, at least 1.
    pub count: u32,
    /// From one slot to the next; at least 1 where there is a next.
    pub slot_stride: u32,
    /// The first actor's rank.
    pub rank: u32,
    /// From one rank to the next.
    pub rank_stride: u32,
}

impl Run {
    /// A run of one actor.
    #[inline]
    pub const fn one(slot: u32, rank: u32) -> Self {
        Self {
            slot,
            count: 1,
            slot_stride: 1,
            rank,
            rank_stride: 1,
        }
    }

    #[inline]
    fn to_bytes(self) -> [u8; RUN_BYTES] {
        let mut bytes = [0; RUN_BYTES];
        put(&mut bytes, 0, self.slot.to_le_bytes());
        put(&mut bytes, 4, self.count.to_le_bytes());
        put(&mut bytes, 8, self.slot_stride.to_le_bytes());
        put(&mut bytes, 12, self.rank.to_le_bytes());
        put(&mut bytes, 16, self.rank_stride.to_le_bytes());
        bytes
    }

    #[inline]
    fn from_bytes(bytes: &[u8; RUN_BYTES]) -> Self {
        Self {
            slot: u32_at(bytes, 0),
            count: u32_at(bytes, 4),
            slot_stride: u32_at(bytes, 8),
            rank: u32_at(bytes, 12),
            rank_stride: u32_at(bytes, 16),
        }
    }

    /// Whether it names at least one actor, none twice, and none past the end of the numbers.
    #[inline]
    fn is_possible(self) -> bool {
        let Some(steps) = self.count.checked_sub(1) else {
            return false;
        };
        if steps == 0 {
            return self.slot < SLOT_END;
        }
        let last = |first: u32, stride: u32| stride.checked_mul(steps).and_then(|way| first.checked_add(way));
        self.slot_stride > 0
            && last(self.slot, self.slot_stride).is_some_and(|slot| slot < SLOT_END)
            && last(self.rank, self.rank_stride).is_some()
    }

    /// Each actor as (slot, rank), in order.
    #[inline]
    pub fn targets(self) -> impl Iterator<Item = (u32, u32)> {
        (0..self.count).map(move |step| {
            // Runs are checked where they are made or decoded; wrapping keeps this free of panics for any value.
            let slot = self.slot.wrapping_add(self.slot_stride.wrapping_mul(step));
            (slot, self.rank.wrapping_add(self.rank_stride.wrapping_mul(step)))
        })
    }
}

/// A checked list of runs in its wire form: encoded once, sent many times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Runs<'a> {
    bytes: &'a [u8],
}

impl<'a> Runs<'a> {
    /// Bytes of each run.
    pub(super) const BYTES_EACH: usize = RUN_BYTES;

    #[inline]
    pub(super) fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    #[inline]
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, ProtocolError> {
        let runs = Self { bytes };
        let mut targets = 0;
        for run in runs.iter() {
            if !run.is_possible() {
                let Run {
                    slot,
                    count,
                    slot_stride,
                    ..
                } = run;
                return Err(ProtocolError::BadRun {
                    slot,
                    count,
                    slot_stride,
                });
            }
            targets += u64::from(run.count);
        }
        ProtocolError::check("actors in one message", targets, limits::MESSAGE_TARGETS_MAX)?;
        Ok(runs)
    }

    /// How many runs there are.
    #[inline]
    pub fn count(&self) -> usize {
        self.bytes.len() / RUN_BYTES
    }

    /// The runs in order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = Run> + 'a {
        self.bytes.as_chunks().0.iter().map(Run::from_bytes)
    }

    /// Each actor as (slot, rank), in order, over all runs.
    #[inline]
    pub fn targets(&self) -> impl Iterator<Item = (u32, u32)> + 'a {
        self.iter().flat_map(Run::targets)
    }

    /// The one actor as (slot, rank), when there is just one: the usual message.
    #[inline]
    pub fn one(&self) -> Option<(u32, u32)> {
        let bytes: &[u8; RUN_BYTES] = self.bytes.try_into().ok()?;
        let run = Run::from_bytes(bytes);
        (run.count == 1).then_some((run.slot, run.rank))
    }
}

/// The list of runs of the usual message: one actor. Made and sent without allocating.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OneRun([u8; RUN_BYTES]);

impl OneRun {
    /// The run of this one actor; none for the last number, which is no slot.
    #[inline]
    pub fn new(slot: u32, rank: u32) -> Option<Self> {
        (slot < SLOT_END).then(|| Self(Run::one(slot, rank).to_bytes()))
    }

    /// The list, to send.
    #[inline]
    pub fn as_runs(&self) -> Runs<'_> {
        Runs { bytes: &self.0 }
    }
}

/// A list of runs that is being made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct RunsBuffer {
    bytes: Vec<u8>,
    targets: u64,
}

impl RunsBuffer {
    /// An empty list.
    pub const fn new() -> Self {
        Self {
            bytes: Vec::new(),
            targets: 0,
        }
    }

    /// Adds a run.
    ///
    /// # Errors
    ///
    /// [`EncodeError::BadRun`] for a run that names no actor, one twice, or one past the end of the numbers;
    /// [`EncodeError::TooMany`] when there would be too many runs or actors.
    pub fn push(&mut self, run: Run) -> Result<(), EncodeError> {
        if !run.is_possible() {
            let Run {
                slot,
                count,
                slot_stride,
                ..
            } = run;
            return Err(EncodeError::BadRun {
                slot,
                count,
                slot_stride,
            });
        }
        let runs = (self.bytes.len() / RUN_BYTES + 1) as u64;
        EncodeError::check("runs", runs, limits::MESSAGE_RUNS_MAX as u64)?;
        let targets = self.targets + u64::from(run.count);
        EncodeError::check("actors in one message", targets, limits::MESSAGE_TARGETS_MAX)?;
        self.targets = targets;
        self.bytes.extend_from_slice(&run.to_bytes());
        Ok(())
    }

    /// How many actors the runs name together.
    pub const fn targets(&self) -> u64 {
        self.targets
    }

    /// The list, to send.
    #[inline]
    pub fn as_runs(&self) -> Runs<'_> {
        Runs { bytes: &self.bytes }
    }
}
