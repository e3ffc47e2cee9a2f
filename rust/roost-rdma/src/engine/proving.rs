//! How a link comes to have queue pairs, or goes on without.
//!
//! Who asks offers queue pairs as soon as both have greeted each other, and its transfers wait until each of these has been
//! heard by the owner's NIC, or until it is known that they will not be.

use super::Backend;
use super::driver::Driver;
use super::link::{Link, Route, ShareId};
use super::nics::Flights;
use super::peers::PeerEntry;
use super::timers::Timer;
use super::waiter::Source;
use crate::error::Error;
use crate::handle::Peer;
use crate::limits::{NICS_WAIT, NICS_WAIT_FORCED};
use crate::link::{Broken, Message};
use crate::stream::Cut;
use crate::verbs::Path;

impl Driver {
    /// Offers queue pairs to the owner of this card.
    pub(super) fn offer(&mut self, id: u64, card: Option<&[u8]>) -> Result<(), String> {
        let verbs = self.verbs()?;
        let card = card.ok_or("its owner has no RDMA device that can be used")?;
        let (path, offer) = Path::ask(&verbs, card).map_err(|error| error.to_string())?;
        self.waiter
            .watch(&path.completion_fd(), Source::Nics { link: id })
            .map_err(|error| error.to_string())?;
        let Some(link) = self.links.get_mut(&id) else {
            return Ok(());
        };
        link.say(&Message::Offer { offer }, Vec::new());
        if let Some(asking) = link.asking() {
            asking.nics = Some(Flights::new(path));
        }
        self.touched.insert(id);
        let wait = match self.shared.options.forced {
            Some(_) => NICS_WAIT_FORCED,
            None => NICS_WAIT,
        };
        self.timers.set(self.now + wait, Timer::Nics { link: id });
        Ok(())
    }

    /// The owner's side: makes the counterparts of what was offered.
    pub(super) fn offered(&mut self, id: u64, offer: &[u8]) -> Result<(), Cut> {
        let made = self
            .verbs()
            .and_then(|verbs| Path::serve(&verbs, offer).map_err(|error| error.to_string()));
        let link = self.links.get_mut(&id).ok_or(Cut::Closed)?;
        let serving = link.serving().ok_or(Broken("an offer to who asks"))?;
        let message = match made {
            Ok((path, answer)) => {
                serving.path = Some(path);
                Message::Answer {
                    answer,
                    failure: None,
                }
            }
            Err(reason) => Message::Answer {
                answer: Vec::new(),
                failure: Some(reason),
            },
        };
        link.say(&message, Vec::new());
        self.touched.insert(id);
        Ok(())
    }

    /// The owner's counterparts, or why there are none.
    pub(super) fn offer_answered(&mut self, id: u64, answer: &[u8], failure: Option<String>) {
        let nics = self
            .links
            .get_mut(&id)
            .and_then(Link::asking)
            .and_then(|asking| asking.nics.as_mut());
        let Some(nics) = nics.filter(|nics| !nics.is_ready) else {
            return;
        };
        let connected = match failure {
            Some(reason) => Err(format!("at the owner: {reason}")),
            None => nics.path.connect(answer).map_err(|error| error.to_string()),
        };
        match connected {
            Ok(()) => _ = self.busied.insert(id),
            Err(reason) => self.without_nics(id, &reason),
        }
    }

    /// The time for queue pairs to be heard of is over.
    pub(super) fn nics_due(&mut self, id: u64) {
        let asking = self.links.get_mut(&id).and_then(Link::asking);
        if asking.is_some_and(|asking| asking.is_proving()) {
            self.without_nics(id, "the owner's NICs did not answer in time");
        }
    }

    /// The link goes on without queue pairs, or not at all where nothing else was wanted.
    pub(super) fn without_nics(&mut self, id: u64, reason: &str) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let peer = link.peer;
        if let Some(asking) = link.asking() {
            asking.nics = None;
            asking.route = Route::Stream;
        }
        let reason = format!("ibverbs cannot be used: {reason}");
        if self.shared.options.forced == Some(Backend::Ibverbs) {
            for (token, _) in self.waiting_for(peer) {
                self.fail(token, Error::Unavailable(reason.clone()));
            }
            // Asked anew by the next transfer: a port may be up again by then.
            return self.link_lost(id, &Cut::Nics(reason));
        }
        self.chosen(peer, Backend::Tcp, Some(reason));
        for share in self.waiting_for(peer) {
            self.await_link(share);
        }
    }

    pub(super) fn nics_ready(&mut self, id: u64) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let peer = link.peer;
        if let Some(asking) = link.asking() {
            asking.route = Route::Nics;
            asking.nics.iter_mut().for_each(|nics| nics.is_ready = true);
        }
        self.chosen(peer, Backend::Ibverbs, None);
        for share in self.waiting_for(peer) {
            self.await_link(share);
        }
    }

    /// Shares that wait for a link to this process, which have it now.
    fn waiting_for(&mut self, peer: Peer) -> Vec<ShareId> {
        self.peers
            .get_mut(&peer)
            .map(PeerEntry::take_waiting)
            .unwrap_or_default()
    }
}
