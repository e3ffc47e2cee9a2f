//! Memory files: spec messages, started pages, long control messages.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, SeekFrom, fcntl_add_seals, fstat, ftruncate, memfd_create, seek};
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
    fill(&file, &mut bytes, 0)?;
    Ok(bytes)
}

/// Read what was written to the first `length` bytes: zeros where nothing was, and no more behind the last that was. Holes take
/// no memory, neither here nor there.
pub(super) fn read_written(file: impl AsFd, length: u64) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    let mut at = 0;
    while at < length {
        let begin = match seek(&file, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            begin => begin?.min(length),
        };
        at = seek(&file, SeekFrom::Hole(begin))?.min(length);
        bytes.resize(usize::try_from(at).map_err(|_| Errno::INVAL)?, 0);
        let begin = usize::try_from(begin).map_err(|_| Errno::INVAL)?;
        fill(&file, &mut bytes[begin..], begin as u64)?;
    }
    Ok(bytes)
}

fn fill(file: impl AsFd, bytes: &mut [u8], offset: u64) -> Result<(), Errno> {
    let mut filled = 0;
    while filled < bytes.len() {
        match pread(&file, &mut bytes[filled..], offset + filled as u64)? {
            0 => return Err(Errno::INVAL),
            count => filled += count,
        }
    }
    Ok(())
}
