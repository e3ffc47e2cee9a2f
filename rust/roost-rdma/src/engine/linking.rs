//! Links to other processes, as they come and go.

use std::io;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::driver::Driver;
use super::link::{Link, Request, Route, ShareId, Side};
use super::peers::PeerEntry;
use super::waiter::Source;
use super::{Backend, Role};
use crate::error::Error;
use crate::handle::Peer;
use crate::lane::{Lane, Plain};
use crate::limits::LANES_MAX;
use crate::link::{Broken, Hello, Message};
use crate::plan::Direction;
use crate::stream::Cut;

impl Driver {
    /// A process asks itself as it asks others: what it may do, and how it ends, is the same.
    pub(super) fn link_to_oneself(&mut self, peer: Peer) {
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
            .try_for_each(|(lane, conduit)| self.waiter.watch(conduit, Source::Lane { link: id, lane }));
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
    pub(super) fn settled(&mut self, peer: Peer) {
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

    /// A link is over, and perhaps not the process behind it: what was under way is done again over the next.
    pub(super) fn link_lost(&mut self, id: u64, cut: &Cut) {
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
                self.shared.near.lose(peer);
                if let Some(flights) = asking.nics.take() {
                    self.ground(flights);
                }
                if let Some(entry) = self.peers.get_mut(&peer).filter(|entry| entry.asks == Some(id)) {
                    entry.asks = None;
                    entry.hindrance = Some(cut.to_string());
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
