//! The transport: bytes in and out of a stream socket. Sessions know none of it. `far` has what is different between hosts.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};

use roost_core::session::Session;
use roost_core::wire::hello::Hello;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmsg};

use super::{Inbox, Link};

/// The reader's buffer at first, and what it grows to by itself while whole buffers come in.
pub(super) const INPUT_BYTES_MIN: usize = 16 << 10;
const INPUT_BYTES_USUAL: usize = 256 << 10;
/// Pieces handed to one system call.
pub(super) const SLICES_MAX: usize = 64;

impl Link {
    /// Write what the socket takes. True when it takes no more for now.
    pub(crate) fn flush(&mut self) -> bool {
        if self.closed {
            return false;
        }
        self.gather();
        if self.far.is_some() {
            return self.flush_far();
        }
        while !self.hello.is_empty() || self.session.has_unsent() {
            match self.write_once() {
                Ok(0) | Err(Errno::AGAIN) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => {
                    // The end of the peer is told by its death, which comes on another way.
                    self.closed = true;
                    return false;
                }
            }
        }
        false
    }

    /// Put what waits for company into the session.
    pub(super) fn gather(&mut self) {
        // Without room they wait for the next acknowledgement.
        let _ = self.push_spawns();
        if self.session.ack_due() {
            self.session.push_ack();
        }
    }

    fn write_once(&mut self) -> Result<usize, Errno> {
        if !self.hello.is_empty() {
            let written = send(self.socket()?, &[IoSlice::new(&self.hello)])?;
            self.hello.drain(..written);
            return Ok(written);
        }
        let mut slices = [IoSlice::new(&[]); SLICES_MAX];
        let mut count = 0;
        for (slot, piece) in slices.iter_mut().zip(self.session.unsent()) {
            *slot = IoSlice::new(piece);
            count += 1;
        }
        let written = send(self.socket()?, &slices[..count])?;
        self.session.sent(written);
        Ok(written)
    }

    pub(super) fn socket(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.fd.as_ref().map(AsFd::as_fd).ok_or(Errno::NOTCONN)
    }

    /// Read once. `None` when nothing is there, `Some(0)` at the end.
    pub(crate) fn read(&mut self) -> Option<usize> {
        if self.closed {
            return None;
        }
        if self.filled == self.input.len() {
            self.grow();
        }
        if self.far.is_some() {
            return self.read_far();
        }
        let fd = self.fd.as_ref()?;
        loop {
            match recv(fd, &mut self.input[self.filled..], RecvFlags::DONTWAIT) {
                Ok((0, _)) => {
                    self.closed = true;
                    return Some(0);
                }
                Ok((count, _)) => {
                    self.filled += count;
                    return Some(count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return None,
                // Reset, or the like: it has ended.
                Err(_) => {
                    self.closed = true;
                    return Some(0);
                }
            }
        }
    }

    /// Room for the rest of a frame: twice as much, so that memory follows the bytes that came and not what they announce.
    fn grow(&mut self) {
        let more = (self.input.len() * 2).max(INPUT_BYTES_MIN);
        self.input.resize(more, 0);
    }

    /// Take their hello off the input. False until it is there.
    pub(crate) fn greet(
        &mut self,
        ours: &Hello,
        peer: roost_core::id::ProcId,
        incarnation: u32,
    ) -> Result<bool, String> {
        if self.greeted {
            return Ok(true);
        }
        if !self.has_heard() && !self.hear_hello(ours, peer, incarnation)? {
            return Ok(false);
        }
        self.greeted = self.go_on()?;
        Ok(self.greeted)
    }

    /// Whether frames come next.
    pub(crate) fn is_greeted(&self) -> bool {
        self.greeted
    }

    fn hear_hello(
        &mut self,
        ours: &Hello,
        peer: roost_core::id::ProcId,
        incarnation: u32,
    ) -> Result<bool, String> {
        let Some(bytes) = self.input[..self.filled].first_chunk::<{ Hello::BYTES }>() else {
            return Ok(false);
        };
        let theirs = Hello::decode(bytes, ours).map_err(|error| error.to_string())?;
        theirs
            .expect(peer, roost_core::id::Incarnation(incarnation))
            .map_err(|error| error.to_string())?;
        self.consumed(Hello::BYTES);
        Ok(true)
    }

    /// The session, the parts that come in pieces, and the bytes that were not seen yet.
    pub(crate) fn unread(&mut self) -> (&mut Session, Option<&mut Inbox>, &[u8]) {
        let inbox = self.far.as_mut().map(|far| &mut far.inbox);
        (&mut self.session, inbox, &self.input[..self.filled])
    }

    /// These bytes were used.
    pub(crate) fn consumed(&mut self, count: usize) {
        self.input.copy_within(count..self.filled, 0);
        let full = self.filled == self.input.len();
        self.filled -= count;
        if full && self.input.len() < INPUT_BYTES_USUAL {
            self.grow();
        } else if self.filled == 0 && self.input.len() > INPUT_BYTES_USUAL {
            // A large frame has passed; what it needed goes back.
            self.input = vec![0; INPUT_BYTES_USUAL];
        }
    }
}

/// Write to a socket, as much as it takes at once.
pub(super) fn send(fd: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
    let flags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);
    sendmsg(fd, slices, &mut SendAncillaryBuffer::default(), flags)
}
