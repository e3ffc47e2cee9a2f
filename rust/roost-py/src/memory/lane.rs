//! One connection of a link, as the control thread has made it.

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use roost_core::trust::Secure;
use roost_rdma::Lane;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

/// Pieces that one system call writes at most.
const SLICES_MAX: usize = 1024;

/// A socket, and what is known of how to use it: nothing more of one that stays on this host.
pub(super) struct Connection {
    socket: Socket,
    secure: Option<Secure>,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, secure: Option<Secure>) -> Self {
        Self {
            socket: Socket(socket),
            secure,
        }
    }
}

impl Lane for Connection {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.0.as_fd()
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.secure {
            Some(secure) => secure.read(&mut self.socket, into),
            None => self.socket.read(into),
        }
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.secure {
            Some(secure) => secure.write(&mut self.socket, from),
            None => self.socket.write_vectored(from),
        }
    }

    fn flush(&mut self) -> io::Result<bool> {
        match &mut self.secure {
            Some(secure) => secure.flush(&mut self.socket),
            None => Ok(true),
        }
    }

    fn has_buffered(&self) -> bool {
        self.secure.as_ref().is_some_and(Secure::has_buffered)
    }

    fn is_unix(&self) -> bool {
        self.secure.is_none()
    }

    fn is_plain(&self) -> bool {
        self.secure
            .as_ref()
            .is_none_or(|secure| secure.is_plain() && !secure.has_buffered())
    }
}

/// A stream socket that does not wait and raises no signal.
struct Socket(OwnedFd);

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(recv(&self.0, into, RecvFlags::DONTWAIT)?.0)
    }
}

impl Write for Socket {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(from)])
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let from = &from[..from.len().min(SLICES_MAX)];
        Ok(sendmsg(
            &self.0,
            from,
            &mut SendAncillaryBuffer::default(),
            flags,
        )?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
