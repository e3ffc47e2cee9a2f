//! One connection of a link, as whoever made it hands it over.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

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
