//! Other processes: when a link to them is asked for, and their ends.

use std::time::{Duration, Instant};

use roost_core::id::HostId;

use super::driver::Driver;
use super::link::{Link, ShareId};
use super::operation::Stage;
use super::shared::lock;
use super::timers::Timer;
use super::{Backend, Notice};
use crate::error::Error;
use crate::handle::Peer;
use crate::limits::{DEAD_REMEMBERED_MAX, LINK_ANSWER_WAIT, LINK_PAUSE_MAX, LINK_PAUSE_MIN};
use crate::stream::Cut;

/// What is known of one life of a process.
pub(super) struct PeerEntry {
    host: Option<HostId>,
    /// The link over which it is asked.
    pub(super) asks: Option<u64>,
    /// The link over which it asks.
    pub(super) serves: Option<u64>,
    /// Since when a link that was asked for is waited for.
    pub(super) asked_at: Option<Instant>,
    /// When the next may be asked for, and how long after it the next but one.
    next_ask: Option<Instant>,
    pause: Duration,
    is_ask_due: bool,
    /// Shares that wait for a link.
    waiting: Vec<ShareId>,
    pub(super) dead: Option<String>,
    /// Why there was no link the last time that one was to be had.
    pub(super) hindrance: Option<String>,
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
            hindrance: None,
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
        self.hindrance = None;
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
            entry.hindrance = Some(reason.to_owned());
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
}
