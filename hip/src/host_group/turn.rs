//! One operation, piece by piece.
//!
//! All ranks put a piece into their slots. When all have, what is small is reduced by everybody for himself; of what is large
//! each rank reduces a share, and takes the others' shares from their slots when those have.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::agreement::{told, words};
use super::reduce::reduce;
use super::segment::{Line, Segment};
use super::waiting::Patience;
use super::{HostGroupError, Reduction};

/// What everybody reduces for himself, of all ranks together: some microseconds' work.
const SMALL_BYTES: usize = 64 * 1024;
/// Where shares begin: no two ranks write the same line of a cache.
const ALIGN: usize = 64;

/// What one rank has of the group.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) segment: Segment,
    pub(super) rank: usize,
    pub(super) aborted: AtomicBool,
}

/// Whoever has it does operations; there is one.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// How many pieces the group has done.
    pieces: u64,
    patience: Patience,
}

/// How far a rank was waited for in vain.
pub(super) type Behind = fn(&Line) -> &AtomicU64;
const POSTED: Behind = |line| &line.posted;
const REDUCED: Behind = |line| &line.reduced;

impl Place {
    pub(super) fn ranks(&self) -> usize {
        self.segment.lines().len()
    }

    /// Whether everybody reduces it for himself.
    pub(super) fn is_small(&self, reduction: &Reduction) -> bool {
        reduction.bytes() * self.ranks() <= SMALL_BYTES
    }

    /// Who has not brought the piece that this rank has.
    pub(super) fn lagging(&self) -> Vec<usize> {
        let own = &self.segment.lines()[self.rank];
        let (posted, reduced) = (
            own.posted.load(Ordering::SeqCst),
            own.reduced.load(Ordering::SeqCst),
        );
        if reduced < posted {
            return self.segment.behind(POSTED, posted).collect();
        }
        self.segment.behind(REDUCED, reduced).collect()
    }

    fn have_all(&self, what: Behind, wanted: u64) -> bool {
        self.segment.behind(what, wanted).next().is_none()
    }

    /// This rank has come so far. The last one to come wakes all others.
    fn come(&self, what: Behind, to: u64) {
        what(&self.segment.lines()[self.rank]).store(to, Ordering::SeqCst);
        if self.have_all(what, to) {
            self.segment.bell().ring();
        }
    }
}

impl Turn {
    /// Puts a small operation's only piece there, and ends it if the others have come or are about to. Whether it has.
    ///
    /// # Safety
    ///
    /// As for [`HostGroup::begin`](super::HostGroup::begin).
    ///
    /// # Errors
    ///
    /// When another rank is in an operation of another kind.
    pub(super) unsafe fn attempt(
        &mut self,
        place: &Place,
        reduction: &Reduction,
    ) -> Result<bool, HostGroupError> {
        // SAFETY: the caller's.
        unsafe { self.post(place, reduction, 0..reduction.bytes()) };
        let wanted = self.pieces + 1;
        if !self.patience.look(|| place.have_all(POSTED, wanted)) {
            return Ok(false);
        }
        // SAFETY: the caller's.
        unsafe { self.end_piece(place, reduction, 0..reduction.bytes()) }?;
        Ok(true)
    }

    /// Does an operation; blocks until all ranks have. Its first piece may have been posted.
    ///
    /// # Safety
    ///
    /// As for [`HostGroup::begin`](super::HostGroup::begin).
    ///
    /// # Errors
    ///
    /// When it is aborted, or another rank is in an operation of another kind.
    pub(super) unsafe fn perform(
        &mut self,
        place: &Place,
        reduction: &Reduction,
        mut is_posted: bool,
    ) -> Result<(), HostGroupError> {
        let bytes = reduction.bytes();
        let mut first = 0;
        loop {
            let piece = first..bytes.min(first + place.segment.buffer_bytes());
            if !std::mem::take(&mut is_posted) {
                // SAFETY: the caller's.
                unsafe { self.post(place, reduction, piece.clone()) };
            }
            self.wait(place, POSTED)?;
            // SAFETY: the caller's.
            unsafe { self.end_piece(place, reduction, piece.clone()) }?;
            first = piece.end;
            if first == bytes {
                return Ok(());
            }
        }
    }

    unsafe fn post(&self, place: &Place, reduction: &Reduction, piece: Range<usize>) {
        let buffer = place.segment.buffer(place.rank, self.pieces);
        // SAFETY: nobody reads this buffer any more, see `segment`; a piece fits; the elements are the caller's.
        unsafe {
            let from = (reduction.address as *const u8).add(piece.start);
            std::ptr::copy_nonoverlapping(from, buffer, piece.len());
        }
        let (bytes, kind) = doing(place, place.rank, self.pieces);
        let ours = words(reduction);
        bytes.store(ours.0, Ordering::Relaxed);
        kind.store(ours.1, Ordering::Relaxed);
        place.come(POSTED, self.pieces + 1);
    }

    /// When all have posted.
    unsafe fn end_piece(
        &mut self,
        place: &Place,
        reduction: &Reduction,
        piece: Range<usize>,
    ) -> Result<(), HostGroupError> {
        self.check(place, reduction)?;
        let ranks = place.ranks();
        let own = place.segment.buffer(place.rank, self.pieces);
        let share = |rank: usize| {
            let each = piece.len().div_ceil(ranks).next_multiple_of(ALIGN);
            (rank * each).min(piece.len())..((rank + 1) * each).min(piece.len())
        };
        let is_small = place.is_small(reduction);
        let part = if is_small {
            0..piece.len()
        } else {
            share(place.rank)
        };
        // SAFETY: all slots hold the piece, and stay so until all have begun the next; the caller's elements are written by
        // nobody else. A share in this rank's slot is read by nobody else until it says that it is reduced.
        unsafe {
            let to = (reduction.address as *mut u8).add(piece.start);
            let sources: Vec<*const u8> = (0..ranks)
                .map(|rank| {
                    place
                        .segment
                        .buffer(rank, self.pieces)
                        .add(part.start)
                        .cast_const()
                })
                .collect();
            let target = to.add(part.start);
            let shared = if is_small { target } else { own.add(part.start) };
            reduce(
                reduction.data_type,
                reduction.op,
                &sources,
                [target, shared],
                part.len(),
            );
        }
        if is_small {
            place.segment.lines()[place.rank]
                .reduced
                .store(self.pieces + 1, Ordering::SeqCst);
        } else {
            place.come(REDUCED, self.pieces + 1);
            self.wait(place, REDUCED)?;
            for rank in (0..ranks).filter(|rank| *rank != place.rank) {
                let part = share(rank);
                // SAFETY: that rank has written its share, and all of it stays until all have begun the next piece.
                unsafe {
                    let from = place.segment.buffer(rank, self.pieces).add(part.start);
                    let to = (reduction.address as *mut u8).add(piece.start + part.start);
                    std::ptr::copy_nonoverlapping(from, to, part.len());
                }
            }
        }
        self.pieces += 1;
        Ok(())
    }

    fn wait(&mut self, place: &Place, what: Behind) -> Result<(), HostGroupError> {
        let wanted = self.pieces + 1;
        let ready = || place.have_all(what, wanted);
        if self.patience.look(ready) || place.segment.bell().sleep_until(ready, &place.aborted) {
            return Ok(());
        }
        Err(HostGroupError::Aborted(String::new()))
    }

    /// All are in the same operation, as far as can be seen.
    fn check(&self, place: &Place, reduction: &Reduction) -> Result<(), HostGroupError> {
        let ours = words(reduction);
        for rank in 0..place.ranks() {
            let (bytes, kind) = doing(place, rank, self.pieces);
            let theirs = (bytes.load(Ordering::Relaxed), kind.load(Ordering::Relaxed));
            if theirs != ours {
                return Err(HostGroupError::Unlike {
                    rank: u32::try_from(rank).unwrap_or(u32::MAX),
                    theirs: told(theirs),
                    ours: told(ours),
                });
            }
        }
        Ok(())
    }
}

fn doing(place: &Place, rank: usize, piece: u64) -> &(AtomicU64, AtomicU64) {
    &place.segment.lines()[rank].doing[usize::from(piece % 2 == 1)]
}
