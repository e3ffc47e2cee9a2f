//! One end of a trunk, with the connection that it has now.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};

use roost_core::trunk::{Trunk, TrunkError};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::stream::Stream;

/// Read at once: one record of TLS.
const BUFFER_BYTES: usize = 16 << 10;
/// What a line without anything to read holds at most.
const INPUT_BYTES_KEPT: usize = 1 << 10;
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
    /// The beginning of what has not come whole yet.
    input: Vec<u8>,
    /// The socket takes no more now.
    pub(super) blocked: bool,
}

impl<O: Serialize, I: DeserializeOwned> Line<O, I> {
    pub(super) fn new() -> Self {
        Self {
            trunk: Trunk::new(),
            stream: None,
            input: Vec::new(),
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
        let mut buffer = [0; BUFFER_BYTES];
        loop {
            // What came behind the records is looked at first.
            match self.trunk.receive(now_ns, &self.input) {
                Ok((more, used)) => {
                    messages.extend(more);
                    self.input.drain(..used);
                }
                Err(error) => return (messages, Some(error.into())),
            }
            let Some(stream) = &mut self.stream else {
                return (messages, None);
            };
            match stream.read(&mut buffer) {
                Ok(None) => {
                    // A thousand quiet hosts must stay cheap.
                    self.input.shrink_to(INPUT_BYTES_KEPT);
                    return (messages, None);
                }
                Ok(Some(0)) => {
                    let text = "the other end has closed it".to_owned();
                    return (messages, Some(Cut::Connection(text)));
                }
                Ok(Some(count)) => self.input.extend_from_slice(&buffer[..count]),
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
