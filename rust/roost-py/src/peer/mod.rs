//! `Peer`: what this process knows of another proc, and its data connection.
//!
//! | module | what it does |
//! |---|---|
//! | `socket` | the transport: bytes in and out of a stream socket |
//! | `link` | frames of messages and replies into the session, with their parts |
//! | `pace` | when frames are written |
//! | `waiting` | credit, and the messages that wait for it or were not taken yet |
//! | `far` | the transport to another host: TLS, and connections that are replaced |
//! | `quiet` | such connections on which nothing happens |
//! | `letters` | frames that go another way, along the tree of hosts |
//! | `ahead` | sent there: parts too large for their frame, which go ahead in pieces |
//! | `room` | received from there: where such parts gather |

mod ahead;
mod far;
mod letters;
mod link;
mod pace;
mod quiet;
mod room;
mod socket;
mod waiting;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use roost_core::credit::{Amount, QueueBound, SendWindows};
use roost_core::limits::POSTED_BYTES_MAX;
use roost_core::session::{Session, SessionConfig};
use roost_core::wire::Runs;
use roost_core::wire::hello::Hello;

pub(crate) use self::ahead::{Fed, Outbound, shifted};
use self::far::Far;
pub(crate) use self::far::FarLane;
pub(crate) use self::letters::{Letter, Letters};
use self::pace::Pace;
pub(crate) use self::pace::Wrote;
pub(crate) use self::room::{Inbox, Room};
use crate::ids::IdMap;
use crate::outgoing::Outgoing;
use crate::payload::Payload;
use crate::pending::Awaited;
use crate::spawns::Spawns;

/// How a proc stands with us.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing is known; a connection must be asked for.
    Unknown,
    /// A connection will come.
    Connecting,
    /// Connected.
    Live,
    /// Its process has ended and the next incarnation will come.
    Down,
    /// Ended for good.
    Gone,
}

/// One other proc.
pub(crate) struct Peer {
    pub(crate) id: u64,
    pub(crate) incarnation: u32,
    pub(crate) standing: Standing,
    pub(crate) link: Option<Link>,
    /// Messages and values for ports from before there was a connection, in order.
    pub(crate) backlog: VecDeque<Stalled>,
    pub(crate) bound: QueueBound,
    /// The session between hosts that was given up last: a connection that was under way for it comes too late.
    pub(crate) given_up: Option<u64>,
}

/// The connection to one incarnation of a proc.
pub(crate) struct Link {
    /// None while a connection to another host is cut.
    fd: Option<OwnedFd>,
    /// What only a connection to another host has.
    pub(crate) far: Option<Box<Far>>,
    pub(crate) session: Session,
    /// Our hello and what else is said before frames, until it is written; what is left of theirs is read first.
    hello: Vec<u8>,
    greeted: bool,
    pub(crate) slot: Option<u32>,
    input: Vec<u8>,
    filled: usize,
    pace: Pace,
    /// The loop calls us when the socket takes more.
    pub(crate) watched: bool,
    /// The other end is gone or speaks no frames of ours: nothing is read or written any more.
    pub(crate) closed: bool,
    windows: IdMap<SendWindows>,
    /// Messages that wait for credit, by (mesh, slot).
    waiting: HashMap<(u64, u32), VecDeque<Outgoing>>,
    /// Broadcasts that left and may still lie in a mailbox, by (mesh, slot): nobody else would miss them.
    awaited: HashMap<(u64, u32), VecDeque<Awaited>>,
    /// Frames that wait for room in the session.
    pub(crate) stalled: VecDeque<Stalled>,
    /// Meshes that are to be made there, until something else is sent or this turn of the loop ends.
    spawns: Option<Spawns>,
    /// Segments whose descriptor must be handed to this receiver.
    pub(crate) offers: Vec<Offer>,
}

/// A segment that a receiver has not mapped yet.
pub(crate) struct Offer {
    pub(crate) segment: u64,
    pub(crate) bytes: u64,
    pub(crate) fd: OwnedFd,
}

/// A frame that the session had no room for, or whose segment its receiver has not mapped yet.
pub(crate) enum Stalled {
    /// A message, and whether it has its credit already.
    Message(Outgoing, bool),
    Reply(roost_core::wire::ReplyHeader, Payload),
    PortItem(roost_core::wire::PortItem, Payload),
}

impl Stalled {
    fn payload(&self) -> &Payload {
        match self {
            Self::Message(message, _) => &message.payload,
            Self::Reply(_, payload) | Self::PortItem(_, payload) => payload,
        }
    }

    /// The messages among frames that will not be sent: somebody waits for them, or must hear of them.
    pub(crate) fn messages(frames: VecDeque<Self>) -> impl Iterator<Item = Outgoing> {
        frames.into_iter().filter_map(|frame| match frame {
            Self::Message(message, _) => Some(message),
            Self::Reply(..) | Self::PortItem(..) => None,
        })
    }
}

/// What became of a message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// In the session.
    Number,
    /// Held back; it goes when there is credit, room or a connection.
    Waits,
}

impl Peer {
    pub(crate) fn new(id: u64, queue: Amount) -> Self {
        Self {
            id,
            incarnation: 0,
            standing: Standing::Unknown,
            link: None,
            backlog: VecDeque::new(),
            bound: QueueBound::new(queue),
            given_up: None,
        }
    }

    /// Whether one more message to these actors may wait here, or need not: what waits for one holds up no other.
    pub(crate) fn has_room(&self, limit: Amount, mesh: u64, runs: Runs<'_>) -> bool {
        let waiting = self.bound.waiting();
        (waiting.messages < limit.messages && waiting.bytes < limit.bytes)
            || (self.standing == Standing::Live
                && self.link.as_ref().is_some_and(|link| link.is_free(mesh, runs)))
    }
}

impl Link {
    /// A link to a proc of this host.
    pub(crate) fn new(fd: OwnedFd, hello: &Hello, slot: Option<u32>, epoch: u32) -> Self {
        let mut session = Session::new(SessionConfig::default());
        session.set_epoch(epoch);
        Self::over(fd, session, hello, slot)
    }

    fn over(fd: OwnedFd, session: Session, hello: &Hello, slot: Option<u32>) -> Self {
        Self {
            fd: Some(fd),
            far: None,
            session,
            hello: hello.encode().to_vec(),
            greeted: false,
            slot,
            input: vec![0; socket::INPUT_BYTES_MIN],
            filled: 0,
            pace: Pace::default(),
            watched: false,
            closed: false,
            windows: IdMap::default(),
            waiting: HashMap::new(),
            awaited: HashMap::new(),
            stalled: VecDeque::new(),
            spawns: None,
            offers: Vec::new(),
        }
    }

    /// A frame was put into the session in this turn of the loop.
    pub(crate) fn wrote(&mut self, turn: u64) -> Wrote {
        if self.watched {
            return Wrote::Known;
        }
        self.pace.wrote(turn, self.session.unsent_bytes())
    }

    /// The same, where many links are written together: nothing is before the turn ends, unless it is too much for that.
    pub(crate) fn wrote_with_others(&mut self, turn: u64) -> Wrote {
        if self.watched || self.session.unsent_bytes() > POSTED_BYTES_MAX {
            return self.wrote(turn);
        }
        self.pace.waits()
    }

    /// The turn ends, with everything written that the socket takes: see [`Self::flush`].
    pub(crate) fn end_turn(&mut self) {
        self.pace.end_turn();
    }

    /// None while a connection to another host is cut.
    pub(crate) fn raw_fd(&self) -> Option<RawFd> {
        self.fd.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Take the descriptor, which the loop may watch: whoever closes it ends that first.
    pub(crate) fn take_fd(&mut self) -> Option<OwnedFd> {
        self.watched = false;
        self.fd.take()
    }
}
