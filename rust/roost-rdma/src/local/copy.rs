//! Copying one chunk.

use super::cut::{Chunk, Piece};
use super::pool::Operation;
use super::streaming::copy;
use super::vm::{Fault, Vectors, Way};
use super::{Mapped, Place};
use crate::error::Error;
use crate::plan::Direction;

/// What a thread keeps from chunk to chunk.
#[derive(Default)]
pub(super) struct Copier {
    vectors: Vectors,
    /// The part of each vector.
    parts: Vec<usize>,
}

impl Copier {
    /// Copy a chunk.
    ///
    /// # Safety
    ///
    /// The local memory of the operation's parts must be its own to read from or to write to.
    pub(super) unsafe fn copy(&mut self, operation: &Operation, chunk: &Chunk) -> Result<(), Error> {
        self.vectors.clear();
        self.parts.clear();
        let mut gathered: Option<(&Way, Direction)> = None;
        for piece in chunk.pieces(&operation.parts) {
            let direction = operation.parts[piece.part].direction;
            match &operation.places[piece.part] {
                Place::Process { way, base } => {
                    let is_another = gathered.is_some_and(|(before, which)| {
                        !std::ptr::eq(before, &raw const **way) || which != direction
                    });
                    if is_another {
                        // SAFETY: the caller vouches for the local memory.
                        unsafe { self.flush(operation, gathered) }?;
                    }
                    gathered = Some((way, direction));
                    self.gather(operation, *base, &piece)?;
                }
                Place::Shared { mapped, base, .. } => {
                    // SAFETY: as above.
                    unsafe { copy_mapped(operation, mapped, *base, direction, &piece) }?;
                }
            }
        }
        // SAFETY: as above.
        unsafe { self.flush(operation, gathered) }
    }

    fn gather(&mut self, operation: &Operation, base: u64, piece: &Piece) -> Result<(), Error> {
        let remote = base
            .checked_add(piece.remote)
            .and_then(|address| usize::try_from(address).ok());
        let (Some(remote), Ok(bytes)) = (remote, usize::try_from(piece.bytes)) else {
            return Err(operation.failure(piece.part, &Fault::Gone));
        };
        self.vectors.push(piece.local, remote, bytes);
        self.parts.push(piece.part);
        Ok(())
    }

    unsafe fn flush(
        &mut self,
        operation: &Operation,
        gathered: Option<(&Way, Direction)>,
    ) -> Result<(), Error> {
        let Some((way, direction)) = gathered else {
            return Ok(());
        };
        // SAFETY: the caller vouches for the local memory.
        let copied = unsafe { way.copy(direction, &mut self.vectors) };
        let result = copied.map_err(|(vector, fault)| operation.failure(self.parts[vector], &fault));
        self.vectors.clear();
        self.parts.clear();
        result
    }
}

/// Copy between shared memory and this process.
unsafe fn copy_mapped(
    operation: &Operation,
    mapped: &Mapped,
    base: u64,
    direction: Direction,
    piece: &Piece,
) -> Result<(), Error> {
    let place = base
        .checked_add(piece.remote)
        .and_then(|offset| mapped.range(offset, piece.bytes));
    let (Some(place), Ok(bytes)) = (place, usize::try_from(piece.bytes)) else {
        return Err(operation.failure(piece.part, &Fault::Gone));
    };
    let local = std::ptr::with_exposed_provenance_mut::<u8>(piece.local);
    // SAFETY: the caller vouches for the local memory, `range` for the mapped. Both may lie in one segment and overlap
    // when this process reads its own buffer, which `copy` allows. The owner may write meanwhile: the bytes are then
    // whatever was seen, and the stamps tell.
    unsafe {
        match direction {
            Direction::Read => copy(place, local, bytes, operation.total),
            Direction::Write => copy(local, place, bytes, operation.total),
        }
    }
    Ok(())
}

impl Operation {
    /// What went wrong with a part, in words.
    fn failure(&self, part: usize, fault: &Fault) -> Error {
        // The only part of a transfer needs no number.
        let of = if self.parts.len() == 1 {
            String::new()
        } else {
            format!("part {part}: ")
        };
        match fault {
            Fault::Gone => Error::Gone(format!("{of}its memory is not there any more")),
            Fault::PeerLost => Error::PeerLost(format!("{of}its process has ended")),
            Fault::LocalGone => Error::Failed {
                part,
                reason: "this process's side of it is not there any more, or may not be written to".into(),
            },
            Fault::Forbidden(error) => {
                Error::Unavailable(format!("{of}its memory cannot be reached directly: {error}"))
            }
            Fault::System(error) => Error::Failed {
                part,
                reason: error.to_string(),
            },
        }
    }
}
