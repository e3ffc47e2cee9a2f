//! Transfers by NICs: which links have queue pairs beside them, and what is under way on these.
//!
//! Leases, stamps and revocations go over the link as ever. An error of a queue pair ends the whole link: what was under way
//! is done again over the next, by what can be had then.

use std::collections::HashMap;
use std::sync::Arc;

use super::Backend;
use super::driver::Driver;
use super::link::{Asking, Held, Lease, Link, ShareId, Side};
use super::operation::{Phase, Stage};
use super::shared::lock;
use crate::error::Error;
use crate::link::{Broken, Reason};
use crate::plan::{Direction, Part};
use crate::region::{Memory, Region};
use crate::stream::Cut;
use crate::verbs::{self, Event, Failure, Path, Reach, Registration, RemoteRegion, Verbs};

/// What of NICs the thread has: opened when a link first wants them.
#[derive(Default)]
pub(super) struct Nics {
    verbs: Option<Result<Verbs, String>>,
    /// Of this process' regions, by their number.
    registrations: HashMap<u64, Registration>,
}

/// Queue pairs beside a link, on the asker's side.
pub(super) struct Flights {
    pub(super) path: Path,
    pub(super) is_ready: bool,
    /// What is under way, by its number on the path.
    posted: HashMap<u64, ShareId>,
}

impl Nics {
    /// Registrations with devices, of both sides.
    pub(super) fn registered(&self) -> usize {
        match &self.verbs {
            Some(Ok(verbs)) => verbs.regions(),
            _ => 0,
        }
    }

    /// The owner has taken the region back.
    pub(super) fn forget(&mut self, region: u64) {
        self.registrations.remove(&region);
    }
}

impl Flights {
    pub(super) fn new(path: Path) -> Self {
        Self {
            path,
            is_ready: false,
            posted: HashMap::new(),
        }
    }

    /// Whether something of the transfer is under way.
    pub(super) fn carries(&self, token: u64) -> bool {
        self.posted.values().any(|share| share.0 == token)
    }
}

impl Asking {
    /// The owner's NICs have not answered yet, and may.
    pub(super) fn is_proving(&self) -> bool {
        self.nics.as_ref().is_some_and(|nics| !nics.is_ready)
    }
}

impl Driver {
    /// Whether a link of this kind is to have queue pairs.
    pub(super) fn wants_nics(&self, is_near: bool) -> bool {
        match self.shared.options.forced {
            Some(forced) => forced == Backend::Ibverbs,
            None => !is_near,
        }
    }

    pub(super) fn verbs(&mut self) -> Result<Verbs, String> {
        let options = &self.shared.options;
        let open = || {
            let options = verbs::Options {
                library: options.library.clone(),
                devices: Some(options.devices.clone()),
                exporter: options.exporter.clone(),
            };
            Verbs::open(&options).map_err(|error| error.to_string())
        };
        self.nics.verbs.get_or_insert_with(open).clone()
    }

    /// The ports that a peer may reach this process by, where a link of this kind is to have any.
    pub(super) fn card(&mut self, is_near: bool) -> Option<Vec<u8>> {
        if !self.wants_nics(is_near) {
            return None;
        }
        Some(self.verbs().ok()?.card())
    }

    /// Something may have happened on a link's queue pairs.
    pub(super) fn nics_woken(&mut self, id: u64) {
        let nics = self
            .links
            .get_mut(&id)
            .and_then(Link::asking)
            .and_then(|asking| asking.nics.as_mut());
        let events = nics.map(|nics| nics.path.poll()).unwrap_or_default();
        for event in events {
            match event {
                Event::Ready => self.nics_ready(id),
                Event::Done { id: number } => self.carried(id, number, None),
                Event::Failed { id: number, failure } => self.carried(id, number, Some(failure)),
                Event::Broken { reason } => return self.nics_broken(id, &reason),
            }
        }
    }

    fn nics_broken(&mut self, id: u64, reason: &str) {
        let asking = self.links.get_mut(&id).and_then(Link::asking);
        match asking {
            Some(asking) if asking.is_proving() => self.without_nics(id, reason),
            Some(_) => self.link_lost(id, &Cut::Nics(reason.to_owned())),
            None => {}
        }
    }

    /// Hands the share to the NICs where these reach all its buffers. False: another way has to be taken.
    pub(super) fn copy_by_nics(&mut self, share: ShareId, id: u64) -> bool {
        let (token, number) = share;
        let (Some(operation), Some(link)) = (self.operations.get_mut(&token), self.links.get_mut(&id)) else {
            return false;
        };
        let peer = link.peer;
        let Side::Asks(asking) = &mut link.side else {
            return false;
        };
        let parts = Arc::clone(&operation.shares[number].parts);
        let (leases, nics) = (&asking.leases, asking.nics.as_mut().filter(|nics| nics.is_ready));
        let remotes: Option<Vec<&RemoteRegion>> = parts.iter().map(|part| remote_of(leases, part)).collect();
        let (Some(nics), Some(remotes)) = (nics, remotes) else {
            return false;
        };
        let mut posted: u64 = 0;
        let mut hindrance = None;
        for direction in [Direction::Read, Direction::Write] {
            let of = |(part, remote): (&'_ Part, &'_ RemoteRegion)| {
                part.direction == direction && remote.bytes > 0
            };
            let reaches: Vec<Reach<'_>> = parts
                .iter()
                .zip(&remotes)
                .filter(|(part, remote)| of((part, remote)))
                .map(|(part, remote)| Reach {
                    remote,
                    runs: &part.runs,
                })
                .collect();
            if reaches.is_empty() {
                continue;
            }
            let request = self.issued + 1;
            // SAFETY: the transfer's memory is kept until its completion, which waits for this hold; a link that goes drops its
            // path before it lets go of the holds.
            match unsafe { nics.path.post_all(request, direction, &reaches) } {
                Ok(()) => {
                    self.issued = request;
                    posted += 1;
                    nics.posted.insert(request, share);
                    self.busied.insert(id);
                }
                Err(error) => hindrance = Some(error.to_string()),
            }
            if hindrance.is_some() {
                break;
            }
        }
        let Some(reason) = hindrance else {
            self.posted(share, id, posted);
            return true;
        };
        let is_forced = self.shared.options.forced == Some(Backend::Ibverbs);
        if posted == 0 && !is_forced {
            if !std::mem::replace(&mut self.peers.entry(peer).or_default().is_hindered, true) {
                self.chosen(peer, Backend::Tcp, Some(reason));
            }
            return false;
        }
        self.posted(share, id, posted);
        self.fail(token, Error::Unavailable(reason));
        true
    }

    /// So many pieces of work are out for the share, which is all of it.
    fn posted(&mut self, share: ShareId, link: u64, count: u64) {
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        let count = usize::try_from(count).unwrap_or(0);
        operation.holds += count;
        let of = &mut operation.shares[number];
        of.outstanding += count;
        of.skip();
        let parts = Arc::clone(&of.parts);
        for _ in 0..count {
            self.count_users(link, &parts, |held| held.users += 1);
        }
        if count == 0 {
            self.ready(share);
        }
    }

    /// A piece of work is done, or was given back undone: no NIC touches its memory any more.
    fn carried(&mut self, id: u64, number: u64, failure: Option<Failure>) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let peer = link.peer;
        let nics = link.asking().and_then(|asking| asking.nics.as_mut());
        let Some(share) = nics.and_then(|nics| nics.posted.remove(&number)) else {
            return;
        };
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        operation.holds -= 1;
        let of = &mut operation.shares[number];
        of.outstanding -= 1;
        let parts = Arc::clone(&of.parts);
        self.let_go(id, &parts);
        let Some(operation) = self.operations.get_mut(&token).filter(|of| of.failure.is_none()) else {
            self.end_if_idle(token);
            return;
        };
        let of = &operation.shares[number];
        let is_current = of.link == Some(id) && of.stage == Stage::Working && operation.phase == Phase::Copy;
        match failure {
            None => {
                let is_done = is_current && of.outstanding == 0 && of.is_all_asked();
                self.peers.entry(peer).or_default().is_well();
                if is_done {
                    self.ready(share);
                }
            }
            // A process that ends takes its keys with it before anybody hears of its end: over the next link it is known.
            Some(Failure::Access(_)) if !std::mem::replace(&mut operation.shares[number].is_denied, true) => {
                operation.shares[number].rewind();
            }
            Some(Failure::Access(text)) => {
                let error = operation.about(number, Some(0), Error::Gone(text));
                self.fail(token, error);
            }
            Some(Failure::Local(reason)) => {
                let error = operation.about(number, Some(0), Error::Failed { part: 0, reason });
                self.fail(token, error);
            }
            // The link goes with its queue pairs, and the share is done again over the next.
            Some(_) => operation.shares[number].rewind(),
        }
    }

    /// Ends what of a transfer is under way on a link's queue pairs, as soon as the NICs let it go.
    pub(super) fn cancel_on_nics(&mut self, token: u64, id: u64) {
        let asking = self.links.get_mut(&id).and_then(Link::asking);
        let Some(nics) = asking.and_then(|asking| asking.nics.as_mut()) else {
            return;
        };
        let its = nics.posted.iter().filter(|(_, share)| share.0 == token);
        for number in its.map(|(number, _)| *number).collect::<Vec<_>>() {
            nics.path.cancel(number);
            self.busied.insert(id);
        }
    }

    /// The queue pairs of a link that is no more: what was under way on them goes back to where it began.
    pub(super) fn ground(&mut self, flights: Flights) {
        let Flights { path, posted, .. } = flights;
        // Its end is what lets go of the memory.
        drop(path);
        for (token, number) in posted.into_values() {
            if let Some(operation) = self.operations.get_mut(&token) {
                operation.holds -= 1;
                let share = &mut operation.shares[number];
                share.outstanding -= 1;
                share.rewind();
            }
        }
    }

    /// What others' NICs need to reach this region, where the link has queue pairs. Memory that cannot be registered is streamed,
    /// where it may be and can be.
    pub(super) fn keys_of(&mut self, link: u64, region: u64) -> Result<Vec<u8>, (Reason, String)> {
        let serving = self.links.get_mut(&link).and_then(Link::serving);
        if serving.is_none_or(|serving| serving.path.is_none()) {
            return Ok(Vec::new());
        }
        if let Some(registration) = self.nics.registrations.get(&region) {
            return Ok(registration.remote().encode());
        }
        let of = |region: &Region<u64>| {
            let is_device = matches!(region.memory, Memory::Device { .. });
            (region.memory.address(), region.memory.bytes(), is_device)
        };
        let range = lock(&self.shared.regions).own(region).map(of);
        let (address, bytes, is_device) = range.ok_or((Reason::Gone, String::new()))?;
        let registered = self.verbs().and_then(|verbs| {
            // SAFETY: a region's memory is given back after `forget`, and its content is whatever who has a lease makes of it.
            unsafe { verbs.register(address, bytes) }.map_err(|error| error.to_string())
        });
        match registered {
            Ok(registration) => {
                let keys = registration.remote().encode();
                self.nics.registrations.insert(region, registration);
                self.is_recounted = true;
                Ok(keys)
            }
            Err(_) if !is_device && !verbs::is_mapped(address, bytes) => {
                Err((Reason::Gone, "its memory is not there any more".to_owned()))
            }
            Err(text) if is_device || self.shared.options.forced == Some(Backend::Ibverbs) => {
                Err((Reason::Hindered, text))
            }
            Err(_) => Ok(Vec::new()),
        }
    }
}

/// How NICs reach a part's buffer.
fn remote_of<'a>(
    leases: &'a HashMap<(u64, crate::handle::Key), Lease>,
    part: &Part,
) -> Option<&'a RemoteRegion> {
    match leases.get(&(part.handle.region, part.handle.key))? {
        Lease::Held(held) => held.remote.as_ref(),
        Lease::Asked { .. } => None,
    }
}

/// What came with a lease for NICs.
pub(super) fn remote_from(keys: &[u8], bytes: u64) -> Result<Option<RemoteRegion>, Cut> {
    if keys.is_empty() {
        return Ok(None);
    }
    match RemoteRegion::decode(keys) {
        Ok(remote) if remote.bytes == bytes => Ok(Some(remote)),
        _ => Err(Broken("keys that are none").into()),
    }
}

impl Driver {
    fn count_users(&mut self, link: u64, parts: &[Part], count: impl Fn(&mut Held)) {
        if let Some(asking) = self.links.get_mut(&link).and_then(Link::asking) {
            super::copying::count_users(asking, parts, count);
        }
    }
}
