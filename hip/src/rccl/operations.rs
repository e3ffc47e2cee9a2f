//! The operations of a communicator: each is one call of the library's, in the order of a stream.

use std::ffi::c_void;

use super::communicator::{Communicator, Progress, int};
use super::{DataType, ReduceOp, nccl};
use crate::error::GpuError;
use crate::rocm_compat::cudaStream_t;

/// What a collective works on: addresses that the ranks' devices reach, and what lies there.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// Where the elements are read.
    pub from: *const c_void,
    /// Where the result is written; the same as `from` in place.
    pub to: *mut c_void,
    /// How many elements, as the operation counts them: of what one rank sends, or for a reduce-scatter gets.
    pub count: usize,
    /// What they are.
    pub data_type: DataType,
    /// The stream in whose order it happens; null is the default one.
    pub stream: cudaStream_t,
}

impl Operation {
    /// Eight-bit floats are moved as bytes, whose sum would be nonsense.
    fn may_reduce(&self) -> Result<(), GpuError> {
        match self.data_type {
            DataType::Fp8 => Err(GpuError::refused(
                "fp8 is moved as bytes and cannot be reduced: dequantise it first",
            )),
            _ => Ok(()),
        }
    }
}

/// One call with the handle: the library's function with its own arguments, and behind them the communicator and the
/// stream, which all of them end in.
macro_rules! collective {
    ($this:expr, $function:ident($($argument:expr),*), $stream:expr) => {{
        let loaded = $this.collectives().loaded();
        // SAFETY: the handle is live during the call; for the addresses the method's caller answers.
        $this.with(|comm| unsafe { nccl!(loaded, comm, $function($($argument),*, comm, $stream)) })
    }};
}

impl Communicator {
    /// Reduces to all ranks.
    ///
    /// # Safety
    ///
    /// The addresses are what [`Operation`] says, for this rank's device, until its stream has come past the operation, or
    /// after an abort until [`Self::wait_until_over`].
    ///
    /// # Errors
    ///
    /// What the library says; [`GpuError::Aborted`] once it was.
    pub unsafe fn all_reduce(&self, on: Operation, op: ReduceOp) -> Result<Progress, GpuError> {
        on.may_reduce()?;
        let (kind, op) = (on.data_type.number(), op.number());
        collective!(self, ncclAllReduce(on.from, on.to, on.count, kind, op), on.stream)
    }

    /// Reduces to one rank, the root.
    ///
    /// # Safety
    ///
    /// As for [`Self::all_reduce`].
    ///
    /// # Errors
    ///
    /// As for [`Self::all_reduce`].
    pub unsafe fn reduce(&self, on: Operation, op: ReduceOp, root: u32) -> Result<Progress, GpuError> {
        on.may_reduce()?;
        let (kind, op, root) = (on.data_type.number(), op.number(), int(root)?);
        collective!(
            self,
            ncclReduce(on.from, on.to, on.count, kind, op, root),
            on.stream
        )
    }

    /// Reduces, and each rank gets its part: `count` elements of the sum of `count` times ranks.
    ///
    /// # Safety
    ///
    /// As for [`Self::all_reduce`].
    ///
    /// # Errors
    ///
    /// As for [`Self::all_reduce`].
    pub unsafe fn reduce_scatter(&self, on: Operation, op: ReduceOp) -> Result<Progress, GpuError> {
        on.may_reduce()?;
        let (kind, op) = (on.data_type.number(), op.number());
        collective!(
            self,
            ncclReduceScatter(on.from, on.to, on.count, kind, op),
            on.stream
        )
    }

    /// Every rank gets what all have, in the order of ranks.
    ///
    /// # Safety
    ///
    /// As for [`Self::all_reduce`].
    ///
    /// # Errors
    ///
    /// As for [`Self::all_reduce`].
    pub unsafe fn all_gather(&self, on: Operation) -> Result<Progress, GpuError> {
        let kind = on.data_type.number();
        collective!(self, ncclAllGather(on.from, on.to, on.count, kind), on.stream)
    }

    /// Every rank gets what the root has.
    ///
    /// # Safety
    ///
    /// As for [`Self::all_reduce`].
    ///
    /// # Errors
    ///
    /// As for [`Self::all_reduce`].
    pub unsafe fn broadcast(&self, on: Operation, root: u32) -> Result<Progress, GpuError> {
        let (kind, root) = (on.data_type.number(), int(root)?);
        collective!(
            self,
            ncclBroadcast(on.from, on.to, on.count, kind, root),
            on.stream
        )
    }

    /// Sends `from` to one rank, which receives as many. Several that need each other go in a [`Self::group`].
    ///
    /// # Safety
    ///
    /// As for [`Self::all_reduce`].
    ///
    /// # Errors
    ///
    /// As for [`Self::all_reduce`].
    pub unsafe fn send(&self, on: Operation, peer: u32) -> Result<Progress, GpuError> {
        let (kind, peer) = (on.data_type.number(), int(peer)?);
        collective!(self, ncclSend(on.from, on.count, kind, peer), on.stream)
    }

    /// Receives `to` from one rank, which sends as many.
    ///
    /// # Safety
    ///
    /// As for [`Self::all_reduce`].
    ///
    /// # Errors
    ///
    /// As for [`Self::all_reduce`].
    pub unsafe fn receive(&self, on: Operation, peer: u32) -> Result<Progress, GpuError> {
        let (kind, peer) = (on.data_type.number(), int(peer)?);
        collective!(self, ncclRecv(on.to, on.count, kind, peer), on.stream)
    }

    /// Each rank sends `count` elements to every rank, and gets as many of each. Not in place. Where the library has no
    /// such call, it is a group of sends and receives.
    ///
    /// # Safety
    ///
    /// As for [`Self::all_reduce`], with `count` times ranks elements on both sides.
    ///
    /// # Errors
    ///
    /// As for [`Self::all_reduce`].
    pub unsafe fn all_to_all(&self, on: Operation) -> Result<Progress, GpuError> {
        let kind = on.data_type.number();
        if self.collectives().loaded().functions.ncclAlltoAll.is_some() {
            return collective!(self, ncclAlltoAll(on.from, on.to, on.count, kind), on.stream);
        }
        let (ranks, _) = self.size_and_rank()?;
        self.group(|| {
            for peer in 0..ranks {
                let skipped = peer as usize * on.count * on.data_type.bytes();
                let (from, to) = (
                    on.from.wrapping_byte_add(skipped),
                    on.to.wrapping_byte_add(skipped),
                );
                let part = Operation { from, to, ..on };
                // SAFETY: a part of what the caller answers for.
                unsafe { self.send(part, peer) }?;
                // SAFETY: as above.
                unsafe { self.receive(part, peer) }?;
            }
            Ok(())
        })
    }

    /// Runs operations of this communicator as one: all are begun before any is waited for. Sends and receives that need
    /// each other go in one. An abort waits for the group's end as it does for a single call.
    ///
    /// # Errors
    ///
    /// What an operation or the end of the group says. The group is ended either way.
    pub fn group(&self, work: impl FnOnce() -> Result<(), GpuError>) -> Result<Progress, GpuError> {
        self.with(|_| self.collectives().group(work))
    }
}
