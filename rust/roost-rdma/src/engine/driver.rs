//! The thread: whose turn it is.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use super::link::{Link, ShareId, Side};
use super::nics::Nics;
use super::operation::Operation;
use super::peers::PeerEntry;
use super::shared::{Command, Shared, lock};
use super::timers::{Timer, Timers};
use super::waiter::{Source, Waiter};
use super::{Completion, Counts};
use crate::error::Error;
use crate::handle::Peer;
use crate::limits::TURN_BYTES_MAX;
use crate::local::{Mappings, Moved, Pool};
use crate::stream::{Cut, Incoming};

/// What the thread has.
pub(super) struct Driver {
    pub(super) shared: Arc<Shared>,
    pub(super) waiter: Waiter,
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
    /// Links whose queue pairs were given work in this turn, or had some taken from them: what is quick is done already.
    pub(super) busied: BTreeSet<u64>,
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
    let waiter = Waiter::new()?;
    waiter.watch(&shared.inbox(), Source::Inbox)?;
    let driver = Driver {
        shared,
        waiter,
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
        busied: BTreeSet::new(),
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
            let events = self.waiter.wait(self.time_left());
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
            while let Some(timer) = self.timers.due(self.now) {
                self.due(timer);
            }
            self.finish_what_is_quick();
            self.tell();
            while let Some(link) = self.touched.pop_first() {
                self.send(link);
            }
            self.tell();
        }
    }

    /// What this turn has begun and is done already. The end of one may begin another.
    fn finish_what_is_quick(&mut self) {
        loop {
            if let Some((share, link, result)) = self.copied.pop_front() {
                // What has come over the link by now is older than the last byte: a lease that is not revoked held so long.
                self.receive(link, 0);
                self.copied_here(share, link, result);
            } else if let Some(link) = self.busied.pop_first() {
                self.nics_woken(link);
            } else {
                return;
            }
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

    /// How long the thread may wait; none for as long as nothing happens.
    fn time_left(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        let due = self.timers.next()?;
        Some(due.saturating_duration_since(Instant::now()))
    }

    pub(super) fn issue(&mut self) -> u64 {
        self.issued += 1;
        self.issued
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
            self.waiter.forget(conduit);
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
            self.waiter.forget(watched);
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
                self.waiter
                    .watch_output(conduit, Source::Lane { link: id, lane }, is_waiting);
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
        // Its threads have let go of all memory afterwards, and so have others'.
        self.pool = None;
        self.shared.near.clear();
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
