//! Moving the bytes of a share: by threads of this process, or as chunks over the link.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::driver::Driver;
use super::link::{Asking, Lease, Link, Request, Route, ShareId};
use super::operation::{Phase, Stage};
use super::shared::Command;
use super::timers::Timer;
use crate::error::Error;
use crate::limits::{INLINE_BYTES_MAX, SETTLE_WAIT};
use crate::link::{Broken, Message, Status, Trailer};
use crate::local::pool::copy_now;
use crate::local::{Moved, Place, Pool, Work};
use crate::plan::{Direction, Part};
use crate::stream::{Cut, Fault, Outgoing, Sink};

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
        if bytes <= INLINE_BYTES_MAX {
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

    /// Asks for chunks, of each share in turn, as long as there is room.
    pub(super) fn pump(&mut self, id: u64) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let Link {
            side: super::link::Side::Asks(asking),
            lanes,
            ..
        } = link
        else {
            return;
        };
        while let Some(lane) = asking.free_lane() {
            let Some(share) = asking.ready.pop_front() else {
                return;
            };
            let (token, number) = share;
            let Some(operation) = self.operations.get_mut(&token).filter(|of| of.failure.is_none()) else {
                continue;
            };
            let of = &mut operation.shares[number];
            if of.link != Some(id) || of.stage != Stage::Working {
                continue;
            }
            let Some(chunk) = of.next_chunk() else {
                continue;
            };
            of.outstanding += 1;
            if !of.is_all_asked() {
                asking.ready.push_back(share);
            }
            operation.holds += usize::from(chunk.direction == Direction::Write);
            self.issued += 1;
            let request = self.issued;
            let pieces = chunk.remote.clone();
            lanes[lane].push(match chunk.direction {
                Direction::Read => Outgoing::message(&Message::Read { request, pieces }, Vec::new()),
                Direction::Write => {
                    Outgoing::chunk(&Message::Write { request, pieces }, request, chunk.local.clone())
                }
            });
            asking.flights[lane].begin(chunk.bytes);
            asking.requests.insert(
                request,
                Request::Chunk {
                    share,
                    lane,
                    chunk,
                    is_given_up: false,
                },
            );
        }
    }

    /// A message to who asks.
    pub(super) fn answered(
        &mut self,
        id: u64,
        lane: usize,
        message: Message,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(), Cut> {
        match message {
            Message::Hello(hello) => self.greet(id, &hello),
            Message::Opened {
                request,
                bytes,
                address,
                keys,
            } => self.opened(id, request, bytes, address, &keys, descriptors),
            Message::Refused {
                request,
                reason,
                text,
            } => self.refused(id, request, reason, text),
            Message::Revoke { region } => {
                self.revoked(id, region);
                Ok(())
            }
            Message::Answer { answer, failure } => {
                self.offer_answered(id, &answer, failure);
                Ok(())
            }
            Message::Sums { request, sums } => self.sums_came(id, request, &sums),
            Message::Looked { request, stamps } => self.looked(id, request, &stamps),
            Message::Data { request, bytes } => self.data_begins(id, lane, request, bytes),
            Message::Ended {
                request,
                status,
                piece,
            } => self.request_ended(id, request, status, piece),
            _ => Err(Broken("a question to who asks").into()),
        }
    }

    /// Bytes come for a request: into its memory, or nowhere when they are not wanted any more.
    fn data_begins(&mut self, id: u64, lane: usize, request: u64, bytes: u64) -> Result<(), Cut> {
        let link = self.links.get_mut(&id).ok_or(Cut::Closed)?;
        let asking = link.asking().ok_or(Broken("data for who serves"))?;
        let Some(Request::Chunk {
            chunk,
            is_given_up,
            lane: of_lane,
            ..
        }) = asking.requests.get(&request)
        else {
            return Err(Broken("data that nobody asked for").into());
        };
        if chunk.direction != Direction::Read || chunk.bytes != bytes || *of_lane != lane {
            return Err(Broken("other data than was asked for").into());
        }
        let sink = if *is_given_up {
            Sink::nowhere(
                bytes,
                Fault {
                    status: Status::GivenUp,
                    span: 0,
                },
            )
        } else {
            // SAFETY: the transfer's memory is kept until it ends, before which it gives its chunks up.
            unsafe { Sink::new(chunk.local.clone()) }
        };
        link.lanes[lane].receive_into(sink);
        Ok(())
    }

    /// A chunk's bytes are there, as far as they were to be had.
    pub(super) fn chunk_came(
        &mut self,
        id: u64,
        request: u64,
        sink: &Sink,
        trailer: Trailer,
    ) -> Result<(), Cut> {
        if trailer.status != Status::Good {
            return self.request_ended(id, request, trailer.status, trailer.piece);
        }
        match sink.fault() {
            None => self.request_ended(id, request, Status::Good, 0),
            Some(fault) => {
                let error = |part| Error::Failed {
                    part,
                    reason: "the memory that it is read into is gone".to_owned(),
                };
                self.end_request(id, request, fault.span, Some(&error))
            }
        }
    }

    fn request_ended(&mut self, id: u64, request: u64, status: Status, piece: u32) -> Result<(), Cut> {
        let asking = self
            .links
            .get_mut(&id)
            .and_then(Link::asking)
            .ok_or(Broken("an answer to who serves"))?;
        if let Some(Request::Look {
            share: (token, number),
            first,
        }) = asking.requests.get(&request)
        {
            let at = first + piece as usize;
            let (token, number) = (*token, *number);
            asking.requests.remove(&request);
            if let Some(operation) = self.operations.get(&token) {
                let of = &operation.shares[number];
                let part = of.looked_at.get(at).and_then(|region| of.part_of(*region));
                let error = operation.about(number, part, Error::Gone("its owner has dropped it".to_owned()));
                self.fail(token, error);
            }
            return Ok(());
        }
        if let Some(Request::Sum { .. }) = asking.requests.get(&request) {
            self.not_summed(id, request, status, piece);
            return Ok(());
        }
        let error = |part| match status {
            Status::Good | Status::Gone => Error::Gone("its owner has dropped it".to_owned()),
            Status::Unmapped => Error::Gone("its memory is not there any more".to_owned()),
            Status::OutOfBounds => Error::Refused("the handle has another size than the buffer".to_owned()),
            Status::Device => Error::Unavailable("memory of a device is reached by ibverbs alone".to_owned()),
            Status::GivenUp => Error::Failed {
                part,
                reason: "the memory that it is written from is gone".to_owned(),
            },
        };
        let error: Option<&dyn Fn(usize) -> Error> = if status == Status::Good {
            None
        } else {
            Some(&error)
        };
        self.end_request(id, request, piece, error)
    }

    /// A chunk is done, well or not.
    fn end_request(
        &mut self,
        id: u64,
        request: u64,
        piece: u32,
        error: Option<&dyn Fn(usize) -> Error>,
    ) -> Result<(), Cut> {
        let link = self.links.get_mut(&id).ok_or(Cut::Closed)?;
        let peer = link.peer;
        let asking = link.asking().ok_or(Broken("an answer to who serves"))?;
        let Some(Request::Chunk {
            share,
            lane,
            chunk,
            is_given_up,
        }) = asking.requests.remove(&request)
        else {
            return Err(Broken("an answer without a question").into());
        };
        asking.flights[lane].end(chunk.bytes);
        self.touched.insert(id);
        if let Some(entry) = self.peers.get_mut(&peer) {
            entry.is_well();
        }
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token) else {
            return Ok(());
        };
        operation.holds -= usize::from(chunk.direction == Direction::Write);
        if is_given_up {
            self.end_if_idle(token);
            return Ok(());
        }
        let of = &mut operation.shares[number];
        of.outstanding -= 1;
        if let Some(error) = error {
            let part = chunk.parts.get(piece as usize).copied().unwrap_or(0);
            let error = operation.about(number, Some(part), error(part));
            self.fail(token, error);
        } else if of.outstanding == 0 && of.is_all_asked() && of.stage == Stage::Working {
            self.ready(share);
        }
        Ok(())
    }

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
