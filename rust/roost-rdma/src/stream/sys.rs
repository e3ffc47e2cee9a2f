//! System calls that take addresses instead of slices: nobody may make a reference to memory that can go away.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use crate::limits::DESCRIPTORS_MAX;

/// A count that is in memory, and so fits.
pub(super) fn size(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a 64-bit machine")
}

pub(super) fn slice(address: usize, bytes: usize) -> libc::iovec {
    libc::iovec {
        iov_base: ptr::with_exposed_provenance_mut(address),
        iov_len: bytes,
    }
}

/// Aligned as the kernel wants control messages, with room for the most descriptors.
#[repr(C, align(8))]
struct Control([u8; 64]);

#[allow(clippy::cast_possible_truncation, reason = "a few descriptors")]
const DESCRIPTORS_BYTES: u32 = (DESCRIPTORS_MAX * size_of::<RawFd>()) as u32;
// SAFETY: computes a length.
const _: () = assert!(unsafe { libc::CMSG_SPACE(DESCRIPTORS_BYTES) } <= 64);

/// Sends what the slices name, with these descriptors. `EFAULT` where something is not mapped.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    slices: &mut [libc::iovec],
    descriptors: &[OwnedFd],
) -> io::Result<usize> {
    let mut control = Control([0; 64]);
    // SAFETY: all zeros is a message without anything.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = slices.as_mut_ptr();
    message.msg_iovlen = slices.len();
    if !descriptors.is_empty() {
        let bytes = u32::try_from(size_of_val(descriptors)).expect("a few");
        message.msg_control = ptr::from_mut(&mut control).cast();
        // SAFETY: computes a length.
        message.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as usize;
        // SAFETY: the control buffer has room for one header with so many descriptors (see the assertion above), which
        // its alignment suits.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as usize;
            let data: *mut RawFd = libc::CMSG_DATA(header).cast();
            for (index, descriptor) in descriptors.iter().enumerate() {
                data.add(index).write_unaligned(descriptor.as_raw_fd());
            }
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message's slices and control buffer live until the call returns; what the slices name is only read, by
    // the kernel, which checks each address.
    retry(|| unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) })
}

/// Receives into what the slices name, and descriptors that came with it; zero bytes at the end of the stream. `EFAULT`
/// where something is not mapped.
///
/// # Safety
///
/// Whatever is mapped at these addresses is the transfer's to write to.
pub(super) unsafe fn receive(
    socket: BorrowedFd<'_>,
    slices: &mut [libc::iovec],
    descriptors: &mut VecDeque<OwnedFd>,
) -> io::Result<usize> {
    let mut control = Control([0; 64]);
    // SAFETY: all zeros is a message without anything.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = slices.as_mut_ptr();
    message.msg_iovlen = slices.len();
    message.msg_control = ptr::from_mut(&mut control).cast();
    message.msg_controllen = size_of::<Control>();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message's slices and control buffer live until the call returns; the caller promises the rest.
    let count = retry(|| unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) })?;
    // SAFETY: the kernel has written this header, or there is none; its length says how many descriptors follow, and each
    // of them is new and nobody else's.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                let data: *const RawFd = libc::CMSG_DATA(header).cast();
                for index in 0..bytes / size_of::<RawFd>() {
                    descriptors.push_back(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    Ok(count)
}

/// Copies to an address of this process, which may not be mapped.
///
/// # Safety
///
/// Whatever is mapped there is the transfer's to write to.
pub(super) unsafe fn copy_in(address: usize, bytes: &[u8]) -> io::Result<()> {
    let local = slice(bytes.as_ptr().expose_provenance(), bytes.len());
    let remote = slice(address, bytes.len());
    // SAFETY: the local side is a live slice that is only read; the caller promises the other.
    let count = retry(|| unsafe {
        libc::process_vm_writev(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    })?;
    whole(count, bytes.len())
}

/// Copies from an address of this process, which may not be mapped.
pub(super) fn copy_out(address: usize, into: &mut [u8]) -> io::Result<()> {
    let local = slice(into.as_mut_ptr().expose_provenance(), into.len());
    let remote = slice(address, into.len());
    // SAFETY: the local side is a live slice that is this function's alone; the kernel checks the other.
    let count = retry(|| unsafe {
        libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    })?;
    whole(count, into.len())
}

/// A hole gives a short count and no error.
fn whole(count: usize, wanted: usize) -> io::Result<()> {
    if count == wanted {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EFAULT))
    }
}

fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        if let Ok(count) = usize::try_from(call()) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

pub(super) fn is_fault(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EFAULT)
}
