//! The thread: what wakes it, and whose turn it is.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use super::link::{Link, ShareId, Side};
use super::nics::Nics;
use super::operation::Operation;
use super::peers::PeerEntry;
use super::shared::{Command, Shared, lock};
use super::timers::{Timer, Timers};
use super::{Completion, Counts};
use crate::error::Error;
use crate::handle::Peer;
use crate::limits::TURN_BYTES_MAX;
use crate::local::{Mappings, Moved, Pool};
use crate::stream::{Cut, Incoming};

/// Events taken at once; the others are there the next time.
const EVENTS_MAX: usize = 128;

/// Lanes of a link in an event's number.
const LANE_BITS: u32 = 8;

/// What a lane is watched for; others' ends of it come with data that is in front of them.
const LANE_EVENTS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::RDHUP);

/// Any of these: the other end is not there any more.
const CUT_EVENTS: epoll::EventFlags = epoll::EventFlags::RDHUP
    .union(epoll::EventFlags::HUP)
    .union(epoll::EventFlags::ERR);

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    Inbox,
    Lane {
        link: u64,
        lane: usize,
    },
    /// The end of a process of this host.
    Process {
        link: u64,
    },
    /// Queue pairs beside a link.
    Nics {
        link: u64,
    },
}

impl Source {
    fn number(self) -> u64 {
        match self {
            Self::Inbox => 0,
            Self::Lane { link, lane } => link << LANE_BITS | lane as u64,
            Self::Process { link } => link << LANE_BITS | ((1 << LANE_BITS) - 1),
            Self::Nics { link } => link << LANE_BITS | ((1 << LANE_BITS) - 2),
        }
    }

    fn of(number: u64) -> Self {
        let (link, lane) = (number >> LANE_BITS, number & ((1 << LANE_BITS) - 1));
        match (link, lane) {
            (0, _) => Self::Inbox,
            (link, lane) if lane == (1 << LANE_BITS) - 1 => Self::Process { link },
            (link, lane) if lane == (1 << LANE_BITS) - 2 => Self::Nics { link },
            (link, lane) => Self::Lane {
                link,
                lane: usize::try_from(lane).expect("eight bits"),
            },
        }
    }
}

/// What the thread has.
pub(super) struct Driver {
    pub(super) shared: Arc<Shared>,
    epoll: OwnedFd,
    pub(super) now: Instant,
    pub(super) timers: Timers,
    pub(super) links: HashMap<u64, Link>,
    /// The last number of a link or a request.
    pub(super) issued: u64,
    pub(super) peers: HashMap<Peer, PeerEntry>,
    /// By the numbers that they were given here: a token may be used again while something of its last transfer is on its way.
    pub(super) operations: HashMap<u64, Operation>,
    /// Their numbers, by the tokens that they were submitted under.
    pub(super) tokens: HashMap<u64, u64>,
    /// Started for the first copy that is worth it.
    pub(super) pool: Option<Pool>,
    pub(super) mappings: Mappings,
    pub(super) nics: Nics,
    /// Links that may have something to ask for or to send.
    pub(super) touched: BTreeSet<u64>,
    /// Lanes that have read something which no socket tells of.
    again: Vec<(u64, usize)>,
    /// Copies of this turn.
    pub(super) copied: VecDeque<(ShareId, u64, Result<Moved, Error>)>,
    /// Ends of this turn.
    pub(super) done: Vec<Completion>,
    scratch: Vec<u8>,
    /// Something was begun or ended that is counted.
    pub(super) is_recounted: bool,
}

/// Starts the thread.
pub(super) fn start(shared: Arc<Shared>) -> io::Result<thread::JoinHandle<()>> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let number = epoll::EventData::new_u64(Source::Inbox.number());
    epoll::add(&epoll, shared.inbox(), number, epoll::EventFlags::IN)?;
    let driver = Driver {
        shared,
        epoll,
        now: Instant::now(),
        timers: Timers::default(),
        links: HashMap::new(),
        issued: 0,
        peers: HashMap::new(),
        operations: HashMap::new(),
        tokens: HashMap::new(),
        pool: None,
        mappings: Mappings::new(),
        nics: Nics::default(),
        touched: BTreeSet::new(),
        again: Vec::new(),
        copied: VecDeque::new(),
        done: Vec::new(),
        scratch: vec![0; 64 << 10],
        is_recounted: false,
    };
    thread::Builder::new()
        .name("roost-rdma".to_owned())
        .spawn(move || driver.run())
}

impl Driver {
    fn run(mut self) {
        loop {
            let events = self.wait();
            self.now = Instant::now();
            for (source, is_cut) in &events {
                if let (Source::Lane { link, .. }, true) = (*source, *is_cut) {
                    self.asker_gone(link);
                }
            }
            for (source, _) in events {
                match source {
                    Source::Inbox => {
                        for command in self.shared.commands() {
                            if matches!(command, Command::Stop) {
                                return self.stop();
                            }
                            self.command(command);
                        }
                    }
                    Source::Lane { link, lane } => self.receive(link, lane),
                    Source::Process { link } => self.process_ended(link),
                    Source::Nics { link } => self.nics_woken(link),
                }
            }
            for (link, lane) in mem::take(&mut self.again) {
                self.receive(link, lane);
            }
            while let Some((share, link, result)) = self.copied.pop_front() {
                // What has come over the link by now is older than the last byte: a lease that is not revoked held so long.
                self.receive(link, 0);
                self.copied_here(share, link, result);
            }
            while let Some(timer) = self.timers.due(self.now) {
                self.due(timer);
            }
            self.tell();
            while let Some(link) = self.touched.pop_first() {
                self.send(link);
            }
            self.tell();
        }
    }

    /// Completions go out last, with counts that have heard of them, and before messages of which others hear.
    fn tell(&mut self) {
        if mem::take(&mut self.is_recounted) {
            self.recount();
        }
        if !self.done.is_empty() {
            self.shared.complete(&mut self.done);
        }
    }

    /// What there is to be done; of a connection, whether its other end is gone.
    fn wait(&mut self) -> Vec<(Source, bool)> {
        let timeout = if self.again.is_empty() {
            self.timers
                .next()
                .map(|at| at.saturating_duration_since(Instant::now()))
        } else {
            Some(Duration::ZERO)
        };
        let timeout = timeout.map(|left| Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS_MAX);
        // It fails only when a signal came; then the next turn sees the same.
        let _ = epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            timeout.as_ref(),
        );
        let of = |event: &epoll::Event| {
            let flags = event.flags;
            (Source::of(event.data.u64()), flags.intersects(CUT_EVENTS))
        };
        events.iter().map(of).collect()
    }

    pub(super) fn issue(&mut self) -> u64 {
        self.issued += 1;
        self.issued
    }

    pub(super) fn watch(&self, what: &impl AsFd, source: Source) -> io::Result<()> {
        let number = epoll::EventData::new_u64(source.number());
        let events = match source {
            Source::Lane { .. } => LANE_EVENTS,
            _ => epoll::EventFlags::IN,
        };
        Ok(epoll::add(&self.epoll, what, number, events)?)
    }

    /// Who asked has cut the link, perhaps to be sure that nothing of what it has asked for is done any more: what is still in
    /// the sockets is not looked at.
    fn asker_gone(&mut self, id: u64) {
        if self
            .links
            .get(&id)
            .is_some_and(|link| link.role() == super::Role::Serves)
        {
            self.link_lost(id, &Cut::Closed);
        }
    }

    /// Nothing of a link wakes the thread any more, and its other end hears of its end, also when a child of this process
    /// has the sockets too.
    pub(super) fn forget(&self, link: &Link) {
        for conduit in &link.lanes {
            // A socket that is cut off already is as it should be.
            let _ = epoll::delete(&self.epoll, conduit);
            let is_asker = link.role() == super::Role::Asks;
            if is_asker && !conduit.is_unix() {
                // Reset: what the socket has not sent yet would else still arrive, and be written.
                let _ = rustix::net::connect_unspec(conduit);
            }
            let _ = rustix::net::shutdown(conduit, rustix::net::Shutdown::Both);
        }
        if let Side::Asks(asking) = &link.side
            && let Some(watched) = &asking.watched
        {
            let _ = epoll::delete(&self.epoll, watched);
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Submit { transfer, token } => self.submit(transfer, token),
            Command::Cancel { token } => self.cancel(token),
            Command::Updated => self.look_again(),
            Command::Drop { region, token } => self.drop_region(region, token),
            Command::Adopt { peer, role, lanes } => self.adopt(peer, role, lanes),
            Command::LinkFailed {
                peer,
                reason,
                is_dead,
            } => self.link_failed(peer, &reason, is_dead),
            Command::PeerLost { peer, reason } => self.peer_lost(peer, &reason),
            Command::Moved { token, share, result } => self.moved(token, share, result),
            Command::SummedHere { token, share, result } => self.summed_here(token, share, result),
            Command::SummedFor {
                link,
                slot,
                sum,
                wanted,
                result,
            } => self.summed_for(link, slot, *sum, wanted, result),
            Command::Stop => unreachable!("it is not handed on"),
        }
    }

    fn due(&mut self, timer: Timer) {
        match timer {
            Timer::Deadline { token } => self.deadline(token),
            Timer::Settle { token } => self.settle_due(token),
            Timer::Look { token, share } => self.look_at_stamps((token, share)),
            Timer::Again { token } => self.begin_again(token),
            Timer::Ask { peer } => self.ask(peer),
            Timer::Nics { link } => self.nics_due(link),
            Timer::Revoke { region } => self.give_back(region),
        }
    }

    /// Takes in what has come over a lane.
    pub(super) fn receive(&mut self, id: u64, lane: usize) {
        let mut budget = TURN_BYTES_MAX;
        if self
            .links
            .get(&id)
            .is_some_and(|link| link.lanes[lane].is_in_chunk() && link.lanes[lane].is_cut())
        {
            self.asker_gone(id);
        }
        loop {
            let Some(link) = self.links.get_mut(&id) else {
                return;
            };
            let conduit = &mut link.lanes[lane];
            match conduit.next(&mut budget) {
                Ok(Some(incoming)) => {
                    if let Err(cut) = self.incoming(id, lane, incoming) {
                        return self.link_lost(id, &cut);
                    }
                }
                Ok(None) => {
                    if budget == 0 && conduit.has_buffered() {
                        self.again.push((id, lane));
                    }
                    self.touched.insert(id);
                    return;
                }
                Err(cut) => return self.link_lost(id, &cut),
            }
        }
    }

    fn incoming(&mut self, id: u64, lane: usize, incoming: Incoming) -> Result<(), Cut> {
        let Some(link) = self.links.get(&id) else {
            return Ok(());
        };
        match (incoming, link.role()) {
            (Incoming::Message(message, descriptors), super::Role::Asks) => {
                self.answered(id, lane, message, descriptors)
            }
            (Incoming::Message(message, _), super::Role::Serves) => self.asked(id, lane, message),
            (
                Incoming::Chunk {
                    request,
                    sink,
                    trailer,
                },
                super::Role::Asks,
            ) => self.chunk_came(id, request, &sink, trailer),
            (
                Incoming::Chunk {
                    request,
                    sink,
                    trailer,
                },
                super::Role::Serves,
            ) => {
                self.chunk_written(id, lane, request, &sink, trailer);
                Ok(())
            }
        }
    }

    /// Asks for what there is room for, and sends what the sockets take.
    fn send(&mut self, id: u64) {
        self.pump(id);
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let mut cut = None;
        for (lane, conduit) in link.lanes.iter_mut().enumerate() {
            if conduit.has_output()
                && let Err(error) = conduit.flush(&mut self.scratch)
            {
                cut = Some(error);
                break;
            }
            let is_waiting = conduit.has_output();
            if mem::replace(&mut link.is_waiting[lane], is_waiting) != is_waiting {
                let number = epoll::EventData::new_u64(Source::Lane { link: id, lane }.number());
                let out = if is_waiting {
                    epoll::EventFlags::OUT
                } else {
                    epoll::EventFlags::empty()
                };
                // The socket is in the set until the link goes; nothing else can be wrong with it.
                let _ = epoll::modify(&self.epoll, conduit.fd(), number, LANE_EVENTS | out);
            }
            if conduit.has_buffered() {
                self.again.push((id, lane));
            }
        }
        if let Some(cut) = cut {
            self.link_lost(id, &cut);
        }
    }

    fn recount(&mut self) {
        let (regions, leases_given) = {
            let regions = lock(&self.shared.regions);
            (regions.count(), regions.leases())
        };
        let leases_held = self.links.values().map(Link::leases_held).sum();
        *lock(&self.shared.counts) = Counts {
            regions,
            leases_given,
            leases_held,
            mappings: self.mappings.count(),
            memory_regions: self.nics.registered(),
            links: self.links.len(),
            transfers: self.shared.transfers.load(Ordering::Relaxed),
        };
    }

    /// Nobody has the engine any more: what is not done is told, for whoever still looks.
    fn stop(mut self) {
        // Its threads have let go of all memory afterwards.
        self.pool = None;
        for (_, link) in mem::take(&mut self.links) {
            self.forget(&link);
        }
        for operation in self.operations.into_values() {
            let result = Err(Error::Cancelled);
            self.done.push(Completion {
                token: operation.token,
                result,
                keep: operation.keep,
            });
        }
        self.shared.complete(&mut self.done);
    }
}
