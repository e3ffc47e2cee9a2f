//! Sums of what was copied: both sides make them of the same bytes, and the asker compares.
//!
//! The asker asks over the control stream, whatever has moved the bytes: some parts or a piece of one at a time, over one of
//! a few slots, so that no transfer waits for the whole of another. An owner that is between two questions of a part keeps
//! its sum so far.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::driver::Driver;
use super::link::{Link, Request, ShareId};
use super::operation::{Cursor, Phase, Share, Stage};
use super::serving::spans_of;
use super::shared::{Command, lock};
use crate::checksum::Checksum;
use crate::error::Error;
use crate::limits::INLINE_BYTES_MAX;
use crate::link::{Broken, Message, Piece, Status};
use crate::plan::Part;
use crate::stream::{self, Cut, Fault, Span};

/// What an owner was asked for.
pub(super) struct SumWanted {
    pub(super) request: u64,
    pub(super) pieces: Vec<Piece>,
    pub(super) ends: Vec<u32>,
}

impl Driver {
    /// Has both sides sum a share; again, where the link broke before the owner had said all.
    pub(super) fn sum(&mut self, share: ShareId) {
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        let of = &mut operation.shares[number];
        let is_begun = !of.ours.is_empty() || of.summing.is_some();
        let id = of.link;
        if of.theirs.len() < of.parts.len() {
            of.theirs.clear();
            of.summed = Cursor::default();
            if let Some(asking) = id.and_then(|id| self.links.get_mut(&id)).and_then(Link::asking) {
                asking.to_sum.push_back(share);
            }
        }
        if let Some(id) = id {
            self.fill_slots(id);
        }
        if is_begun {
            self.ready_if_summed(share);
        } else {
            self.sum_here(share);
        }
    }

    fn ready_if_summed(&mut self, share: ShareId) {
        let (token, number) = share;
        let Some(operation) = self.operations.get(&token) else {
            return;
        };
        let of = &operation.shares[number];
        let is_summed = of.ours.len() == of.parts.len() && of.theirs.len() == of.parts.len();
        if is_summed && operation.phase == Phase::Sum && of.stage == Stage::Working {
            self.ready(share);
        }
    }

    /// By a thread of the pool; what is little by this one, since waking another takes longer.
    fn sum_here(&mut self, share: ShareId) {
        let (token, number) = share;
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        let of = &mut operation.shares[number];
        let parts = Arc::clone(&of.parts);
        let is_unwanted = Arc::new(AtomicBool::new(false));
        of.summing = Some(Arc::clone(&is_unwanted));
        operation.holds += 1;
        let is_little = parts.iter().map(Part::bytes).sum::<u64>() <= INLINE_BYTES_MAX;
        if is_little {
            let result = sums_of(&parts, &is_unwanted);
            return self.summed_here(token, number, result);
        }
        let shared = Arc::clone(&self.shared);
        let errand = move || {
            let result = sums_of(&parts, &is_unwanted);
            shared.command(Command::SummedHere {
                token,
                share: number,
                result,
            });
        };
        if let Err(error) = self.on_a_thread(Box::new(errand)) {
            if let Some(operation) = self.operations.get_mut(&token) {
                operation.holds -= 1;
            }
            self.fail(token, error);
        }
    }

    fn on_a_thread(&mut self, errand: Box<dyn FnOnce() + Send>) -> Result<(), Error> {
        self.start_pool()?;
        if let Some(pool) = &self.pool {
            pool.run(errand);
        }
        Ok(())
    }

    /// This side of a share is summed.
    pub(super) fn summed_here(&mut self, token: u64, number: usize, result: Result<Vec<u64>, Fault>) {
        let Some(operation) = self.operations.get_mut(&token) else {
            return;
        };
        operation.holds -= 1;
        operation.shares[number].summing = None;
        if self.end_if_idle(token) {
            return;
        }
        match result {
            Ok(sums) => {
                if let Some(operation) = self.operations.get_mut(&token) {
                    operation.shares[number].ours = sums;
                }
                self.ready_if_summed((token, number));
            }
            Err(fault) => {
                let reason = "the memory of this side is not there any more, or no CPU reads it".to_owned();
                self.not_summed_part((token, number), fault.span as usize, |part| Error::Failed {
                    part,
                    reason,
                });
            }
        }
    }

    fn not_summed_part(&mut self, share: ShareId, part: usize, error: impl FnOnce(usize) -> Error) {
        let (token, number) = share;
        if let Some(operation) = self.operations.get(&token) {
            let error = operation.about(number, Some(part), error(part));
            self.fail(token, error);
        }
    }

    /// Asks the owner, as long as there are slots.
    fn fill_slots(&mut self, id: u64) {
        while let Some(asking) = self.links.get_mut(&id).and_then(Link::asking) {
            if asking.free_slots.is_empty() {
                return;
            }
            let (Some(share), Some(slot)) = (asking.to_sum.pop_front(), asking.free_slots.last().copied())
            else {
                return;
            };
            asking.free_slots.pop();
            self.ask_for_sums(share, id, slot);
        }
    }

    /// The next question of a share, over its slot; without one the slot is free.
    fn ask_for_sums(&mut self, share: ShareId, id: u64, slot: u8) {
        let question = self.summed_over(share, id).and_then(Share::next_question);
        let request = self.issue();
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let Some(question) = question else {
            link.asking()
                .into_iter()
                .for_each(|asking| asking.free_slots.push(slot));
            return;
        };
        if let Some(asking) = link.asking() {
            asking.requests.insert(
                request,
                Request::Sum {
                    share,
                    slot,
                    parts: question.parts,
                    ends: question.ends.len(),
                },
            );
        }
        let message = Message::Sum {
            request,
            slot,
            goes_on: question.goes_on,
            pieces: question.pieces,
            ends: question.ends,
        };
        link.say(&message, Vec::new());
        self.touched.insert(id);
    }

    /// The share, if it is summed over this link.
    fn summed_over(&mut self, (token, number): ShareId, id: u64) -> Option<&mut Share> {
        let operation = self.operations.get_mut(&token)?;
        let is_summed = operation.failure.is_none() && operation.phase == Phase::Sum;
        let of = &mut operation.shares[number];
        (is_summed && of.link == Some(id) && of.stage == Stage::Working).then_some(of)
    }

    /// The owner has summed some parts.
    pub(super) fn sums_came(&mut self, id: u64, request: u64, sums: &[u64]) -> Result<(), Cut> {
        let asking = self.links.get_mut(&id).and_then(Link::asking);
        let asking = asking.ok_or(Broken("an answer to who serves"))?;
        let Some(Request::Sum {
            share, slot, ends, ..
        }) = asking.requests.remove(&request)
        else {
            return Err(Broken("sums that nobody asked for").into());
        };
        if ends != sums.len() {
            return Err(Broken("other sums than were asked for").into());
        }
        if let Some(of) = self.summed_over(share, id) {
            of.theirs.extend(sums);
        }
        self.ask_for_sums(share, id, slot);
        self.fill_slots(id);
        self.ready_if_summed(share);
        Ok(())
    }

    /// The owner cannot sum this piece.
    pub(super) fn not_summed(&mut self, id: u64, request: u64, status: Status, piece: u32) {
        let Some(asking) = self.links.get_mut(&id).and_then(Link::asking) else {
            return;
        };
        let Some(Request::Sum {
            share, slot, parts, ..
        }) = asking.requests.remove(&request)
        else {
            return;
        };
        asking.free_slots.push(slot);
        let part = parts.get(piece as usize).copied().unwrap_or(0);
        self.not_summed_part(share, part, |_| match status {
            Status::Device => Error::Unavailable("memory of a device has no checksums".to_owned()),
            Status::OutOfBounds => Error::Refused("the handle has another size than the buffer".to_owned()),
            Status::Unmapped => Error::Gone("its memory is not there any more".to_owned()),
            Status::Good | Status::Gone | Status::GivenUp => {
                Error::Gone("its owner has dropped it".to_owned())
            }
        });
        self.fill_slots(id);
    }

    /// Sums this process's memory for who asks over the link.
    pub(super) fn sum_for(&mut self, id: u64, slot: u8, goes_on: bool, wanted: SumWanted) -> Result<(), Cut> {
        let link = self.links.get_mut(&id).ok_or(Cut::Closed)?;
        let serving = link.serving().ok_or(Broken("a question to who asks"))?;
        let begun = match serving.sums.insert(slot, None) {
            Some(None) => return Err(Broken("a question before the answer to the last").into()),
            Some(Some(sum)) => Some(sum),
            None => None,
        };
        let mut sum = begun.filter(|_| goes_on).unwrap_or_default();
        let spans = spans_of(&lock(&self.shared.regions), serving, &wanted.pieces);
        let spans = match spans {
            Ok(spans) => spans,
            Err(fault) => {
                self.summed_for(id, slot, sum, wanted, Err(fault));
                return Ok(());
            }
        };
        if spans.iter().map(|span| span.bytes).sum::<u64>() <= INLINE_BYTES_MAX {
            let result = sum_up(&mut sum, &spans, &wanted.ends);
            self.summed_for(id, slot, sum, wanted, result);
            return Ok(());
        }
        let shared = Arc::clone(&self.shared);
        let errand = move || {
            // A region that is given back meanwhile is read by the kernel alone, and the sum is of no use to anybody.
            let result = sum_up(&mut sum, &spans, &wanted.ends);
            shared.command(Command::SummedFor {
                link: id,
                slot,
                sum: Box::new(sum),
                wanted,
                result,
            });
        };
        self.on_a_thread(Box::new(errand))
            .map_err(|error| std::io::Error::other(error).into())
    }

    /// What was asked for over a link is summed.
    pub(super) fn summed_for(
        &mut self,
        id: u64,
        slot: u8,
        sum: Checksum,
        wanted: SumWanted,
        result: Result<Vec<u64>, Fault>,
    ) {
        let Some(link) = self.links.get_mut(&id) else {
            return;
        };
        let Some(serving) = link.serving() else {
            return;
        };
        let SumWanted {
            request,
            pieces,
            ends,
        } = wanted;
        if ends.last().is_some_and(|last| *last as usize == pieces.len()) {
            serving.sums.remove(&slot);
        } else {
            serving.sums.insert(slot, Some(sum));
        }
        // It may have been dropped meanwhile.
        let still = spans_of(&lock(&self.shared.regions), serving, &pieces);
        let message = match still.and(result) {
            Ok(sums) => Message::Sums { request, sums },
            Err(fault) => Message::Ended {
                request,
                status: fault.status,
                piece: fault.span,
            },
        };
        link.say(&message, Vec::new());
        self.touched.insert(id);
    }
}

/// A sum of each part; a fault names the part.
fn sums_of(parts: &[Part], is_unwanted: &AtomicBool) -> Result<Vec<u64>, Fault> {
    let sum_of = |(number, part): (usize, &Part)| {
        let span_of = |run: &crate::plan::Run| Span {
            address: run.local,
            bytes: run.bytes,
            region: 0,
        };
        let spans: Vec<Span> = part.runs.iter().map(span_of).collect();
        let mut sum = Checksum::new();
        stream::sum(&mut sum, &spans, is_unwanted).map_err(|fault| Fault {
            span: u32::try_from(number).unwrap_or(u32::MAX),
            ..fault
        })?;
        Ok(sum.finish())
    };
    parts.iter().enumerate().map(sum_of).collect()
}

/// Goes on with a sum, which begins anew behind each end.
fn sum_up(sum: &mut Checksum, spans: &[Span], ends: &[u32]) -> Result<Vec<u64>, Fault> {
    let is_unwanted = AtomicBool::new(false);
    let mut sums = Vec::with_capacity(ends.len());
    let mut first = 0;
    let mut take = |sum: &mut Checksum, end: usize| {
        let result = stream::sum(sum, &spans[first..end], &is_unwanted).map_err(|fault| Fault {
            span: fault.span + u32::try_from(first).unwrap_or(u32::MAX),
            ..fault
        });
        first = end;
        result
    };
    for end in ends {
        take(sum, *end as usize)?;
        sums.push(std::mem::take(sum).finish());
    }
    take(sum, spans.len())?;
    Ok(sums)
}
