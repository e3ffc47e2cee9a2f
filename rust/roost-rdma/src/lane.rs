//! One connection of a link, as whoever made it hands it over.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A connection that does not block and whose other end has proved itself.
pub trait Lane: Send {
    /// Its socket, for waiting.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Read once; zero at the end.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] when nothing is there now; any other one is the connection's end.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Write once; says how much was taken, which may still have to be flushed.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] when nothing was taken; any other one is the connection's end.
    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Send what was taken; says whether all of it is sent.
    ///
    /// # Errors
    ///
    /// Any is the connection's end.
    fn flush(&mut self) -> io::Result<bool>;

    /// Whether something can be read without the socket: asked before waiting for it.
    fn has_buffered(&self) -> bool;

    /// Whether it is a Unix stream socket, which carries descriptors.
    fn is_unix(&self) -> bool;

    /// Whether the socket's bytes are the connection's: then they are moved between it and users' memory without a copy in
    /// between, and `read` and `write` are not called.
    fn is_plain(&self) -> bool;
}

/// A socket without anything around it.
#[derive(Debug)]
pub struct Plain {
    socket: OwnedFd,
    is_unix: bool,
}

impl Plain {
    /// A Unix stream socket that does not block.
    pub fn unix(socket: OwnedFd) -> Self {
        Self {
            socket,
            is_unix: true,
        }
    }

    /// A TCP socket that does not block.
    pub fn tcp(socket: OwnedFd) -> Self {
        Self {
            socket,
            is_unix: false,
        }
    }
}

impl Lane for Plain {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.socket, into)?)
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(rustix::io::writev(&self.socket, from)?)
    }

    fn flush(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn has_buffered(&self) -> bool {
        false
    }

    fn is_unix(&self) -> bool {
        self.is_unix
    }

    fn is_plain(&self) -> bool {
        true
    }
}
