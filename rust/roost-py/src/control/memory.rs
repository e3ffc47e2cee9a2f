//! Memory files: spec messages, started pages, long control messages.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};

/// A memory file that holds `bytes`.
pub(super) fn file(name: &str, bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC)?;
    write_at(&file, bytes, 0)?;
    Ok(file)
}

/// A memory file of zeros that cannot shrink: who maps it never meets a hole.
pub(super) fn page(name: &str, length: usize) -> Result<OwnedFd, Errno> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, length as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Write all of `bytes` at `offset`.
pub(super) fn write_at(file: impl AsFd, bytes: &[u8], offset: u64) -> Result<(), Errno> {
    let mut written = 0;
    while written < bytes.len() {
        written += pwrite(&file, &bytes[written..], offset + written as u64)?;
    }
    Ok(())
}

/// Read the first `length` bytes. Memory is taken only once the file is seen to be that long.
pub(super) fn read(file: impl AsFd, length: usize) -> Result<Vec<u8>, Errno> {
    let size = usize::try_from(fstat(&file)?.st_size).unwrap_or(0);
    if size < length {
        return Err(Errno::INVAL);
    }
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        match pread(&file, &mut bytes[filled..], filled as u64)? {
            0 => return Err(Errno::INVAL),
            count => filled += count,
        }
    }
    Ok(bytes)
}
