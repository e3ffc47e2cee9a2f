//! Moving the bytes of a share: by whom, and by threads of this process.

use std::sync::Arc;

use super::driver::Driver;
use super::link::{Asking, Lease, Link, Route, ShareId};
use super::operation::{Phase, Stage};
use super::shared::Command;
use crate::error::Error;
use crate::limits::{ALONE_BYTES_MAX, INLINE_BYTES_MAX};
use crate::local::pool::copy_now;
use crate::local::{Moved, Place, Pool, Work};
use crate::plan::Part;

/// More threads than this do not copy faster, and a smaller machine has other work.
const THREADS_MAX: usize = 4;

impl Driver {
    /// Begins, or goes on after a link broke.
    pub(super) fn copy(&mut self, share: ShareId) {
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        let of = &mut operation.shares[number];
        if of.ticket.is_some() {
            of.again = true;
            return;
        }
        if of.is_all_asked() {
            if of.outstanding == 0 {
                self.ready(share);
            }
            return;
        }
        let Some(id) = of.link else {
            return;
        };
        let Some(asking) = self.links.get_mut(&id).and_then(Link::asking) else {
            return;
        };
        if let Some(places) = places_of(asking, &of.parts) {
            return self.copy_here(share, id, places);
        }
        if asking.route == Route::Nics && self.copy_by_nics(share, id) {
            return;
        }
        if let Some(asking) = self.links.get_mut(&id).and_then(Link::asking) {
            asking.ready.push_back(share);
            self.touched.insert(id);
        }
    }

    /// By threads of this process; what is small by this one, since waking another takes longer.
    fn copy_here(&mut self, share: ShareId, link: u64, places: Vec<Place>) {
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        let parts = Arc::clone(&operation.shares[number].parts);
        let bytes: u64 = parts.iter().map(Part::bytes).sum();
        let is_alone = self.operations.len() == 1;
        if bytes <= INLINE_BYTES_MAX || (is_alone && bytes <= ALONE_BYTES_MAX) {
            // SAFETY: who has submitted the transfer keeps its memory until the completion, which comes after this.
            let result = unsafe { copy_now(parts, places) };
            return self.copied.push_back((share, link, result));
        }
        if let Err(error) = self.start_pool() {
            return self.fail(token, error);
        }
        let (Some(operation), Some(pool)) = (self.operations.get_mut(&token), &self.pool) else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        let done = Box::new(move |result| {
            shared.command(Command::Moved {
                token,
                share: number,
                result,
            });
        });
        operation.holds += 1;
        operation.shares[number].copied_over = Some(link);
        // SAFETY: the transfer's memory is kept until its completion, which waits for this hold.
        let ticket = unsafe {
            pool.submit(Work {
                parts: Arc::clone(&parts),
                places,
                done,
            })
        };
        operation.shares[number].ticket = Some(ticket);
        if let Some(asking) = self.links.get_mut(&link).and_then(Link::asking) {
            count_users(asking, &parts, |held| held.users += 1);
        }
    }

    pub(super) fn start_pool(&mut self) -> Result<(), Error> {
        if self.pool.is_none() {
            let threads =
                std::thread::available_parallelism().map_or(1, |count| count.get().min(THREADS_MAX));
            let pool = Pool::start(threads).map_err(|error| Error::Unavailable(error.to_string()))?;
            self.pool = Some(pool);
        }
        Ok(())
    }

    /// The threads are done with a share.
    pub(super) fn moved(&mut self, token: u64, number: usize, result: Result<Moved, Error>) {
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        operation.holds -= 1;
        let of = &mut operation.shares[number];
        let had_ticket = of.ticket.take().is_some();
        let is_again = std::mem::take(&mut of.again);
        let (link, parts) = (of.copied_over.take(), Arc::clone(&of.parts));
        if let (Some(link), true) = (link, had_ticket) {
            self.let_go(link, &parts);
        }
        if self.end_if_idle(token) {
            return;
        }
        if is_again {
            return self.copy((token, number));
        }
        if let Some(link) = link {
            self.copied.push_back(((token, number), link, result));
        }
    }

    pub(super) fn copied_here(&mut self, share: ShareId, link: u64, result: Result<Moved, Error>) {
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token).filter(|of| of.failure.is_none()) else {
            return;
        };
        let of = &mut operation.shares[number];
        if of.link != Some(link) || of.stage != Stage::Working || operation.phase != Phase::Copy {
            // Its link broke meanwhile: whether the leases held is not known, so it is done again.
            if of.stage == Stage::Working && operation.phase == Phase::Copy {
                self.copy(share);
            }
            return;
        }
        match result {
            Ok(_) => {
                of.skip();
                self.ready(share);
            }
            Err(error) => {
                let error = operation.about(number, None, error);
                self.fail(token, error);
            }
        }
    }

    pub(super) fn let_go(&mut self, link: u64, parts: &[Part]) {
        let mut revoked = Vec::new();
        if let Some(asking) = self.links.get_mut(&link).and_then(Link::asking) {
            count_users(asking, parts, |held| held.users -= 1);
            let is_due =
                |lease: &Lease| matches!(lease, Lease::Held(held) if held.is_revoked && held.users == 0);
            revoked.extend(
                asking
                    .leases
                    .iter()
                    .filter(|(_, lease)| is_due(lease))
                    .map(|(lease, _)| lease.0),
            );
        }
        for region in revoked {
            self.answer_revoked(link, region);
        }
    }
}

/// Where each part's buffer can be reached from here; none unless all can.
fn places_of(asking: &Asking, parts: &[Part]) -> Option<Vec<Place>> {
    let place_of = |part: &Part| match asking.leases.get(&(part.handle.region, part.handle.key)) {
        Some(Lease::Held(held)) => held.place.clone(),
        _ => None,
    };
    parts.iter().map(place_of).collect()
}

pub(super) fn count_users(asking: &mut Asking, parts: &[Part], count: impl Fn(&mut super::link::Held)) {
    for part in parts {
        if let Some(Lease::Held(held)) = asking.leases.get_mut(&(part.handle.region, part.handle.key)) {
            count(held);
        }
    }
}
