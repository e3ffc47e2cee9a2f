//! One transfer that is not done.
//!
//! It goes through its phases as a whole: no byte is moved before every owner has accepted every handle, and where a version
//! is asked for, all stamps are read before the first byte and again after the last. Each owner has a share of it, and each
//! share has a stage: without a link or leases, at the phase's work, or ready with it. A share whose link breaks goes back to
//! the first stage, and does what is left of the phase's work once it has new leases.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use roost_core::id::HostId;

use super::timers::TimerKey;
use crate::checksum;
use crate::error::Error;
use crate::handle::Peer;
use crate::limits::{CHUNK_BYTES_MAX, CHUNK_PIECES_MAX, LOOK_PAUSE_MIN, SUM_BYTES_MAX};
use crate::link::{Piece, Stamp};
use crate::local::Ticket;
use crate::plan::{Direction, Part};
use crate::region::Keep;
use crate::stream::Span;

/// What a transfer is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Lease,
    Before,
    Copy,
    /// Both sides sum what was copied.
    Sum,
    After,
}

/// What a share is at, of the phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Waits for a link.
    Linking,
    /// Waits for leases.
    Leasing,
    Working,
    Ready,
}

pub(super) struct Operation {
    /// What its completion is told by.
    pub(super) token: u64,
    pub(super) parts: Arc<[Part]>,
    pub(super) version: Option<u64>,
    pub(super) checksum: bool,
    pub(super) keep: Keep,
    pub(super) deadline: TimerKey,
    pub(super) phase: Phase,
    pub(super) shares: Vec<Share>,
    /// Why it will not succeed; it ends when nothing uses its memory.
    pub(super) failure: Option<Error>,
    /// What uses its memory and does not stop at once.
    pub(super) holds: usize,
    /// What the buffers had when they were looked at last.
    pub(super) found: Option<u64>,
    /// Before it begins again after a mixture of versions.
    pub(super) pause: Duration,
}

/// What of a transfer is one owner's.
pub(super) struct Share {
    pub(super) peer: Peer,
    pub(super) host: HostId,
    /// The parts' places in the transfer.
    pub(super) numbers: Vec<usize>,
    pub(super) parts: Arc<[Part]>,
    /// Regions whose stamps matter: those that are read.
    pub(super) looked_at: Vec<u64>,
    pub(super) stage: Stage,
    pub(super) link: Option<u64>,
    /// Answers that are missing before it goes on: leases, stamps.
    pub(super) missing: usize,
    pub(super) cursor: Cursor,
    /// Chunks that were under way when a link broke.
    pub(super) redo: Vec<Chunk>,
    /// Chunks under way.
    pub(super) outstanding: usize,
    /// The owner's NIC has refused a key once.
    pub(super) is_denied: bool,
    /// Of writes over a link that is lost, the owner may still write what has reached it.
    pub(super) is_unsettled: bool,
    /// Threads copy it.
    pub(super) ticket: Option<Ticket>,
    /// The link whose leases they rely on.
    pub(super) copied_over: Option<u64>,
    /// When those threads are done, they have to do it again.
    pub(super) again: bool,
    pub(super) before: Vec<Stamp>,
    pub(super) stamps: Vec<Stamp>,
    pub(super) look_pause: Duration,
    /// Sums of this side's bytes, one for each part, and of the owner's.
    pub(super) ours: Vec<u64>,
    pub(super) theirs: Vec<u64>,
    /// How far the owner was asked for its.
    pub(super) summed: Cursor,
    /// A thread sums this side's; true stops it.
    pub(super) summing: Option<Arc<AtomicBool>>,
}

impl Operation {
    /// The shares of some parts, by owner.
    pub(super) fn shares_of(parts: &Arc<[Part]>) -> Vec<Share> {
        let mut owners: Vec<(Peer, HostId, Vec<usize>)> = Vec::new();
        for (number, part) in parts.iter().enumerate() {
            let owner = part.handle.owner;
            match owners.iter_mut().rfind(|(peer, ..)| *peer == owner) {
                Some((_, _, numbers)) => numbers.push(number),
                None => owners.push((owner, part.handle.host, vec![number])),
            }
        }
        let is_one = owners.len() == 1;
        let share = |(peer, host, numbers): (Peer, HostId, Vec<usize>)| {
            let own = if is_one {
                Arc::clone(parts)
            } else {
                numbers.iter().map(|number| parts[*number].clone()).collect()
            };
            Share::new(peer, host, numbers, own)
        };
        owners.into_iter().map(share).collect()
    }

    /// An error about one part, for a person who handed in many.
    pub(super) fn about(&self, share: usize, part: Option<usize>, error: Error) -> Error {
        let number = part
            .and_then(|part| self.shares[share].numbers.get(part))
            .copied();
        let Some(number) = number.filter(|_| self.parts.len() > 1) else {
            return match error {
                Error::Failed { part, reason } => {
                    let part = self.shares[share].numbers.get(part).copied().unwrap_or(part);
                    Error::Failed { part, reason }
                }
                error => error,
            };
        };
        let prefix = |text: String| format!("part {number}: {text}");
        match error {
            Error::Gone(text) => Error::Gone(prefix(text)),
            Error::PeerLost(text) => Error::PeerLost(prefix(text)),
            Error::Refused(text) => Error::Refused(prefix(text)),
            Error::Unavailable(text) => Error::Unavailable(prefix(text)),
            Error::Misuse(text) => Error::Misuse(prefix(text)),
            Error::Failed { reason, .. } => Error::Failed { part: number, reason },
            error => error,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.parts.iter().map(Part::bytes).sum()
    }

    /// It has failed, and nothing uses its memory or its buffers any more.
    pub(super) fn is_over(&self) -> bool {
        self.failure.is_some() && self.holds == 0 && !self.shares.iter().any(|share| share.is_unsettled)
    }

    /// Whether every share is ready with the phase.
    pub(super) fn is_ready(&self) -> bool {
        self.shares.iter().all(|share| share.stage == Stage::Ready)
    }

    /// The sums of all parts, in their order: each part's number, the owner's and this side's.
    fn sums(&self) -> Vec<(usize, u64, u64)> {
        let of = |share: &Share| {
            let both = share.theirs.iter().copied().zip(share.ours.iter().copied());
            let numbered = share.numbers.iter().copied().zip(both);
            numbered
                .map(|(number, (theirs, ours))| (number, theirs, ours))
                .collect::<Vec<_>>()
        };
        let mut sums: Vec<_> = self.shares.iter().flat_map(of).collect();
        sums.sort_unstable();
        sums
    }

    /// The first part that arrived as other bytes than were sent.
    pub(super) fn corruption(&self) -> Option<Error> {
        let differs = |(_, wanted, found): &(usize, u64, u64)| wanted != found;
        let (part, wanted, found) = self.sums().into_iter().find(differs)?;
        Some(Error::Corrupt { part, wanted, found })
    }

    /// One sum of all that was copied.
    pub(super) fn sum(&self) -> u64 {
        let ours: Vec<u64> = self.sums().into_iter().map(|(_, _, ours)| ours).collect();
        checksum::fold(&ours)
    }

    /// The last phase in which the buffers are used.
    pub(super) fn last_phase(&self) -> Phase {
        match (self.version, self.checksum) {
            (Some(_), _) => Phase::After,
            (None, true) => Phase::Sum,
            (None, false) => Phase::Copy,
        }
    }

    /// Back to the first byte.
    pub(super) fn rewind(&mut self) {
        for share in &mut self.shares {
            share.cursor = Cursor::default();
            share.redo.clear();
            share.ours.clear();
            share.theirs.clear();
        }
    }
}

impl Share {
    fn new(peer: Peer, host: HostId, numbers: Vec<usize>, parts: Arc<[Part]>) -> Self {
        let mut seen = HashSet::new();
        let looked_at = parts
            .iter()
            .filter(|part| part.direction == Direction::Read && seen.insert(part.handle.region))
            .map(|part| part.handle.region)
            .collect();
        Self {
            peer,
            host,
            numbers,
            parts,
            looked_at,
            stage: Stage::Linking,
            link: None,
            missing: 0,
            cursor: Cursor::default(),
            redo: Vec::new(),
            outstanding: 0,
            is_denied: false,
            is_unsettled: false,
            ticket: None,
            copied_over: None,
            again: false,
            before: Vec::new(),
            stamps: Vec::new(),
            look_pause: LOOK_PAUSE_MIN,
            ours: Vec::new(),
            theirs: Vec::new(),
            summed: Cursor::default(),
            summing: None,
        }
    }

    /// What is to be asked for next.
    pub(super) fn next_chunk(&mut self) -> Option<Chunk> {
        self.redo.pop().or_else(|| {
            let direction = self.cursor.direction(&self.parts)?;
            Some(self.cursor.cut(&self.parts, Some(direction), CHUNK_BYTES_MAX))
        })
    }

    /// What the owner is to sum next.
    pub(super) fn next_question(&mut self) -> Option<Question> {
        self.summed.direction(&self.parts)?;
        let goes_on = (self.summed.run, self.summed.offset) != (0, 0);
        let chunk = self.summed.cut(&self.parts, None, SUM_BYTES_MAX);
        let is_end = |at: &usize| {
            let next = chunk.parts.get(at + 1).copied().unwrap_or(self.summed.part);
            next != chunk.parts[*at]
        };
        let ends = (0..chunk.parts.len()).filter(is_end);
        let ends = ends.filter_map(|at| u32::try_from(at + 1).ok()).collect();
        Some(Question {
            goes_on,
            parts: chunk.parts,
            pieces: chunk.remote,
            ends,
        })
    }

    /// All of it is copied.
    pub(super) fn skip(&mut self) {
        self.cursor = Cursor {
            part: self.parts.len(),
            ..Cursor::default()
        };
    }

    /// Nothing of it is copied.
    pub(super) fn rewind(&mut self) {
        self.cursor = Cursor::default();
        self.redo.clear();
    }

    /// Whether all of it was asked for.
    pub(super) fn is_all_asked(&self) -> bool {
        self.redo.is_empty() && self.cursor.part == self.parts.len()
    }

    /// The part that has this region.
    pub(super) fn part_of(&self, region: u64) -> Option<usize> {
        self.parts.iter().position(|part| part.handle.region == region)
    }
}

/// How far a share was asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cursor {
    part: usize,
    run: usize,
    offset: u64,
}

/// What is asked for at once, over one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) direction: Direction,
    /// Each piece's part.
    pub(super) parts: Vec<usize>,
    pub(super) remote: Vec<Piece>,
    pub(super) local: Vec<Span>,
    pub(super) bytes: u64,
}

/// What an owner is asked to sum at once.
pub(super) struct Question {
    /// The first piece goes on with the part that the last question ended in.
    pub(super) goes_on: bool,
    /// Each piece's part.
    pub(super) parts: Vec<usize>,
    pub(super) pieces: Vec<Piece>,
    /// How many pieces there are to the end of each part.
    pub(super) ends: Vec<u32>,
}

impl Cursor {
    /// Of the next part; none at the end.
    fn direction(&self, parts: &[Part]) -> Option<Direction> {
        parts.get(self.part).map(|part| part.direction)
    }

    /// The next pieces: of one direction, or whatever they are for.
    fn cut(&mut self, parts: &[Part], direction: Option<Direction>, bytes_max: u64) -> Chunk {
        let is_fit = |part: &&Part| direction.is_none_or(|direction| part.direction == direction);
        let mut chunk = Chunk {
            direction: direction.unwrap_or(Direction::Read),
            parts: Vec::new(),
            remote: Vec::new(),
            local: Vec::new(),
            bytes: 0,
        };
        while let Some(part) = parts.get(self.part).filter(is_fit) {
            if chunk.bytes == bytes_max || chunk.parts.len() == CHUNK_PIECES_MAX {
                break;
            }
            let run = part.runs[self.run];
            let bytes = (run.bytes - self.offset).min(bytes_max - chunk.bytes);
            let offset = usize::try_from(self.offset).expect("a 64-bit machine");
            chunk.parts.push(self.part);
            chunk.remote.push(Piece {
                region: part.handle.region,
                offset: run.remote + self.offset,
                bytes,
            });
            chunk.local.push(Span {
                address: run.local + offset,
                bytes,
                region: 0,
            });
            chunk.bytes += bytes;
            self.offset += bytes;
            if self.offset == run.bytes {
                self.offset = 0;
                self.run += 1;
            }
            if self.run == part.runs.len() {
                self.run = 0;
                self.part += 1;
            }
        }
        chunk
    }
}
