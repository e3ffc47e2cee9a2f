//! What of a failed transfer is under way: taken back, answered, or cut off before its completion.

use super::driver::Driver;
use super::link::{Asking, Link, Request};
use super::timers::Timer;
use crate::limits::SETTLE_WAIT;
use crate::plan::Direction;
use crate::stream::Cut;

impl Driver {
    /// Nothing is written into a transfer's memory any more, and nothing more is asked for.
    pub(super) fn give_up(&mut self, token: u64, id: u64) {
        self.cancel_on_nics(token, id);
        let Some(Link {
            side: super::link::Side::Asks(asking),
            lanes,
            ..
        }) = self.links.get_mut(&id)
        else {
            return;
        };
        asking.ready.retain(|(of, _)| *of != token);
        let mut taken_back = Vec::new();
        for (number, request) in &mut asking.requests {
            let Request::Chunk {
                share: (of, _),
                lane,
                chunk,
                is_given_up,
            } = request
            else {
                continue;
            };
            if *of != token || *is_given_up {
                continue;
            }
            *is_given_up = true;
            match chunk.direction {
                Direction::Read => {
                    lanes[*lane].give_up(*number);
                }
                Direction::Write if lanes[*lane].take_back(*number) => taken_back.push(*number),
                Direction::Write => {}
            }
        }
        for number in taken_back {
            if let Some(Request::Chunk { lane, chunk, .. }) = asking.requests.remove(&number) {
                asking.flights[lane].end(chunk.bytes);
                if let Some(operation) = self.operations.get_mut(&token) {
                    operation.holds -= 1;
                }
            }
        }
    }

    /// What a failed transfer has under way has had its time. First its links go, and with the next the owner's word is waited
    /// for once more that nothing of them is written; an owner that says nothing finds them cut before it writes again.
    pub(super) fn settle_due(&mut self, token: u64) {
        if self.cut_what_does_not_settle(token) {
            self.timers.set(self.now + SETTLE_WAIT, Timer::Settle { token });
            return;
        }
        if let Some(operation) = self.operations.get_mut(&token) {
            for share in &mut operation.shares {
                share.is_unsettled = false;
            }
            self.end_if_idle(token);
        }
    }

    /// Whose chunks are not answered in time holds the memory of who gave them up: the link goes.
    fn cut_what_does_not_settle(&mut self, token: u64) -> bool {
        let Some(operation) = self.operations.get(&token).filter(|of| of.failure.is_some()) else {
            return false;
        };
        let links: Vec<u64> = operation.shares.iter().filter_map(|share| share.link).collect();
        let mut is_cut = false;
        let has_some = |asking: &mut Asking| {
            let is_its = |request: &Request| {
                matches!(request, Request::Chunk { share, chunk, .. }
                    if share.0 == token && chunk.direction == Direction::Write)
            };
            asking.requests.values().any(is_its)
                || asking.nics.as_ref().is_some_and(|nics| nics.carries(token))
        };
        for link in links {
            if self
                .links
                .get_mut(&link)
                .and_then(Link::asking)
                .is_some_and(has_some)
            {
                self.link_lost(link, &Cut::Unsettled);
                is_cut = true;
            }
        }
        is_cut
    }
}
