//! Leases: what the asker learns of a buffer before it touches it, and gives back when the owner wants it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Backend;
use super::driver::Driver;
use super::link::{Asking, Held, Lease, Link, Request, ShareId, Side};
use super::nics::remote_from;
use super::operation::Stage;
use super::reach::{Found, hold};
use super::waiter::Source;
use crate::error::Error;
use crate::handle::{Handle, Key, Peer};
use crate::link::{Address, Broken, Message, Reason};
use crate::local::Process;
use crate::stream::Cut;

impl Driver {
    /// The share goes on when it has leases of all its buffers.
    pub(super) fn lease(&mut self, share: ShareId, link: u64) {
        let (token, number) = share;
        let (Some(operation), Some(over)) = (self.operations.get_mut(&token), self.links.get_mut(&link))
        else {
            return;
        };
        let of = &mut operation.shares[number];
        of.stage = Stage::Leasing;
        of.link = Some(link);
        of.missing = 0;
        let parts = Arc::clone(&of.parts);
        for (part, handle) in parts.iter().map(|part| &part.handle).enumerate() {
            let request = self.issued + 1;
            let state = lease_of(over, handle, share, request);
            match state {
                Ok(State::Held) => {}
                Ok(State::Awaited) => operation.shares[number].missing += 1,
                Ok(State::Asked) => {
                    self.issued = request;
                    operation.shares[number].missing += 1;
                    self.is_recounted = true;
                }
                Err(error) => {
                    let error = operation.about(number, Some(part), error);
                    return self.fail(token, error);
                }
            }
        }
        self.touched.insert(link);
        if operation.shares[number].missing == 0 {
            self.work(share);
        }
    }

    /// The owner has answered.
    pub(super) fn opened(
        &mut self,
        id: u64,
        request: u64,
        bytes: u64,
        address: Address,
        keys: &[u8],
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Cut> {
        let remote = remote_from(keys, bytes)?;
        let (peer, is_near, asking, lease) = opening(&mut self.links, id, request)?;
        let held = hold(asking, &self.mappings, is_near, bytes, address, descriptors)?;
        let (held, hindrance) = match held {
            Found::Held(held) => (Held { remote, ..held }, None),
            Found::Lost => {
                self.peer_lost(peer, "its process has ended");
                return Ok(());
            }
            Found::Forbidden(_)
                if matches!(
                    asking.leases.get(&lease),
                    Some(Lease::Asked {
                        wants_memory: false,
                        ..
                    })
                ) =>
            {
                self.open_again(id, lease);
                return Ok(());
            }
            Found::Forbidden(message) => (Held::out_of_reach(bytes), Some(message)),
        };
        let place = held.place.clone();
        let process = asking.process.clone().filter(|_| asking.watched.is_none());
        let Some(Lease::Asked { waiters, .. }) = asking.leases.insert(lease, Lease::Held(held)) else {
            return Err(Broken("an answer without a question").into());
        };
        if let Some(process) = process {
            self.watch_process(id, &process)?;
        }
        if let Some(place) = place {
            let control = self.control_of(id)?;
            self.shared.near.add(peer, lease, place, bytes, control);
        }
        if let Some(message) = hindrance
            && !std::mem::replace(&mut self.peers.entry(peer).or_default().is_hindered, true)
        {
            self.chosen(peer, Backend::Tcp, Some(message));
        }
        self.peers.entry(peer).or_default().is_well();
        for share in waiters {
            self.lease_came(share, id, lease);
        }
        Ok(())
    }

    /// The kernel says no: perhaps the owner's own descriptor of its memory helps.
    fn open_again(&mut self, id: u64, lease: (u64, Key)) {
        let request = self.issue();
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let owner = link.peer;
        let (region, key) = lease;
        link.say(
            &Message::Open {
                request,
                region,
                key,
                owner,
                wants_memory: true,
            },
            Vec::new(),
        );
        if let Some(asking) = link.asking() {
            if let Some(Lease::Asked { wants_memory, .. }) = asking.leases.get_mut(&lease) {
                *wants_memory = true;
            }
            asking.requests.insert(request, Request::Open { lease });
        }
        self.touched.insert(id);
    }

    /// The control stream, for other threads to look at.
    fn control_of(&mut self, id: u64) -> Result<Arc<OwnedFd>, Cut> {
        let Link { lanes, side, .. } = self.links.get_mut(&id).ok_or(Cut::Closed)?;
        let Side::Asks(asking) = side else {
            return Err(Broken("an answer to who serves").into());
        };
        let control = match asking.control.take() {
            Some(control) => control,
            None => Arc::new(lanes[0].fd().try_clone_to_owned()?),
        };
        Ok(Arc::clone(asking.control.insert(control)))
    }

    /// The end of a process of this host is heard of at once, not only by the end of its link.
    fn watch_process(&mut self, id: u64, process: &Process) -> Result<(), Cut> {
        let watched = process.pidfd().try_clone_to_owned()?;
        self.waiter.watch(&watched, Source::Process { link: id })?;
        if let Some(asking) = self.links.get_mut(&id).and_then(Link::asking) {
            asking.watched = Some(watched);
        }
        Ok(())
    }

    fn lease_came(&mut self, share: ShareId, link: u64, lease: (u64, Key)) {
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        let of = &mut operation.shares[number];
        if of.link != Some(link) || of.stage != Stage::Leasing || operation.failure.is_some() {
            return;
        }
        of.missing -= 1;
        let is_all = of.missing == 0;
        let over = self.links.get_mut(&link).and_then(Link::asking);
        if let Some(Lease::Held(held)) = over.and_then(|asking| asking.leases.get(&lease)) {
            let bytes = held.bytes;
            let of_lease = |handle: &Handle| (handle.region, handle.key) == lease;
            let wrong = of
                .parts
                .iter()
                .position(|part| of_lease(&part.handle) && part.handle.size != bytes);
            if wrong.is_some() {
                let error = operation.about(number, wrong, wrong_size());
                return self.fail(token, error);
            }
        }
        if is_all {
            self.work(share);
        }
    }

    pub(super) fn refused(&mut self, id: u64, request: u64, reason: Reason, text: String) -> Result<(), Cut> {
        let (peer, _, asking, lease) = opening(&mut self.links, id, request)?;
        let Some(Lease::Asked { waiters, .. }) = asking.leases.remove(&lease) else {
            return Err(Broken("a refusal of what was given").into());
        };
        self.is_recounted = true;
        let error = match reason {
            Reason::Gone if text.is_empty() => Error::Gone("its owner has dropped it".to_owned()),
            Reason::Gone => Error::Gone(text),
            Reason::Forged => Error::Refused("it has no such buffer with this key".to_owned()),
            Reason::OtherLife => Error::PeerLost(format!("{peer} is another life of its process")),
            Reason::Hindered => Error::Unavailable(text),
        };
        for (token, number) in waiters {
            let Some(operation) = self.operations.get(&token) else {
                continue;
            };
            let part = operation.shares[number].part_of(lease.0);
            let error = operation.about(number, part, error.clone());
            self.fail(token, error);
        }
        Ok(())
    }

    /// The owner drops the buffer.
    pub(super) fn revoked(&mut self, id: u64, region: u64) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        self.shared.near.revoke(link.peer, region);
        let Some(asking) = link.asking() else {
            return;
        };
        for (lease, state) in &mut asking.leases {
            if let (Lease::Held(held), true) = (state, lease.0 == region) {
                held.is_revoked = true;
            }
        }
        let concerned: Vec<(ShareId, usize)> = self
            .operations
            .iter()
            .flat_map(|(token, operation)| {
                operation
                    .shares
                    .iter()
                    .enumerate()
                    .map(move |(number, share)| ((*token, number), share))
            })
            .filter(|(_, share)| share.link == Some(id) && share.stage != Stage::Linking)
            .filter_map(|(at, share)| Some((at, share.part_of(region)?)))
            .collect();
        for ((token, number), part) in concerned {
            let operation = &self.operations[&token];
            // What has all its bytes does not need the buffer any more.
            let is_ready = operation.shares[number].stage == Stage::Ready;
            if is_ready && operation.phase == operation.last_phase() {
                continue;
            }
            let error = operation.about(
                number,
                Some(part),
                Error::Gone("its owner has dropped it".to_owned()),
            );
            self.fail(token, error);
        }
        self.answer_revoked(id, region);
    }

    /// Says so when nothing here uses the region any more.
    pub(super) fn answer_revoked(&mut self, id: u64, region: u64) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let Some(asking) = link.asking() else {
            return;
        };
        let is_used = |lease: &Lease| matches!(lease, Lease::Held(held) if held.users > 0);
        if asking
            .leases
            .iter()
            .any(|(lease, state)| lease.0 == region && is_used(state))
        {
            return;
        }
        asking
            .leases
            .retain(|lease, state| lease.0 != region || matches!(state, Lease::Asked { .. }));
        link.say(&Message::Revoked { region }, Vec::new());
        self.touched.insert(id);
        self.is_recounted = true;
    }
}

/// Who answers, whether it lives on this host, and for which lease.
type Opening<'a> = (Peer, bool, &'a mut Asking, (u64, Key));

fn opening(links: &mut HashMap<u64, Link>, id: u64, request: u64) -> Result<Opening<'_>, Cut> {
    let link = links.get_mut(&id).ok_or(Cut::Closed)?;
    let (peer, is_near) = (link.peer, link.is_unix());
    let asking = link.asking().ok_or(Broken("an answer to who serves"))?;
    match asking.requests.remove(&request) {
        Some(Request::Open { lease }) => Ok((peer, is_near, asking, lease)),
        _ => Err(Broken("an answer without a question").into()),
    }
}

enum State {
    Held,
    Awaited,
    Asked,
}

fn wrong_size() -> Error {
    Error::Refused("the buffer has another size than its handle says".to_owned())
}

fn lease_of(link: &mut Link, handle: &Handle, share: ShareId, request: u64) -> Result<State, Error> {
    let owner = link.peer;
    let key = (handle.region, handle.key);
    let asking = link
        .asking()
        .ok_or_else(|| Error::Unavailable("a link of the other direction".to_owned()))?;
    match asking.leases.get_mut(&key) {
        Some(Lease::Held(held)) if held.is_revoked => Err(Error::Gone("its owner has dropped it".to_owned())),
        Some(Lease::Held(held)) if held.bytes != handle.size => Err(wrong_size()),
        Some(Lease::Held(_)) => Ok(State::Held),
        Some(Lease::Asked { waiters, .. }) => {
            waiters.push(share);
            Ok(State::Awaited)
        }
        None => {
            asking.leases.insert(
                key,
                Lease::Asked {
                    wants_memory: false,
                    waiters: vec![share],
                },
            );
            asking.requests.insert(request, Request::Open { lease: key });
            let (region, key) = key;
            link.say(
                &Message::Open {
                    request,
                    region,
                    key,
                    owner,
                    wants_memory: false,
                },
                Vec::new(),
            );
            Ok(State::Asked)
        }
    }
}
