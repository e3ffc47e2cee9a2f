//! One link, as the thread keeps it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Role;
use super::nics::Flights;
use super::operation::Chunk;
use crate::checksum::Checksum;
use crate::handle::{Key, Peer};
use crate::lane::Lane;
use crate::limits::SUM_SLOTS;
use crate::link::Message;
use crate::local::{Place, Process, Way};
use crate::stamp::View;
use crate::stream::{Conduit, Outgoing};
use crate::verbs::{Path, RemoteRegion};

pub(super) struct Link {
    pub(super) peer: Peer,
    pub(super) lanes: Vec<Conduit>,
    /// Lanes whose socket is waited for until it takes more.
    pub(super) is_waiting: Vec<bool>,
    /// The other end has said who it is.
    pub(super) is_greeted: bool,
    pub(super) side: Side,
}

pub(super) enum Side {
    Asks(Box<Asking>),
    Serves(Box<Serving>),
}

/// How chunks travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    /// Threads of this process copy, and what they cannot reach is streamed.
    Local,
    Stream,
    /// NICs carry what they can reach, and the rest is streamed.
    Nics,
}

/// A share of a transfer.
pub(super) type ShareId = (u64, usize);

/// The asker's end.
pub(super) struct Asking {
    pub(super) route: Route,
    pub(super) leases: HashMap<(u64, Key), Lease>,
    pub(super) requests: HashMap<u64, Request>,
    /// Shares that have chunks to ask for.
    pub(super) ready: VecDeque<ShareId>,
    /// What is under way, by lane.
    pub(super) flights: Vec<Flight>,
    /// The owner, where it lives on this host.
    pub(super) process: Option<Arc<Process>>,
    /// Tells of its end.
    pub(super) watched: Option<OwnedFd>,
    pub(super) way: Option<Arc<Way>>,
    /// The control stream, for other threads to look at, where they copy from here.
    pub(super) control: Option<Arc<OwnedFd>>,
    /// The owner's stamps that are mapped, by their file.
    pub(super) views: HashMap<(u64, u64), Arc<View>>,
    pub(super) nics: Option<Flights>,
    /// Shares that wait for a slot to ask for sums over.
    pub(super) to_sum: VecDeque<ShareId>,
    pub(super) free_slots: Vec<u8>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Flight {
    pub(super) requests: usize,
    pub(super) bytes: u64,
}

pub(super) enum Lease {
    Asked {
        wants_memory: bool,
        waiters: Vec<ShareId>,
    },
    Held(Held),
}

pub(super) struct Held {
    /// The buffer's size, as its owner says.
    pub(super) bytes: u64,
    /// Where it can be reached without the owner.
    pub(super) place: Option<Place>,
    pub(super) stamp: Option<(Arc<View>, u32)>,
    /// How NICs reach it.
    pub(super) remote: Option<RemoteRegion>,
    /// Shares that threads copy now.
    pub(super) users: usize,
    /// The owner wants it back; it hears of it when there are no users.
    pub(super) is_revoked: bool,
}

/// What was asked and is not answered.
pub(super) enum Request {
    Open {
        lease: (u64, Key),
    },
    /// The stamps of some regions, from this place in the share's list.
    Look {
        share: ShareId,
        first: usize,
    },
    /// Sums of a share, of these parts by piece.
    Sum {
        share: ShareId,
        slot: u8,
        parts: Vec<usize>,
        ends: usize,
    },
    Chunk {
        share: ShareId,
        lane: usize,
        chunk: Chunk,
        is_given_up: bool,
    },
}

/// The owner's end.
#[derive(Default)]
pub(super) struct Serving {
    /// Leases that it gave.
    pub(super) leased: HashSet<u64>,
    /// The process that asks, as its host counts.
    pub(super) pid: u32,
    /// Questions for stamps that wait for the end of an update.
    pub(super) lookers: Vec<(u64, Vec<u64>)>,
    /// Sums of which the end is not there, by slot; none while a thread is at it.
    pub(super) sums: HashMap<u8, Option<Checksum>>,
    /// Queue pairs that reach this process' memory.
    pub(super) path: Option<Path>,
}

impl Link {
    pub(super) fn new(peer: Peer, role: Role, lanes: Vec<Box<dyn Lane>>) -> Self {
        let count = lanes.len();
        let side = match role {
            Role::Asks => Side::Asks(Box::new(Asking {
                route: Route::Stream,
                leases: HashMap::new(),
                requests: HashMap::new(),
                ready: VecDeque::new(),
                flights: vec![Flight::default(); count],
                process: None,
                watched: None,
                way: None,
                control: None,
                views: HashMap::new(),
                nics: None,
                to_sum: VecDeque::new(),
                free_slots: (0..SUM_SLOTS).collect(),
            })),
            Role::Serves => Side::Serves(Box::default()),
        };
        Self {
            peer,
            lanes: lanes.into_iter().map(Conduit::new).collect(),
            is_waiting: vec![false; count],
            is_greeted: false,
            side,
        }
    }

    pub(super) fn is_unix(&self) -> bool {
        self.lanes[0].is_unix()
    }

    /// What waits for it may go on.
    pub(super) fn is_usable(&mut self) -> bool {
        self.is_greeted && !self.asking().is_some_and(|asking| asking.is_proving())
    }

    pub(super) fn role(&self) -> Role {
        match self.side {
            Side::Asks(_) => Role::Asks,
            Side::Serves(_) => Role::Serves,
        }
    }

    pub(super) fn leases_held(&self) -> usize {
        match &self.side {
            Side::Asks(asking) => asking
                .leases
                .values()
                .filter(|lease| matches!(lease, Lease::Held(_)))
                .count(),
            Side::Serves(_) => 0,
        }
    }

    pub(super) fn asking(&mut self) -> Option<&mut Asking> {
        match &mut self.side {
            Side::Asks(asking) => Some(asking),
            Side::Serves(_) => None,
        }
    }

    pub(super) fn serving(&mut self) -> Option<&mut Serving> {
        match &mut self.side {
            Side::Asks(_) => None,
            Side::Serves(serving) => Some(serving),
        }
    }

    /// Says something over the control stream.
    pub(super) fn say(&mut self, message: &Message, descriptors: Vec<OwnedFd>) {
        self.lanes[0].push(Outgoing::message(message, descriptors));
    }
}

impl Asking {
    /// The lane with the least under way, where there is room.
    pub(super) fn free_lane(&self) -> Option<usize> {
        let first = usize::from(self.flights.len() > 1);
        (first..self.flights.len())
            .filter(|lane| self.flights[*lane].has_room())
            .min_by_key(|lane| self.flights[*lane].bytes)
    }
}

impl Flight {
    fn has_room(&self) -> bool {
        self.bytes < crate::limits::LANE_WINDOW_BYTES && self.requests < crate::limits::LANE_REQUESTS_MAX
    }

    pub(super) fn begin(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }

    pub(super) fn end(&mut self, bytes: u64) {
        self.requests -= 1;
        self.bytes -= bytes;
    }
}
