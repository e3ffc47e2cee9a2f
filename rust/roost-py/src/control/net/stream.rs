//! Bytes over a socket that does not block, as `roost_core::trust` wants to read and write them.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use roost_core::trust::Secure;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

/// A socket's bytes as they are on the network.
#[derive(Debug)]
pub(super) struct Raw<'a>(pub(super) BorrowedFd<'a>);

impl io::Read for Raw<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match recv(self.0, &mut *buffer, RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                result => return Ok(result?.0),
            }
        }
    }
}

impl io::Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
        loop {
            match sendmsg(self.0, pieces, &mut SendAncillaryBuffer::default(), flags) {
                Err(Errno::INTR) => {}
                result => return Ok(result?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection whose other end has proved itself.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(super) socket: OwnedFd,
    pub(super) secure: Secure,
}

impl Stream {
    pub(crate) fn into_parts(self) -> (OwnedFd, Secure) {
        (self.socket, self.secure)
    }

    /// Read once. `None` when nothing is there now, zero at the end.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self.secure.read(&mut Raw(self.socket.as_fd()), into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            result => result.map(Some),
        }
    }

    /// Write once. `None` when it takes no more now.
    pub(super) fn write(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        match self.secure.write(&mut Raw(self.socket.as_fd()), pieces) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            result => result.map(Some),
        }
    }

    /// Whether everything that was taken is written.
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        self.secure.flush(&mut Raw(self.socket.as_fd()))
    }
}
