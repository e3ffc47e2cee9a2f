//! Copies of memory that does not fit into the caches.

/// From this size on a copy goes past the caches: it does not fit into them (64 MiB: 10 ms against 6.5).
const STREAMED_BYTES_MIN: u64 = 24 * 1024 * 1024;

/// Copy bytes that are part of a copy of `whole` bytes.
///
/// # Safety
///
/// As for [`std::ptr::copy`]: the two may overlap. Others may write to either side meanwhile; the bytes are then
/// whatever was seen.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize, whole: u64) {
    let overlap = from.addr().abs_diff(to.addr()) < bytes;
    // SAFETY: the caller vouches for both.
    unsafe {
        if overlap {
            std::ptr::copy(from, to, bytes);
        } else if whole >= STREAMED_BYTES_MIN {
            stream(from, to, bytes);
        } else {
            std::ptr::copy_nonoverlapping(from, to, bytes);
        }
    }
}

#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Copy past the caches, which would first read what is then written over.
///
/// Four pages are copied side by side, as glibc does for yet larger sizes: memory answers faster to several streams
/// than to one (64 MiB: 5 ms against 8, and 10 through the caches).
///
/// # Safety
///
/// As for [`std::ptr::copy_nonoverlapping`].
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch, _mm_sfence};

    const PAGE_BYTES: usize = 4096;
    const BLOCK_BYTES: usize = 4 * PAGE_BYTES;
    const AHEAD_BYTES: usize = 256;
    let head = to.align_offset(LINE_BYTES).min(bytes);
    let tail = head + (bytes - head) / BLOCK_BYTES * BLOCK_BYTES;
    // SAFETY: head, blocks and tail lie inside what the caller vouches for, and each line of a block begins at a
    // multiple of 64. A prefetch behind the end is no access.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for block in (head..tail).step_by(BLOCK_BYTES) {
            for line in (0..PAGE_BYTES).step_by(LINE_BYTES) {
                for page in (0..BLOCK_BYTES).step_by(PAGE_BYTES) {
                    let at = block + page + line;
                    _mm_prefetch(from.wrapping_add(at + AHEAD_BYTES).cast(), _MM_HINT_T0);
                    stream_line(from.add(at), to.add(at));
                }
            }
        }
        _mm_sfence();
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), bytes - tail);
    }
}

/// Copy one line of the cache past it.
///
/// # Safety
///
/// Both must be good for 64 bytes, and `to` a multiple of 64.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(
    clippy::inline_always,
    reason = "a call for each 64 bytes would cost as much as they do"
)]
#[allow(
    clippy::cast_ptr_alignment,
    reason = "reads are unaligned, and the caller aligns the target"
)]
unsafe fn stream_line(from: *const u8, to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
    // SAFETY: the caller vouches for both. SSE2 belongs to every x86-64.
    unsafe {
        let loaded = [0, 1, 2, 3].map(|at| _mm_loadu_si128(from.add(at)));
        for (at, value) in loaded.into_iter().enumerate() {
            _mm_stream_si128(to.add(at), value);
        }
    }
}

/// Copy large memory.
///
/// # Safety
///
/// As for [`std::ptr::copy_nonoverlapping`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller vouches for it.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_byte_and_no_other(bytes in 0_usize..100_000, from in 0_usize..70, to in 0_usize..70, whole in any::<bool>()) {
            let source: Vec<u8> = (0..bytes + 70).map(|at| u8::try_from(1 + at % 250).unwrap()).collect();
            let mut target = vec![0_u8; bytes + 140];
            let whole = if whole { STREAMED_BYTES_MIN } else { 0 };
            // SAFETY: both are longer by 70, which the offsets stay below.
            unsafe { copy(source.as_ptr().add(from), target.as_mut_ptr().add(to), bytes, whole) };
            prop_assert!(target[to..to + bytes] == source[from..from + bytes]);
            prop_assert!(target[..to].iter().chain(&target[to + bytes..]).all(|&byte| byte == 0));
        }

        #[test]
        fn one_memory_may_be_both(bytes in 0_usize..50_000, from in 0_usize..3000, to in 0_usize..3000) {
            let mut memory: Vec<u8> = (0..bytes + 3000).map(|at| u8::try_from(at % 251).unwrap()).collect();
            let before = memory.clone();
            let address = memory.as_mut_ptr();
            // SAFETY: the memory is longer by 3,000, which the offsets stay below.
            unsafe { copy(address.add(from), address.add(to), bytes, STREAMED_BYTES_MIN) };
            prop_assert!(memory[to..to + bytes] == before[from..from + bytes]);
        }
    }
}
