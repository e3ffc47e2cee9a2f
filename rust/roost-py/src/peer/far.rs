//! The transport to another host: a connection in TLS, which may be cut and replaced while its session goes on.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use roost_core::limits::{ACK_DELAY_NS, REPLAY_BYTES_MAX};
use roost_core::session::{Session, SessionConfig};
use roost_core::trust::Secure;
use roost_core::wire::{Hello, Resume};
use rustix::net::{RecvFlags, recv};

use super::ahead::Outbox;
use super::quiet::Quiet;
use super::socket::{SLICES_MAX, send};
use super::{Inbox, Link};
use crate::page::StartedPage;
use crate::segment::SegmentMap;

/// A connection to a proc of another host that the control thread has made: both sides have proved themselves.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct FarLane(Mutex<Option<Lane>>);

/// What it is made of.
pub(crate) struct Lane {
    pub(crate) fd: OwnedFd,
    pub(crate) secure: Secure,
    /// The number of the session that it belongs to.
    pub(crate) session: u64,
    /// Which connection of the session it is; 0 on the side that is called, which reads it from the peer.
    pub(crate) connection: u64,
    /// This side has called, and calls again when the connection breaks.
    pub(crate) dials: bool,
}

impl FarLane {
    pub(crate) fn new(fd: OwnedFd, secure: Secure, session: u64, connection: u64, dials: bool) -> Self {
        Self(Mutex::new(Some(Lane {
            fd,
            secure,
            session,
            connection,
            dials,
        })))
    }

    /// Its parts, for the first who asks.
    pub(crate) fn take(&self) -> Option<Lane> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl FarLane {
    /// A connection in clear, over a socket that is connected; its descriptor belongs to the lane.
    #[new]
    fn in_clear(fd: i32, session: u64, connection: u64, dials: bool) -> Self {
        // SAFETY: Python hands over a descriptor that it owns and does not use again.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Self::new(fd, Secure::plain(), session, connection, dials)
    }
}

/// What was said on a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing that was read.
    Silent,
    /// Their hello was read.
    Heard,
    /// It is known which frames go over it, and none was written.
    Fresh,
    /// Frames are written.
    Live,
    /// It is older than the last: it is to be closed, and the session waits for the next.
    Stale,
}

/// What a link has more when it goes to another host.
pub(crate) struct Far {
    secure: Secure,
    pub(crate) session: u64,
    /// The last connection that was taken.
    connection: u64,
    pub(crate) dials: bool,
    /// How far this connection is.
    stage: Stage,
    /// Nothing more can be written to it; what has come can still be read.
    is_deaf: bool,
    /// The last read took all that there was room for.
    has_more: bool,
    /// How far the job's clock is ahead of ours.
    pub(crate) clock_ns: i64,
    /// The carrier that brought the last frames; none where they came over the connection.
    pub(crate) carrier: Option<u64>,
    /// Where the host finds, after this proc's end, what it had said; none in the driver, whose end is that of the job.
    page: Option<Arc<StartedPage>>,
    pub(super) quiet: Quiet,
    pub(super) out: Outbox,
    pub(crate) inbox: Inbox,
}

impl Link {
    /// A link to a proc of another host.
    pub(crate) fn to_host(
        lane: Lane,
        hello: &Hello,
        (slot, page): (Option<u32>, Option<Arc<StartedPage>>),
        epoch: u32,
        clock_ns: i64,
    ) -> Self {
        let mut session = Session::new(SessionConfig {
            ack_delay_ns: Some(ACK_DELAY_NS),
            // What the other end may have sent and not heard of.
            early_bytes_max: REPLAY_BYTES_MAX,
            ..SessionConfig::default()
        });
        session.set_epoch(epoch);
        let mut link = Self::over(lane.fd, session, hello, slot);
        link.far = Some(Box::new(Far {
            secure: lane.secure,
            session: lane.session,
            connection: lane.connection,
            dials: lane.dials,
            stage: Stage::Silent,
            is_deaf: false,
            has_more: false,
            clock_ns,
            carrier: None,
            page,
            quiet: Quiet::default(),
            out: Outbox::default(),
            inbox: Inbox::default(),
        }));
        link.say_received();
        link
    }

    /// Go on over this connection, unless it is older than the one there is: the connection that is of no more use.
    pub(crate) fn replace(&mut self, lane: Lane, hello: &Hello) -> Option<OwnedFd> {
        let Some(far) = self.far.as_mut() else {
            return Some(lane.fd);
        };
        if lane.dials && lane.connection <= far.connection {
            return Some(lane.fd);
        }
        if lane.dials {
            far.connection = lane.connection;
        }
        far.dials = lane.dials;
        far.secure = lane.secure;
        far.stage = Stage::Silent;
        far.quiet.restart();
        (far.is_deaf, far.has_more) = (false, false);
        far.inbox.restart();
        let old = self.take_fd();
        self.fd = Some(lane.fd);
        self.hello = hello.encode().to_vec();
        self.greeted = false;
        self.filled = 0;
        self.say_received();
        old
    }

    /// Whoever calls says at once from where the session goes on; the other repeats the connection's number.
    fn say_received(&mut self) {
        if let Some(far) = self.far.as_ref().filter(|far| far.dials) {
            self.hello.extend(far.resume(&self.session).encode());
        }
    }

    /// Take what follows their hello off the input. False until it is there; and when this connection is stale.
    pub(super) fn go_on(&mut self) -> Result<bool, String> {
        let Some(far) = self.far.as_mut() else {
            return Ok(true);
        };
        far.stage = Stage::Heard;
        let Some(bytes) = self.input[..self.filled].first_chunk::<{ Resume::BYTES }>() else {
            return Ok(false);
        };
        let theirs = Resume::decode(bytes);
        if theirs.session != far.session {
            return Err("the other end is in another session".to_owned());
        }
        let is_this = if far.dials {
            theirs.connection == far.connection
        } else {
            theirs.connection > far.connection
        };
        if !is_this {
            far.stage = Stage::Stale;
            return Ok(false);
        }
        far.connection = theirs.connection;
        if !far.dials {
            self.hello.extend(far.resume(&self.session).encode());
        }
        self.session
            .resume(theirs.received)
            .map_err(|error| error.to_string())?;
        far.stage = Stage::Fresh;
        self.consumed(Resume::BYTES);
        Ok(true)
    }

    /// Whether their hello was read on this connection.
    pub(super) fn has_heard(&self) -> bool {
        self.far.as_ref().is_some_and(|far| far.stage != Stage::Silent)
    }

    /// Write what the socket takes. True when it takes no more for now.
    pub(super) fn flush_far(&mut self) -> bool {
        loop {
            match self.write_far() {
                Ok(true) => {}
                Ok(false) => return false,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    // Its end is met by reading: what has come before it counts.
                    if let Some(far) = &mut self.far {
                        far.is_deaf = true;
                    }
                    return false;
                }
            }
        }
    }

    /// Write once; whether there was anything.
    fn write_far(&mut self) -> io::Result<bool> {
        let (Some(far), Some(fd)) = (self.far.as_mut(), self.fd.as_ref()) else {
            return Ok(false);
        };
        if far.is_deaf {
            return Ok(false);
        }
        let mut socket = Socket(fd.as_fd());
        if !far.secure.flush(&mut socket)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let written = if !self.hello.is_empty() {
            let written = far.secure.write(&mut socket, &[IoSlice::new(&self.hello)])?;
            self.hello.drain(..written);
            written
        } else if far.is_live() && self.session.has_unsent() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (slot, piece) in slices.iter_mut().zip(self.session.unsent()) {
                *slot = IoSlice::new(piece);
                count += 1;
            }
            if let (Some(page), Some(slot)) = (&far.page, self.slot) {
                page.said(slot, self.session.last_sequence());
            }
            let written = far.secure.write(&mut socket, &slices[..count])?;
            self.session.sent(written);
            written
        } else {
            return Ok(false);
        };
        if written == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        Ok(true)
    }

    /// Give what there is to say to the tree of hosts, with the session's number. None where it has to go over the connection.
    pub(crate) fn post(&mut self, until_ns: u64, bytes_max: usize) -> Option<(u64, Vec<u8>)> {
        if !self.is_open() || self.has_ahead() {
            return None;
        }
        self.gather();
        let session = self.far.as_ref()?.session;
        Some((session, self.session.post(until_ns, bytes_max)?))
    }

    /// Whether both ends know of the session, and it is not broken.
    pub(crate) fn is_open(&self) -> bool {
        self.is_greeted() && !self.closed
    }

    /// Whether frames can be written now.
    pub(crate) fn is_live(&self) -> bool {
        self.fd.is_some() && self.far.as_ref().is_some_and(|far| far.is_live() && !far.is_deaf)
    }

    /// Read once. `None` when nothing is there, `Some(0)` at the end.
    pub(super) fn read_far(&mut self) -> Option<usize> {
        let (far, fd) = (self.far.as_mut()?, self.fd.as_ref()?);
        let mut socket = Socket(fd.as_fd());
        loop {
            let (read, room) = if let Some(slot) = far.inbox.slot() {
                let read = far.secure.read(&mut socket, slot);
                let room = slot.len();
                far.inbox.got(*read.as_ref().unwrap_or(&0));
                (read, room)
            } else {
                let free = &mut self.input[self.filled..];
                let read = far.secure.read(&mut socket, free);
                let room = free.len();
                self.filled += read.as_ref().unwrap_or(&0);
                (read, room)
            };
            match read {
                Ok(count) => {
                    far.has_more = count == room;
                    return Some(count);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // Reset, cut off, or changed on its way: the session goes on over another connection.
                Err(_) => return Some(0),
            }
        }
    }

    /// Whether more can be read without waiting for the socket; or is likely to be there, as long as `patient` is true.
    pub(crate) fn reads_on(&self, patient: bool) -> bool {
        let far = self.far.as_ref().filter(|_| self.fd.is_some());
        far.is_some_and(|far| far.secure.has_buffered() || (patient && far.has_more))
    }

    /// Number the piece that was read to its place, if it is whole. False while it is not: no frame begins before.
    pub(crate) fn end_piece(&mut self, now_ns: u64) -> Result<bool, String> {
        let Some(far) = &mut self.far else { return Ok(true) };
        far.inbox
            .end(&mut self.session, now_ns)
            .map_err(|error| error.to_string())?;
        Ok(!far.inbox.is_reading())
    }

    /// When a piece is the next to come, what follows is read to its place.
    pub(crate) fn begin_piece(&mut self, map: &SegmentMap, epoch: u32) -> Result<(), String> {
        let Some(far) = &mut self.far else { return Ok(()) };
        let bytes = &self.input[..self.filled];
        let used = far.inbox.begin(map, &self.session, epoch, bytes);
        let used = used.map_err(|error| error.to_string())?;
        self.consumed(used);
        Ok(())
    }
}

impl Far {
    fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Fresh | Stage::Live)
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.stage == Stage::Stale
    }

    /// The connection is closed: its keys and buffers are of no use.
    pub(super) fn forget_keys(&mut self) {
        self.secure = Secure::plain();
    }

    /// Whether frames can be written since this was last asked.
    pub(crate) fn went_live(&mut self) -> bool {
        let is_fresh = self.stage == Stage::Fresh;
        if is_fresh {
            self.stage = Stage::Live;
        }
        is_fresh
    }

    fn resume(&self, session: &Session) -> Resume {
        Resume {
            session: self.session,
            connection: self.connection,
            received: session.received(),
        }
    }
}

/// A socket that is never waited for.
struct Socket<'a>(BorrowedFd<'a>);

impl Read for Socket<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        Ok(recv(self.0, into, RecvFlags::DONTWAIT)?.0)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(send(self.0, slices)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
