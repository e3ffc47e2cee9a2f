//! One end of a trunk, with the connection that it has now.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use roost_core::trunk::{Trunk, TrunkError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::stream::Stream;

const INPUT_BYTES: usize = 64 << 10;
const SLICES_MAX: usize = 64;

/// Why the connection has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Cut {
    /// It may be made anew, and the session goes on.
    #[error("the connection was cut: {0}")]
    Connection(String),
    /// The session cannot go on.
    #[error(transparent)]
    Session(#[from] TrunkError),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Line<O, I> {
    pub(super) trunk: Trunk<O, I>,
    stream: Option<Stream>,
    input: Vec<u8>,
    filled: usize,
    /// The socket takes no more now.
    pub(super) blocked: bool,
}

impl<O: Serialize, I: DeserializeOwned> Line<O, I> {
    pub(super) fn new() -> Self {
        Self {
            trunk: Trunk::new(),
            stream: None,
            input: Vec::new(),
            filled: 0,
            blocked: false,
        }
    }

    /// Go on over this connection, of which these bytes were read already; the other end has received so much.
    pub(super) fn connect(
        &mut self,
        stream: Stream,
        rest: &[u8],
        peer_received: u64,
    ) -> Result<(), TrunkError> {
        self.trunk.resume(peer_received)?;
        self.stream = Some(stream);
        self.input.clear();
        self.input.extend_from_slice(rest);
        self.filled = rest.len();
        self.blocked = false;
        Ok(())
    }

    /// Let the connection go.
    pub(super) fn disconnect(&mut self) -> Option<Stream> {
        self.blocked = false;
        self.stream.take()
    }

    pub(super) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.stream.as_ref().map(|stream| stream.socket.as_fd())
    }

    /// Take in what has come. The cut, where there was one, comes after the messages before it.
    pub(super) fn read(&mut self, now_ns: u64) -> (Vec<I>, Option<Cut>) {
        let mut messages = Vec::new();
        // What came behind the records is looked at first.
        loop {
            match self.trunk.receive(now_ns, &self.input[..self.filled]) {
                Ok((more, used)) => {
                    messages.extend(more);
                    self.input.copy_within(used..self.filled, 0);
                    self.filled -= used;
                }
                Err(error) => return (messages, Some(error.into())),
            }
            let Some(stream) = &mut self.stream else {
                return (messages, None);
            };
            if self.input.len() < self.filled + INPUT_BYTES {
                self.input.resize(self.filled + INPUT_BYTES, 0);
            }
            match stream.read(&mut self.input[self.filled..]) {
                Ok(None) => return (messages, None),
                Ok(Some(0)) => {
                    return (
                        messages,
                        Some(Cut::Connection("the other end has closed it".to_owned())),
                    );
                }
                Ok(Some(count)) => self.filled += count,
                Err(error) => return (messages, Some(Cut::Connection(error.to_string()))),
            }
        }
    }

    /// Write what the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), Cut> {
        self.trunk.push_waiting();
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        let session = self.trunk.session();
        let cut = |error: io::Error| Cut::Connection(error.to_string());
        self.blocked = false;
        while session.has_unsent() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slot, piece) in slices.iter_mut().zip(session.unsent()) {
                *slot = IoSlice::new(piece);
                count += 1;
            }
            match stream.write(&slices[..count]).map_err(cut)? {
                Some(written) if written > 0 => session.sent(written),
                _ => {
                    self.blocked = true;
                    break;
                }
            }
        }
        self.blocked |= !stream.flush().map_err(cut)?;
        Ok(())
    }
}
