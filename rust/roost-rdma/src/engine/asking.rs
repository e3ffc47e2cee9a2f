//! The life of a transfer: phases, versions, ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::driver::Driver;
use super::link::{Lease, Link, Request, ShareId};
use super::operation::{Operation, Phase, Stage};
use super::timers::Timer;
use super::{Completion, Done, Transfer};
use crate::error::Error;
use crate::limits::{LOOK_PAUSE_MAX, LOOK_PAUSE_MIN, LOOK_REGIONS_MAX, SETTLE_WAIT};
use crate::link::{Broken, Message, Stamp};
use crate::plan::{Direction, Part};
use crate::stamp::Look;
use crate::stream::Cut;

impl Driver {
    pub(super) fn submit(&mut self, transfer: Transfer, token: u64) {
        self.is_recounted = true;
        let Transfer {
            parts,
            version,
            timeout,
            checksum,
            keep,
        } = transfer;
        let parts: Arc<[Part]> = parts.into();
        let number = self.issue();
        debug_assert!(!self.tokens.contains_key(&token), "a token names one transfer");
        self.tokens.insert(token, number);
        let deadline = self
            .now
            .checked_add(timeout)
            .unwrap_or(self.now + SETTLE_WAIT * 86_400 * 365);
        let operation = Operation {
            token,
            version: version.filter(|_| parts.iter().any(|part| part.direction == Direction::Read)),
            checksum,
            keep,
            deadline: self.timers.set(deadline, Timer::Deadline { token: number }),
            phase: Phase::Lease,
            shares: Operation::shares_of(&parts),
            parts,
            failure: None,
            holds: 0,
            found: None,
            pause: LOOK_PAUSE_MIN,
        };
        let shares = operation.shares.len();
        self.operations.insert(number, operation);
        for share in 0..shares {
            self.await_link((number, share));
        }
        if shares == 0 {
            self.end(number);
        }
    }

    pub(super) fn cancel(&mut self, token: u64) {
        if let Some(number) = self.tokens.get(&token) {
            self.fail(*number, Error::Cancelled);
        }
    }

    /// Does the phase's work for a share that has its leases.
    pub(super) fn work(&mut self, share: ShareId) {
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        operation.shares[number].stage = Stage::Working;
        match operation.phase {
            Phase::Lease => self.ready(share),
            Phase::Before | Phase::After => {
                operation.shares[number].look_pause = LOOK_PAUSE_MIN;
                self.look_at_stamps(share);
            }
            Phase::Copy => self.copy(share),
            Phase::Sum => self.sum(share),
        }
    }

    /// The share is done with the phase; the last one ends it.
    pub(super) fn ready(&mut self, share: ShareId) {
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        operation.shares[number].stage = Stage::Ready;
        if operation.failure.is_some() || !operation.is_ready() {
            return;
        }
        match (operation.phase, operation.version) {
            (Phase::Lease, Some(_)) => self.enter(token, Phase::Before),
            (Phase::Lease, None) => self.enter(token, Phase::Copy),
            (Phase::Before, wanted) => self.judge(token, wanted.unwrap_or(0)),
            (Phase::Copy, _) if operation.checksum => self.enter(token, Phase::Sum),
            (Phase::Copy | Phase::Sum, Some(_)) => self.enter(token, Phase::After),
            (Phase::Copy | Phase::Sum, None) => self.compare(token),
            (Phase::After, _) => {
                if operation.shares.iter().all(|share| share.before == share.stamps) {
                    self.compare(token);
                } else {
                    operation.rewind();
                    self.enter(token, Phase::Before);
                }
            }
        }
    }

    fn enter(&mut self, token: u64, phase: Phase) {
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        operation.phase = phase;
        let shares = operation.shares.len();
        // All at the phase's work first: else the first share that is ready at once would find the others ready too.
        for share in &mut operation.shares {
            share.stage = Stage::Working;
        }
        for number in 0..shares {
            let link = match self.operations.get(&token) {
                Some(operation) if operation.phase == phase => operation.shares[number].link,
                _ => return,
            };
            match link {
                Some(link) if self.links.contains_key(&link) => self.lease((token, number), link),
                _ => self.await_link((token, number)),
            }
        }
    }

    /// Reads the stamps of what a share reads.
    pub(super) fn look_at_stamps(&mut self, share: ShareId) {
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token).filter(|of| of.failure.is_none()) else {
            return;
        };
        let of = &mut operation.shares[number];
        let is_looking =
            matches!(operation.phase, Phase::Before | Phase::After) && of.stage == Stage::Working;
        let Some((id, link)) = of
            .link
            .and_then(|id| Some((id, self.links.get_mut(&id)?)))
            .filter(|_| is_looking)
        else {
            return;
        };
        match looks_here(link, of) {
            Some(Ok(stamps)) => {
                of.stamps = stamps;
                self.ready(share);
            }
            Some(Err(Look::Updating | Look::Still(_))) => {
                let pause = of.look_pause;
                of.look_pause = (pause * 2).min(LOOK_PAUSE_MAX);
                self.timers
                    .set(self.now + pause, Timer::Look { token, share: number });
            }
            None => {
                of.stamps = vec![
                    Stamp {
                        sequence: 0,
                        version: 0
                    };
                    of.looked_at.len()
                ];
                of.missing = of.looked_at.len().div_ceil(LOOK_REGIONS_MAX);
                for (at, regions) in of.looked_at.chunks(LOOK_REGIONS_MAX).enumerate() {
                    self.issued += 1;
                    let request = self.issued;
                    link.say(
                        &Message::Look {
                            request,
                            regions: regions.to_vec(),
                        },
                        Vec::new(),
                    );
                    if let Some(asking) = link.asking() {
                        asking.requests.insert(
                            request,
                            Request::Look {
                                share,
                                first: at * LOOK_REGIONS_MAX,
                            },
                        );
                    }
                }
                let is_nothing = of.missing == 0;
                self.touched.insert(id);
                if is_nothing {
                    self.ready(share);
                }
            }
        }
    }

    pub(super) fn looked(&mut self, id: u64, request: u64, found: &[Stamp]) -> Result<(), Cut> {
        let asking = self
            .links
            .get_mut(&id)
            .and_then(Link::asking)
            .ok_or(Broken("an answer to who serves"))?;
        let Some(Request::Look { share, first }) = asking.requests.remove(&request) else {
            return Err(Broken("stamps that nobody asked for").into());
        };
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token).filter(|of| of.failure.is_none()) else {
            return Ok(());
        };
        let of = &mut operation.shares[number];
        let Some(place) = of
            .stamps
            .get_mut(first..)
            .and_then(|rest| rest.get_mut(..found.len()))
        else {
            return Err(Broken("more stamps than were asked for").into());
        };
        place.copy_from_slice(found);
        of.missing = of.missing.saturating_sub(1);
        if of.missing == 0 && of.stage == Stage::Working {
            self.ready(share);
        }
        Ok(())
    }

    /// Whether what the buffers have now is worth reading.
    fn judge(&mut self, token: u64, wanted: u64) {
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        let versions = || {
            operation
                .shares
                .iter()
                .flat_map(|share| share.stamps.iter().map(|stamp| stamp.version))
        };
        let (Some(oldest), Some(newest)) = (versions().min(), versions().max()) else {
            return self.enter(token, Phase::Copy);
        };
        operation.found = Some(oldest);
        if newest < wanted {
            return self.fail(
                token,
                Error::Stale {
                    wanted,
                    found: newest,
                },
            );
        }
        if oldest != newest || oldest < wanted {
            // Its owner is between two buffers, or never brings them together: the deadline tells.
            let pause = operation.pause;
            operation.pause = (pause * 2).min(LOOK_PAUSE_MAX);
            self.timers.set(self.now + pause, Timer::Again { token });
            return;
        }
        for share in &mut operation.shares {
            share.before.clone_from(&share.stamps);
        }
        self.enter(token, Phase::Copy);
    }

    pub(super) fn begin_again(&mut self, token: u64) {
        let is_due = |of: &Operation| of.failure.is_none() && of.phase == Phase::Before && of.is_ready();
        if self.operations.get(&token).is_some_and(is_due) {
            self.enter(token, Phase::Before);
        }
    }

    pub(super) fn deadline(&mut self, token: u64) {
        let Some(operation) = self.operations.get(&token) else {
            return;
        };
        let error = match (operation.version, operation.found) {
            (Some(wanted), Some(found)) if found < wanted => Error::Stale { wanted, found },
            _ => Error::TimedOut(self.awaited_by(operation)),
        };
        self.fail(token, error);
    }

    /// What a transfer waits for, for people.
    fn awaited_by(&self, operation: &Operation) -> String {
        let Some(share) = operation.shares.iter().find(|share| share.stage != Stage::Ready) else {
            return "the buffers that it reads did not come to be of one version".to_owned();
        };
        let peer = share.peer;
        match (share.stage, operation.phase) {
            (Stage::Linking, _) => match self.peers.get(&peer).and_then(|entry| entry.hindrance.as_ref()) {
                Some(reason) => format!("there was no link to proc {peer}: {reason}"),
                None => format!("a link to proc {peer} was still being made"),
            },
            (Stage::Leasing, _) => format!("proc {peer} had not answered yet"),
            (_, Phase::Before | Phase::After) => {
                format!("an update of a buffer of proc {peer} was not over, or proc {peer} did not answer")
            }
            (_, Phase::Sum) => "the checksums were still being computed".to_owned(),
            (_, Phase::Lease | Phase::Copy) => {
                format!("bytes of proc {peer} were still under way")
            }
        }
    }

    /// The transfer will not succeed. It ends when nothing touches its memory any more.
    pub(super) fn fail(&mut self, token: u64, error: Error) {
        let Some(operation) = self.operations.get_mut(&token).filter(|of| of.failure.is_none()) else {
            return;
        };
        operation.failure = Some(error);
        let mut links = Vec::new();
        for share in &operation.shares {
            if let Some(ticket) = &share.ticket {
                ticket.cancel();
            }
            if let Some(is_unwanted) = &share.summing {
                is_unwanted.store(true, Ordering::Release);
            }
            links.extend(share.link);
        }
        for link in links {
            self.give_up(token, link);
        }
        if !self.end_if_idle(token) {
            self.timers.set(self.now + SETTLE_WAIT, Timer::Settle { token });
        }
    }

    /// All is copied. Sums of both sides, where they are wanted, are of the same content by now.
    fn compare(&mut self, token: u64) {
        match self.operations.get(&token).and_then(Operation::corruption) {
            Some(error) => self.fail(token, error),
            None => self.end(token),
        }
    }

    /// Ends a failed transfer that uses nothing any more.
    pub(super) fn end_if_idle(&mut self, token: u64) -> bool {
        if !self.operations.get(&token).is_some_and(Operation::is_over) {
            return false;
        }
        self.end(token);
        true
    }

    fn end(&mut self, token: u64) {
        let Some(operation) = self.operations.remove(&token) else {
            return;
        };
        self.is_recounted = true;
        self.tokens.remove(&operation.token);
        self.timers.unset(operation.deadline);
        self.shared.transfers.fetch_sub(1, Ordering::Relaxed);
        let bytes = operation.bytes();
        let checksum = operation.checksum.then(|| operation.sum());
        let result = match operation.failure {
            Some(error) => Err(error),
            None => Ok(Done {
                version: operation.found.filter(|_| operation.version.is_some()),
                bytes,
                checksum,
            }),
        };
        self.done.push(Completion {
            token: operation.token,
            result,
            keep: operation.keep,
        });
    }
}

/// The stamps of a share's regions where all of them can be read from here; none when the owner has to be asked.
fn looks_here(link: &mut Link, share: &super::operation::Share) -> Option<Result<Vec<Stamp>, Look>> {
    let asking = link.asking()?;
    let mut stamps = Vec::with_capacity(share.looked_at.len());
    for region in &share.looked_at {
        let key = share
            .parts
            .iter()
            .find(|part| part.handle.region == *region)?
            .handle
            .key;
        let Some(Lease::Held(held)) = asking.leases.get(&(*region, key)) else {
            return None;
        };
        let (view, index) = held.stamp.as_ref()?;
        match view.look(*index)? {
            Look::Still(stamp) => stamps.push(Stamp {
                sequence: stamp.sequence,
                version: stamp.version,
            }),
            Look::Updating => return Some(Err(Look::Updating)),
        }
    }
    Some(Ok(stamps))
}
