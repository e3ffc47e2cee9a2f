//! Other processes: links to them, and their ends.

use std::io;
use std::time::{Duration, Instant};

use roost_core::id::HostId;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::driver::{Driver, Source};
use super::link::{Link, Request, Route, ShareId, Side};
use super::operation::Stage;
use super::shared::lock;
use super::timers::Timer;
use super::{Backend, Notice, Role};
use crate::error::Error;
use crate::handle::Peer;
use crate::lane::{Lane, Plain};
use crate::limits::{DEAD_REMEMBERED_MAX, LANES_MAX, LINK_ANSWER_WAIT, LINK_PAUSE_MAX, LINK_PAUSE_MIN};
use crate::link::{Broken, Hello, Message};
use crate::plan::Direction;
use crate::stream::Cut;

/// What is known of one life of a process.
pub(super) struct PeerEntry {
    host: Option<HostId>,
    /// The link over which it is asked.
    pub(super) asks: Option<u64>,
    /// The link over which it asks.
    serves: Option<u64>,
    /// Since when a link that was asked for is waited for.
    asked_at: Option<Instant>,
    /// When the next may be asked for, and how long after it the next but one.
    next_ask: Option<Instant>,
    pause: Duration,
    is_ask_due: bool,
    /// Shares that wait for a link.
    waiting: Vec<ShareId>,
    dead: Option<String>,
    is_told: bool,
    /// That its memory cannot be reached was told.
    pub(super) is_hindered: bool,
}

impl Default for PeerEntry {
    fn default() -> Self {
        Self {
            host: None,
            asks: None,
            serves: None,
            asked_at: None,
            next_ask: None,
            pause: LINK_PAUSE_MIN,
            is_ask_due: false,
            waiting: Vec::new(),
            dead: None,
            is_told: false,
            is_hindered: false,
        }
    }
}

impl PeerEntry {
    pub(super) fn take_waiting(&mut self) -> Vec<ShareId> {
        std::mem::take(&mut self.waiting)
    }

    /// Links to it work.
    pub(super) fn is_well(&mut self) {
        self.pause = LINK_PAUSE_MIN;
        self.next_ask = None;
    }
}

impl Driver {
    /// The share goes on when there is a link to its owner.
    pub(super) fn await_link(&mut self, share: ShareId) {
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        let is_failed = operation.failure.is_some();
        let of = &mut operation.shares[number];
        of.stage = Stage::Linking;
        of.link = None;
        let (peer, host) = (of.peer, of.host);
        if is_failed && !of.is_unsettled {
            return;
        }
        let entry = self.peers.entry(peer).or_default();
        if let Some(reason) = &entry.dead {
            let error = operation.about(number, Some(0), Error::PeerLost(reason.clone()));
            return self.fail(token, error);
        }
        entry.host = Some(host);
        match entry.asks {
            Some(link) if self.links.get_mut(&link).is_some_and(Link::is_usable) => {
                self.lease(share, link);
            }
            Some(_) => entry.waiting.push(share),
            None => {
                entry.waiting.push(share);
                self.ask(peer);
            }
        }
    }

    /// Asks for a link, now or as soon as it may.
    pub(super) fn ask(&mut self, peer: Peer) {
        let now = self.now;
        let Some(entry) = self.peers.get_mut(&peer) else {
            return;
        };
        entry.is_ask_due = false;
        let operations = &self.operations;
        entry
            .waiting
            .retain(|(token, _)| operations.get(token).is_some_and(|of| !of.is_over()));
        if entry.asks.is_some() || entry.dead.is_some() || entry.waiting.is_empty() {
            return;
        }
        let answer_by = entry.asked_at.map(|at| at + LINK_ANSWER_WAIT);
        let next = answer_by.or(entry.next_ask).filter(|at| *at > now);
        if let Some(at) = next {
            if !std::mem::replace(&mut entry.is_ask_due, true) {
                self.timers.set(at, Timer::Ask { peer });
            }
            return;
        }
        entry.asked_at = Some(now);
        entry.next_ask = Some(now + entry.pause);
        entry.pause = (entry.pause * 2).min(LINK_PAUSE_MAX);
        if peer == self.shared.own.peer {
            return self.link_to_oneself(peer);
        }
        if let Some(host) = entry.host {
            self.shared.switch.ask(peer, host);
        }
    }

    /// A process asks itself as it asks others: what it may do, and how it ends, is the same.
    fn link_to_oneself(&mut self, peer: Peer) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        match socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None) {
            Ok((one, other)) => {
                self.adopt(peer, Role::Serves, vec![Box::new(Plain::unix(one))]);
                self.adopt(peer, Role::Asks, vec![Box::new(Plain::unix(other))]);
            }
            Err(error) => self.link_failed(peer, &error.to_string(), false),
        }
    }

    pub(super) fn adopt(&mut self, peer: Peer, role: Role, lanes: Vec<Box<dyn Lane>>) {
        if lanes.is_empty() || lanes.len() > LANES_MAX {
            return self.link_failed(peer, "a link of no use was made", false);
        }
        let id = self.issue();
        let mut link = Link::new(peer, role, lanes);
        let watched: io::Result<()> = link
            .lanes
            .iter()
            .enumerate()
            .try_for_each(|(lane, conduit)| self.watch(conduit, Source::Lane { link: id, lane }));
        if let Err(error) = watched {
            return self.link_failed(peer, &error.to_string(), false);
        }
        // Only who serves is reached by NICs.
        let card = if role == Role::Serves {
            self.card(link.is_unix())
        } else {
            None
        };
        let own = self.shared.own;
        let hello = Hello {
            job: own.job,
            host: own.host,
            peer: own.peer,
            pid: std::process::id(),
            card,
        };
        link.say(&Message::Hello(hello), Vec::new());
        self.links.insert(id, link);
        self.touched.insert(id);
        self.is_recounted = true;
        let entry = self.peers.entry(peer).or_default();
        let older = match role {
            Role::Asks => {
                entry.asked_at = None;
                entry.asks.replace(id)
            }
            Role::Serves => entry.serves.replace(id),
        };
        if let Some(older) = older {
            self.link_lost(older, &Cut::Replaced);
        }
    }

    /// The other end has said who it is.
    pub(super) fn greet(&mut self, id: u64, hello: &Hello) -> Result<(), Cut> {
        let own = self.shared.own;
        let Some(link) = self.links.get_mut(&id) else {
            return Ok(());
        };
        if hello.peer != link.peer || hello.job != own.job || link.is_greeted {
            return Err(Broken("a greeting by somebody else").into());
        }
        link.is_greeted = true;
        let (peer, is_near, role) = (link.peer, link.is_unix(), link.role());
        if role == Role::Asks {
            self.settled(peer);
        }
        let Some(link) = self.links.get_mut(&id) else {
            return Ok(());
        };
        match &mut link.side {
            Side::Serves(serving) => {
                serving.pid = hello.pid;
                return Ok(());
            }
            Side::Asks(asking) => {
                asking.route = match self.shared.options.forced {
                    Some(Backend::Tcp | Backend::Ibverbs) => Route::Stream,
                    _ if is_near => Route::Local,
                    _ => Route::Stream,
                }
            }
        }
        let refusal = match (self.shared.options.forced, is_near) {
            (Some(Backend::SameHost), false) => {
                Some(format!("same_host was asked for, and {peer} is on another host"))
            }
            _ => None,
        };
        if refusal.is_none() && self.wants_nics(is_near) {
            if let Err(reason) = self.offer(id, hello.card.as_deref()) {
                self.without_nics(id, &reason);
            }
            return Ok(());
        }
        let waiting = self.peers.get_mut(&peer).map(PeerEntry::take_waiting);
        if refusal.is_none() {
            self.chosen(
                peer,
                if is_near && self.shared.options.forced != Some(Backend::Tcp) {
                    Backend::SameHost
                } else {
                    Backend::Tcp
                },
                None,
            );
        }
        for share in waiting.unwrap_or_default() {
            match &refusal {
                Some(reason) => self.fail(share.0, Error::Unavailable(reason.clone())),
                None => self.await_link(share),
            }
        }
        Ok(())
    }

    /// The owner has a new link of this process, and so none of those before it, or is no more: what had come over them is
    /// written or never will be.
    fn settled(&mut self, peer: Peer) {
        let mut failed = Vec::new();
        for (token, operation) in &mut self.operations {
            for share in operation.shares.iter_mut().filter(|share| share.peer == peer) {
                share.is_unsettled = false;
            }
            if operation.is_over() {
                failed.push(*token);
            }
        }
        for token in failed {
            self.end_if_idle(token);
        }
    }

    /// What moves the bytes is known: told once.
    pub(super) fn chosen(&mut self, peer: Peer, backend: Backend, fallback: Option<String>) {
        lock(&self.shared.backends).insert(peer, backend);
        let entry = self.peers.entry(peer).or_default();
        if fallback.is_some() || !std::mem::replace(&mut entry.is_told, true) {
            lock(&self.shared.notices).push(Notice {
                peer,
                backend,
                fallback,
            });
        }
    }

    pub(super) fn link_failed(&mut self, peer: Peer, reason: &str, is_dead: bool) {
        if is_dead {
            return self.peer_dead(peer, reason);
        }
        if let Some(entry) = self.peers.get_mut(&peer) {
            entry.asked_at = None;
            self.ask(peer);
        }
    }

    /// This life and all before it are over.
    pub(super) fn peer_lost(&mut self, peer: Peer, reason: &str) {
        let is_over = |other: &&Peer| other.proc == peer.proc && other.incarnation <= peer.incarnation;
        let mut over: Vec<Peer> = self.peers.keys().filter(is_over).copied().collect();
        if !over.contains(&peer) {
            over.push(peer);
        }
        for peer in over {
            self.peer_dead(peer, reason);
        }
    }

    /// The process of this host that a link leads to has ended.
    pub(super) fn process_ended(&mut self, id: u64) {
        if let Some(link) = self.links.get(&id) {
            self.peer_dead(link.peer, "its process has ended");
        }
    }

    fn peer_dead(&mut self, peer: Peer, reason: &str) {
        if self.peers.len() > DEAD_REMEMBERED_MAX {
            self.peers.retain(|_, entry| entry.dead.is_none());
        }
        let entry = self.peers.entry(peer).or_default();
        entry.dead.get_or_insert_with(|| reason.to_owned());
        entry.waiting.clear();
        let links = [entry.asks.take(), entry.serves.take()];
        lock(&self.shared.backends).remove(&peer);
        self.settled(peer);
        for (token, share) in self.shares_with(peer) {
            let operation = &self.operations[&token];
            let error = operation.about(share, Some(0), Error::PeerLost(reason.to_owned()));
            self.fail(token, error);
        }
        for link in links.into_iter().flatten() {
            self.link_lost(link, &Cut::Closed);
        }
    }

    fn shares_with(&self, peer: Peer) -> Vec<ShareId> {
        let mut shares = Vec::new();
        for (token, operation) in &self.operations {
            let numbers = operation.shares.iter().position(|share| share.peer == peer);
            shares.extend(numbers.map(|number| (*token, number)));
        }
        shares
    }

    /// A link is over, and perhaps not the process behind it: what was under way is done again over the next.
    pub(super) fn link_lost(&mut self, id: u64, _cut: &Cut) {
        let Some(link) = self.links.remove(&id) else {
            return;
        };
        self.is_recounted = true;
        self.forget(&link);
        let peer = link.peer;
        match link.side {
            Side::Serves(serving) => {
                if let Some(entry) = self.peers.get_mut(&peer).filter(|entry| entry.serves == Some(id)) {
                    entry.serves = None;
                }
                self.served(id, &serving);
            }
            Side::Asks(mut asking) => {
                if let Some(flights) = asking.nics.take() {
                    self.ground(flights);
                }
                if let Some(entry) = self.peers.get_mut(&peer).filter(|entry| entry.asks == Some(id)) {
                    entry.asks = None;
                }
                let is_dead = self.peers.get(&peer).is_some_and(|entry| entry.dead.is_some());
                for request in asking.requests.into_values() {
                    self.unanswered(request, !is_dead);
                }
                for share in self.shares_over(id) {
                    self.relink(share);
                }
                // Those that waited for its greeting.
                self.ask(peer);
            }
        }
    }

    fn shares_over(&self, link: u64) -> Vec<ShareId> {
        let mut shares = Vec::new();
        for (token, operation) in &self.operations {
            for (number, share) in operation.shares.iter().enumerate() {
                if share.link == Some(link) {
                    shares.push((*token, number));
                }
            }
        }
        shares
    }

    /// A request over a link that is no more. What of it has reached the owner may still be written there, if that lives.
    fn unanswered(&mut self, request: Request, lives: bool) {
        let Request::Chunk {
            share: (token, number),
            chunk,
            is_given_up,
            ..
        } = request
        else {
            return;
        };
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        if chunk.direction == Direction::Write {
            operation.holds -= 1;
            operation.shares[number].is_unsettled |= lives;
        }
        if !is_given_up {
            let share = &mut operation.shares[number];
            share.outstanding -= 1;
            share.redo.push(chunk);
        }
    }

    fn relink(&mut self, share: ShareId) {
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        if operation.failure.is_some() && self.end_if_idle(token) {
            return;
        }
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        if let Some(ticket) = &operation.shares[number].ticket {
            ticket.cancel();
        }
        self.await_link(share);
    }
}
