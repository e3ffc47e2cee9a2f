//! Sums of bytes that lie in this process, as the kernel finds them.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Fault, Progress, Span, sys};
use crate::checksum::Checksum;
use crate::link::Status;

/// Copied and summed at once: it stays in the processor's cache in between.
const STEP_BYTES: usize = 256 << 10;

/// Takes the spans' bytes, in their order.
///
/// # Errors
///
/// The span whose memory is not there; [`Status::GivenUp`] when they are not wanted any more.
pub(crate) fn sum(into: &mut Checksum, spans: &[Span], is_unwanted: &AtomicBool) -> Result<(), Fault> {
    let mut progress = Progress::new(spans.to_vec());
    let mut scratch = vec![0; STEP_BYTES.min(sys::size(progress.left))];
    while let Some((address, bytes)) = progress.first(scratch.len()) {
        if is_unwanted.load(Ordering::Acquire) {
            progress.fail(Status::GivenUp);
        } else if sys::copy_out(address, &mut scratch[..bytes]).is_err() {
            progress.fail(Status::Unmapped);
        }
        if let Some(fault) = progress.fault {
            return Err(fault);
        }
        into.update(&scratch[..bytes]);
        progress.advance(bytes as u64);
    }
    Ok(())
}
