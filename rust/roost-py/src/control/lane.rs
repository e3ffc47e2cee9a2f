//! One control lane: whole messages over a packet socket, in order, without ever waiting.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use roost_core::control::{self, Envelope};
use roost_core::limits::CONTROL_PACKET_BYTES_MAX;
use rustix::io::Errno;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::socket::Blocked;
use super::{memory, socket};

/// What may wait for a peer that does not read. A peer whose control thread stands still so long is stopped or
/// broken; its lane is given up then.
const QUEUED_BYTES_MAX: usize = 64 << 20;

/// A message that arrived.
#[derive(Debug)]
pub(super) struct Arrived<T> {
    pub(super) message: T,
    pub(super) descriptor: Option<OwnedFd>,
}

/// Why nothing arrived.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaneError {
    /// Nothing is there now.
    #[error("nothing to read")]
    Empty,
    /// The other end is closed.
    #[error("the control lane is closed")]
    Closed,
    /// A long message came without the memory file that holds it.
    #[error("a control message was lost: no file descriptors left")]
    Lost,
    /// The bytes are no message.
    #[error("broken control lane")]
    Broken(#[source] io::Error),
}

#[derive(Debug)]
pub(super) struct Lane {
    socket: OwnedFd,
    queue: VecDeque<(Vec<u8>, Option<OwnedFd>)>,
    queued_bytes: usize,
    blocked: Option<Blocked>,
    buffer: Vec<u8>,
}

impl Lane {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            queue: VecDeque::new(),
            queued_bytes: 0,
            blocked: None,
            buffer: Vec::new(),
        }
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Why messages wait, if they do.
    pub(super) fn blocked(&self) -> Option<Blocked> {
        self.blocked
    }

    /// Send a message, or queue it.
    pub(super) fn send<T: Serialize>(&mut self, message: &T, descriptor: Option<OwnedFd>) -> io::Result<()> {
        let (packet, long) = control::encode(message).map_err(io::Error::other)?;
        let descriptor = match long {
            Some(long) => Some(memory::file("roost-message", &long)?),
            None => descriptor,
        };
        self.queued_bytes += packet.len();
        self.queue.push_back((packet, descriptor));
        if self.queued_bytes > QUEUED_BYTES_MAX {
            return Err(io::Error::other(
                "the other end of the control lane has not read for too long",
            ));
        }
        self.flush()
    }

    /// Send what is queued, as far as the socket takes it.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.blocked = None;
        while let Some((packet, descriptor)) = self.queue.front() {
            let descriptor = descriptor.as_ref().map(AsFd::as_fd);
            if let Err(error) = socket::send(&self.socket, packet, descriptor.as_slice()) {
                self.blocked = Some(Blocked::from_error(error)?);
                return Ok(());
            }
            self.queued_bytes -= packet.len();
            self.queue.pop_front();
        }
        Ok(())
    }

    /// The next message.
    pub(super) fn receive<T: DeserializeOwned>(&mut self) -> Result<Arrived<T>, LaneError> {
        self.buffer.resize(CONTROL_PACKET_BYTES_MAX, 0);
        let mut received = match socket::receive(&self.socket, &mut self.buffer) {
            Ok(received) if received.length > 0 => received,
            Err(Errno::AGAIN) => return Err(LaneError::Empty),
            // A reset is what a close with unread packets looks like.
            Ok(_) | Err(Errno::CONNRESET | Errno::PIPE) => return Err(LaneError::Closed),
            Err(error) => return Err(LaneError::Broken(error.into())),
        };
        let broken = |error: control::ControlError| LaneError::Broken(io::Error::other(error));
        let descriptor = received.descriptors.pop();
        match control::decode(&self.buffer[..received.length]).map_err(broken)? {
            Envelope::Inline(message) => Ok(Arrived { message, descriptor }),
            Envelope::Large { length } => {
                let file = descriptor.ok_or(LaneError::Lost)?;
                // Its bound was checked with the packet.
                let length = usize::try_from(length).map_err(|_| LaneError::Lost)?;
                let bytes = memory::read(&file, length).map_err(|error| LaneError::Broken(error.into()))?;
                let message = control::decode_large(&bytes).map_err(broken)?;
                Ok(Arrived {
                    message,
                    descriptor: None,
                })
            }
        }
    }
}
