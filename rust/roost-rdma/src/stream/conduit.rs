//! One connection of a link: messages and chunks, both ways.

mod sending;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Outgoing, Sink, sys};
use crate::lane::Lane;
use crate::limits::{DESCRIPTORS_WAITING_MAX, SLICES_MAX, STAGING_BYTES};
use crate::link::{Broken, HEAD_BYTES, Head, Message, TRAILER_BYTES, Trailer};

/// While a chunk comes, so much behind it is read with it: its trailer and, where the next is a chunk of data, all that is
/// before that one's bytes. More would be bytes that have to be copied once more.
const BEHIND_CHUNK_BYTES: usize = TRAILER_BYTES + HEAD_BYTES + 16;

/// What a connection keeps of its staging memory when nothing is in it.
const STAGING_BYTES_KEPT: usize = 1 << 10;

/// Times that a page is missing and is there when looked for, before the connection is given up.
const FAULTS_UNFOUND_MAX: u32 = 100;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cut {
    #[error("the other end has closed it")]
    Closed,
    #[error("what was given up is still under way")]
    Unsettled,
    #[error("a newer link has taken its place")]
    Replaced,
    #[error("{0}")]
    Nics(String),
    #[error("the connection was cut: {0}")]
    Failed(#[from] io::Error),
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// What came.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// Where it says that a chunk follows, [`Conduit::receive_into`] comes next.
    Message(Message, Vec<OwnedFd>),
    /// The chunk of this request is there.
    Chunk {
        request: u64,
        sink: Sink,
        trailer: Trailer,
    },
}

#[derive(Debug)]
enum Expected {
    Message,
    /// Somebody has to say where it goes.
    Place {
        request: u64,
        bytes: u64,
    },
    Chunk {
        request: u64,
        sink: Sink,
    },
}

/// See the module.
pub(crate) struct Conduit {
    lane: Box<dyn Lane>,
    output: VecDeque<Outgoing>,
    output_bytes: usize,
    /// TLS has taken what the socket has not.
    flush_wanted: bool,
    expected: Expected,
    /// What was read and not looked at, from `staged_start`.
    staged: Vec<u8>,
    staged_start: usize,
    descriptors: VecDeque<OwnedFd>,
    slices: Vec<libc::iovec>,
    faults_unfound: u32,
}

// SAFETY: the raw pointers in `slices` are of no use between two calls.
unsafe impl Send for Conduit {}

impl Conduit {
    pub(crate) fn new(lane: Box<dyn Lane>) -> Self {
        Self {
            lane,
            output: VecDeque::new(),
            output_bytes: 0,
            flush_wanted: false,
            expected: Expected::Message,
            staged: Vec::new(),
            staged_start: 0,
            descriptors: VecDeque::new(),
            slices: Vec::new(),
            faults_unfound: 0,
        }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.lane.fd()
    }

    pub(crate) fn is_unix(&self) -> bool {
        self.lane.is_unix()
    }

    /// Whether something is there although the socket may be silent.
    pub(crate) fn has_buffered(&self) -> bool {
        self.lane.has_buffered()
    }

    /// Whether the bytes of a chunk come now.
    pub(crate) fn is_in_chunk(&self) -> bool {
        matches!(self.expected, Expected::Chunk { .. })
    }

    /// Whether the other end has gone, also when there is something left to read.
    pub(crate) fn is_cut(&self) -> bool {
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        let fd = self.lane.fd();
        let mut fds = [PollFd::new(&fd, PollFlags::RDHUP)];
        let at_once = Timespec::default();
        // Who cannot be asked is read from, and tells then.
        poll(&mut fds, Some(&at_once)).is_ok() && fds[0].revents().intersects(gone)
    }

    /// Whether something waits to be sent.
    pub(crate) fn has_output(&self) -> bool {
        self.flush_wanted || !self.output.is_empty()
    }

    /// Sent in its turn.
    pub(crate) fn push(&mut self, outgoing: Outgoing) {
        self.output_bytes += outgoing.held_bytes();
        self.output.push_back(outgoing);
    }

    /// Chunks that are not sent as a whole.
    pub(crate) fn chunks_waiting(&self) -> usize {
        self.output
            .iter()
            .filter(|outgoing| outgoing.chunk.is_some())
            .count()
    }

    /// A chunk that is not wanted any more; whether nothing of it was sent, nor will be.
    pub(crate) fn take_back(&mut self, request: u64) -> bool {
        let at = self
            .output
            .iter()
            .position(|outgoing| outgoing.is_request(request) && !outgoing.has_begun());
        let taken = at.and_then(|at| self.output.remove(at));
        self.output_bytes -= taken.as_ref().map_or(0, Outgoing::held_bytes);
        taken.is_some()
    }

    /// Nothing of this region is read or written any more.
    pub(crate) fn revoke(&mut self, region: u64) {
        for outgoing in &mut self.output {
            outgoing.revoke(region);
        }
        if let Expected::Chunk { sink, .. } = &mut self.expected {
            sink.revoke(region);
        }
    }

    /// What comes for this request goes nowhere; whether it was on its way.
    pub(crate) fn give_up(&mut self, wanted: u64) -> bool {
        match &mut self.expected {
            Expected::Chunk { request, sink } if *request == wanted => {
                sink.give_up();
                true
            }
            _ => false,
        }
    }

    /// Where the chunk goes that the last message has announced.
    pub(crate) fn receive_into(&mut self, sink: Sink) {
        let Expected::Place { request, bytes } = self.expected else {
            unreachable!("a chunk was announced");
        };
        assert_eq!(sink.left(), bytes, "a sink takes just its chunk");
        self.expected = Expected::Chunk { request, sink };
    }

    /// What came next. `None` when there is nothing now, or enough was read for one turn.
    pub(crate) fn next(&mut self, budget: &mut usize) -> Result<Option<Incoming>, Cut> {
        loop {
            if let Some(incoming) = self.parse()? {
                return Ok(Some(incoming));
            }
            if *budget == 0 {
                return Ok(None);
            }
            match self.fill() {
                Ok(0) => return Err(Cut::Closed),
                Ok(count) => *budget = budget.saturating_sub(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.staged.is_empty() {
                        self.staged.shrink_to(STAGING_BYTES_KEPT);
                    }
                    return Ok(None);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next whole thing of what was read.
    fn parse(&mut self) -> Result<Option<Incoming>, Cut> {
        loop {
            let staged = &self.staged[self.staged_start..];
            match &mut self.expected {
                Expected::Message => {
                    let Some((head, rest)) = staged.split_first_chunk() else {
                        return Ok(None);
                    };
                    let head = Head::decode(*head)?;
                    let Some(body) = rest.get(..head.body_bytes) else {
                        return Ok(None);
                    };
                    let message = Message::decode(head.kind, body)?;
                    self.staged_start += HEAD_BYTES + head.body_bytes;
                    return self.message(message, head.descriptors).map(Some);
                }
                Expected::Place { .. } => unreachable!("who hears of a chunk says where it goes"),
                Expected::Chunk { sink, .. } if sink.left() > 0 => {
                    if staged.is_empty() {
                        return Ok(None);
                    }
                    self.staged_start += sink.take(staged);
                }
                Expected::Chunk { .. } => {
                    let Some(trailer) = staged.first_chunk::<TRAILER_BYTES>() else {
                        return Ok(None);
                    };
                    let trailer = Trailer::decode(*trailer)?;
                    self.staged_start += TRAILER_BYTES;
                    let done = std::mem::replace(&mut self.expected, Expected::Message);
                    if let Expected::Chunk { request, sink } = done {
                        return Ok(Some(Incoming::Chunk {
                            request,
                            sink,
                            trailer,
                        }));
                    }
                }
            }
        }
    }

    fn message(&mut self, message: Message, descriptors: usize) -> Result<Incoming, Cut> {
        if self.descriptors.len() < descriptors {
            return Err(Broken("a message without its descriptors").into());
        }
        let descriptors = self.descriptors.drain(..descriptors).collect();
        if let (Some(bytes), Message::Data { request, .. } | Message::Write { request, .. }) =
            (message.chunk_bytes(), &message)
        {
            self.expected = Expected::Place {
                request: *request,
                bytes,
            };
        }
        Ok(Incoming::Message(message, descriptors))
    }

    /// Reads once.
    fn fill(&mut self) -> io::Result<usize> {
        self.staged.drain(..self.staged_start);
        self.staged_start = 0;
        if !self.lane.is_plain() {
            let used = self.staged.len();
            self.staged.resize(used + STAGING_BYTES, 0);
            let result = self.lane.read(&mut self.staged[used..]);
            self.staged.truncate(used + *result.as_ref().unwrap_or(&0));
            return result;
        }
        loop {
            match self.fill_plain() {
                Err(error) if sys::is_fault(&error) => match &mut self.expected {
                    // Nothing was taken from the connection: what comes is let go of from here on.
                    Expected::Chunk { sink, .. } if sink.is_direct() => sink.failed(),
                    _ => return Err(error),
                },
                result => return result,
            }
        }
    }

    fn fill_plain(&mut self) -> io::Result<usize> {
        self.slices.clear();
        let mut direct_bytes = 0;
        let mut staging_bytes = STAGING_BYTES;
        if let Expected::Chunk { sink, .. } = &self.expected
            && sink.is_direct()
            && sink.left() > 0
        {
            sink.slices(&mut self.slices, SLICES_MAX - 1);
            direct_bytes = self.slices.iter().map(|slice| slice.iov_len).sum();
            let is_all = direct_bytes as u64 == sink.left();
            staging_bytes = if is_all { BEHIND_CHUNK_BYTES } else { 0 };
        }
        let used = self.staged.len();
        if staging_bytes > 0 {
            self.staged.reserve(staging_bytes);
            let spare = self.staged.spare_capacity_mut();
            self.slices
                .push(sys::slice(spare.as_mut_ptr().expose_provenance(), staging_bytes));
        }
        // SAFETY: the slices are the spare memory of `staged`, and memory that the sink may write to, as its maker has
        // promised.
        let count = unsafe { sys::receive(self.lane.fd(), &mut self.slices, &mut self.descriptors) }?;
        if self.descriptors.len() > DESCRIPTORS_WAITING_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if let (Expected::Chunk { sink, .. }, true) = (&mut self.expected, direct_bytes > 0) {
            sink.written(count.min(direct_bytes) as u64);
        }
        // SAFETY: the kernel has written so much behind what was in use.
        unsafe { self.staged.set_len(used + count.saturating_sub(direct_bytes)) };
        Ok(count)
    }
}

impl AsFd for Conduit {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lane.fd()
    }
}
