//! What a transfer consists of: runs of bytes, made from n-dimensional views, and the checks before anything is moved.
//!
//! Nothing here knows of element types: a view is a shape, the bytes of an item and strides in bytes.

use std::sync::Arc;

use thiserror::Error as ThisError;

use crate::error::Error;
use crate::handle::Handle;

#[cfg(test)]
mod tests;

/// More runs than this are not made of one view. Each costs 24 bytes and some tens of nanoseconds, so a view that is
/// torn into that many is moved faster by a contiguous copy first.
pub const RUNS_MAX: u64 = 1 << 22;

/// Bytes that lie side by side in both places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Where they are in the buffer, in bytes from its start.
    pub remote: u64,
    /// Their address in this process.
    pub local: usize,
    /// How many.
    pub bytes: u64,
}

/// Which way the bytes go, seen from the process that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the buffer into this process.
    Read,
    /// From this process into the buffer.
    Write,
}

/// What is moved between one buffer and this process.
#[derive(Debug, Clone)]
pub struct Part {
    /// Which way.
    pub direction: Direction,
    /// The buffer.
    pub handle: Arc<Handle>,
    /// What of it, in the order in which a checksum takes the bytes.
    pub runs: Vec<Run>,
}

impl Part {
    /// All bytes of the part. Saturates: [`check`] refuses what does not fit long before.
    pub fn bytes(&self) -> u64 {
        self.runs
            .iter()
            .fold(0, |sum: u64, run| sum.saturating_add(run.bytes))
    }
}

/// What was asked for cannot be.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum Misuse {
    /// A part moves nothing.
    #[error("part {part} moves zero bytes")]
    Empty {
        /// Its place in the batch, from 0.
        part: usize,
    },
    /// A part reaches beyond its buffer.
    #[error("part {part} reaches to byte {end} of a buffer of {size} bytes")]
    Beyond {
        /// Its place in the batch, from 0.
        part: usize,
        /// One past the last byte that it asks for.
        end: u64,
        /// The buffer's size.
        size: u64,
    },
    /// A part reaches beyond what an address can say.
    #[error("part {part} reaches beyond the end of the address space")]
    Address {
        /// Its place in the batch, from 0.
        part: usize,
    },
    /// Two targets have bytes in common, so that the result would depend on their order.
    #[error("part {part} writes to bytes that part {other} writes to as well")]
    Overlap {
        /// Its place in the batch, from 0.
        part: usize,
        /// The other's place, at most `part`; the same for a part that meets itself.
        other: usize,
    },
    /// Shape and strides do not belong together.
    #[error("{dimensions} dimensions with {remote} strides there and {local} strides here")]
    Dimensions {
        /// Of the shape.
        dimensions: usize,
        /// Strides of the buffer's side.
        remote: usize,
        /// Strides of this side.
        local: usize,
    },
    /// A view of no items, or of items without bytes.
    #[error("a view of zero bytes")]
    EmptyView,
    /// A view that begins before its memory, or ends behind what an address can say.
    #[error("a view that reaches out of its memory")]
    ViewBeyond,
    /// A view that falls into too many pieces.
    #[error(
        "a view of {runs} separate pieces, at most {RUNS_MAX} are moved at once: make it contiguous first"
    )]
    TooManyRuns {
        /// Its pieces.
        runs: u64,
    },
    /// An update was begun twice, or ended without a beginning.
    #[error("{0}")]
    Update(&'static str),
}

impl From<Misuse> for Error {
    fn from(misuse: Misuse) -> Self {
        Self::Misuse(misuse.to_string())
    }
}

/// One dimension of a view: items, and how far it is from one to the next on each side.
#[derive(Clone, Copy)]
struct Axis {
    items: i128,
    remote: i128,
    local: i128,
}

/// The runs of a view: `shape` items of `item_bytes` each, `remote_strides` bytes apart in the buffer from
/// `remote_offset` on, and `local_strides` bytes apart here from `local_address` on.
///
/// The runs are as few and as long as the strides allow, whatever the order of the dimensions, and cover each item
/// once. Their order is by place in the buffer where strides do not interleave.
///
/// # Errors
///
/// [`Misuse`] for zero bytes, for a view that begins before its memory or ends beyond what can be addressed, and for
/// one of more than [`RUNS_MAX`] pieces. The end of the buffer is [`check`]'s.
pub fn strided(
    shape: &[u64],
    item_bytes: u64,
    remote_offset: u64,
    remote_strides: &[i64],
    local_address: usize,
    local_strides: &[i64],
) -> Result<Vec<Run>, Misuse> {
    if shape.len() != remote_strides.len() || shape.len() != local_strides.len() {
        return Err(Misuse::Dimensions {
            dimensions: shape.len(),
            remote: remote_strides.len(),
            local: local_strides.len(),
        });
    }
    if item_bytes == 0 || shape.contains(&0) {
        return Err(Misuse::EmptyView);
    }
    let axes = shape.iter().zip(remote_strides.iter().zip(local_strides));
    let axes = axes
        .filter(|&(&items, _)| items > 1)
        .map(|(&items, (&remote, &local))| Axis {
            items: i128::from(items),
            remote: i128::from(remote),
            local: i128::from(local),
        });
    let mut start = Start {
        remote: i128::from(remote_offset),
        local: local_address as i128,
    };
    let mut axes: Vec<Axis> = axes.collect();
    turn(&mut axes, &mut start)?;
    // Outermost first. Items are moved in whatever order gives the longest runs: a transposed view of both sides is
    // as good as a straight one.
    axes.sort_by_key(|axis| std::cmp::Reverse((axis.remote, axis.local)));
    let bytes = merge(&mut axes, i128::from(item_bytes));
    within(&axes, &start, bytes)?;
    lay_out(&axes, &start, bytes)
}

/// Where the first item of a view is.
struct Start {
    remote: i128,
    local: i128,
}

/// Turn dimensions round that run backwards in the buffer, so that their first item is their lowest.
fn turn(axes: &mut [Axis], start: &mut Start) -> Result<(), Misuse> {
    for axis in axes {
        if axis.remote < 0 || (axis.remote == 0 && axis.local < 0) {
            let last = axis.items - 1;
            // A product of two 64-bit numbers; the sums of any shape that fits into memory stay far inside 128.
            start.remote = start
                .remote
                .checked_add(last * axis.remote)
                .ok_or(Misuse::ViewBeyond)?;
            start.local = start
                .local
                .checked_add(last * axis.local)
                .ok_or(Misuse::ViewBeyond)?;
            axis.remote = -axis.remote;
            axis.local = -axis.local;
        }
    }
    Ok(())
}

/// Join dimensions that continue each other on both sides. Returns the bytes of one run.
fn merge(axes: &mut Vec<Axis>, item_bytes: i128) -> i128 {
    let mut bytes = item_bytes;
    while let Some(axis) = axes.pop_if(|axis| axis.remote == bytes && axis.local == bytes) {
        bytes = bytes.saturating_mul(axis.items);
    }
    let mut merged: Vec<Axis> = Vec::with_capacity(axes.len());
    for axis in axes.drain(..) {
        let continues = |outer: &Axis| {
            Some(outer.remote) == axis.remote.checked_mul(axis.items)
                && Some(outer.local) == axis.local.checked_mul(axis.items)
        };
        match merged.last_mut() {
            Some(outer) if continues(outer) => {
                *outer = Axis {
                    items: outer.items.saturating_mul(axis.items),
                    ..axis
                };
            }
            _ => merged.push(axis),
        }
    }
    *axes = merged;
    bytes
}

/// Check that a view stays inside what offsets and addresses can say.
fn within(axes: &[Axis], start: &Start, bytes: i128) -> Result<(), Misuse> {
    let (mut remote_end, mut local_end, mut local_start) = (start.remote, start.local, start.local);
    for axis in axes {
        let last = axis.items - 1;
        let reach = |at: i128, stride: i128| {
            let far = last.checked_mul(stride)?;
            at.checked_add(far)
        };
        remote_end = reach(remote_end, axis.remote).ok_or(Misuse::ViewBeyond)?;
        if axis.local < 0 {
            local_start = reach(local_start, axis.local).ok_or(Misuse::ViewBeyond)?;
        } else {
            local_end = reach(local_end, axis.local).ok_or(Misuse::ViewBeyond)?;
        }
    }
    let ends = |at: i128, limit: i128| at.checked_add(bytes).is_some_and(|end| end <= limit);
    let fits = start.remote >= 0
        && local_start >= 0
        && ends(remote_end, i128::from(u64::MAX))
        && ends(local_end, usize::MAX as i128);
    if fits { Ok(()) } else { Err(Misuse::ViewBeyond) }
}

/// Write the runs of a view down, the last dimension fastest.
fn lay_out(axes: &[Axis], start: &Start, bytes: i128) -> Result<Vec<Run>, Misuse> {
    let runs = axes
        .iter()
        .fold(1_i128, |runs, axis| runs.saturating_mul(axis.items));
    if runs > i128::from(RUNS_MAX) {
        return Err(Misuse::TooManyRuns {
            runs: u64::try_from(runs).unwrap_or(u64::MAX),
        });
    }
    let mut laid = Vec::with_capacity(usize::try_from(runs).unwrap_or_default());
    let mut at = vec![0_i128; axes.len()];
    let (mut remote, mut local) = (start.remote, start.local);
    loop {
        laid.push(Run {
            remote: u64::try_from(remote).map_err(|_| Misuse::ViewBeyond)?,
            local: usize::try_from(local).map_err(|_| Misuse::ViewBeyond)?,
            bytes: u64::try_from(bytes).map_err(|_| Misuse::ViewBeyond)?,
        });
        let mut dimension = axes.len();
        loop {
            if dimension == 0 {
                return Ok(laid);
            }
            dimension -= 1;
            let axis = axes[dimension];
            at[dimension] += 1;
            remote += axis.remote;
            local += axis.local;
            if at[dimension] < axis.items {
                break;
            }
            at[dimension] = 0;
            remote -= axis.items * axis.remote;
            local -= axis.items * axis.local;
        }
    }
}

/// Add a run behind others, joined with the last where it continues it on both sides.
pub fn push(runs: &mut Vec<Run>, run: Run) {
    if let Some(last) = runs.last_mut()
        && last.remote.checked_add(last.bytes) == Some(run.remote)
        && (last.local as u64).checked_add(last.bytes) == Some(run.local as u64)
        && let Some(bytes) = last.bytes.checked_add(run.bytes)
    {
        last.bytes = bytes;
        return;
    }
    runs.push(run);
}

/// Check a batch before any of it is moved: every part has bytes, stays inside its buffer and inside the address
/// space, and no byte is the target of two runs. Sources may overlap. An empty batch is fine.
///
/// # Errors
///
/// The first thing that is wrong, with the number of its part.
pub fn check(parts: &[Part]) -> Result<(), Misuse> {
    let mut targets = Vec::with_capacity(parts.len());
    for (number, part) in parts.iter().enumerate() {
        if part.runs.is_empty() {
            return Err(Misuse::Empty { part: number });
        }
        for run in &part.runs {
            check_run(number, part, run)?;
            targets.push(Target::of(number, part, run));
        }
    }
    // What one view gave is sorted already, and sorting sorted targets is one pass over them.
    targets.sort();
    for pair in targets.windows(2) {
        if pair[0].place == pair[1].place && pair[1].start < pair[0].end {
            return Err(Misuse::Overlap {
                part: pair[0].part.max(pair[1].part),
                other: pair[0].part.min(pair[1].part),
            });
        }
    }
    Ok(())
}

fn check_run(number: usize, part: &Part, run: &Run) -> Result<(), Misuse> {
    if run.bytes == 0 {
        return Err(Misuse::Empty { part: number });
    }
    let (end, size) = (run.remote.saturating_add(run.bytes), part.handle.size);
    if end > size {
        return Err(Misuse::Beyond {
            part: number,
            end,
            size,
        });
    }
    let local_end = usize::try_from(run.bytes)
        .ok()
        .and_then(|bytes| run.local.checked_add(bytes));
    if local_end.is_none() {
        return Err(Misuse::Address { part: number });
    }
    Ok(())
}

/// Bytes that a run is going to change.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    /// None is this process's memory, else the buffer's number and key: both differ between any two buffers.
    place: Option<(u64, [u8; 16])>,
    start: u64,
    end: u64,
    part: usize,
}

impl Target {
    fn of(part: usize, of: &Part, run: &Run) -> Self {
        let (place, start) = match of.direction {
            Direction::Read => (None, run.local as u64),
            Direction::Write => (Some((of.handle.region, of.handle.key)), run.remote),
        };
        Self {
            place,
            start,
            end: start + run.bytes,
            part,
        }
    }
}
