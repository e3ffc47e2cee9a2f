//! Which work goes to which queue pair, and when.

use super::{BYTES_OUT_MAX, Lane, Path, Sent, State};
use crate::plan::Direction;
use crate::verbs::offer::RemoteRegion;
use crate::verbs::operation::{CHUNK_BYTES_MAX, Operation};
use crate::verbs::queue_pair::{CHAIN_MAX, Work};
use crate::verbs::result::Error;

impl Path {
    pub(super) fn note(&mut self, sent: Sent) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.sent.push(None);
            self.sent.len() - 1
        });
        self.sent[slot] = Some(sent);
        slot as u64
    }

    /// Gives each queue pair in turn a chunk, or several small ones, until all are busy or nothing waits.
    pub(super) fn fill(&mut self) {
        let mut idle = 0;
        while self.state == State::Open && idle < self.lanes.len() && !self.waiting.is_empty() {
            let lane = self.next_lane;
            self.next_lane = (lane + 1) % self.lanes.len();
            match self.fill_lane(lane) {
                Ok(true) => idle = 0,
                Ok(false) => idle += 1,
                Err(error) => self.give_up(&error.to_string(), None),
            }
        }
    }

    /// True when the queue pair took something.
    fn fill_lane(&mut self, at: usize) -> Result<bool, Error> {
        let mut works: Vec<Work> = Vec::new();
        let mut budget = CHUNK_BYTES_MAX.min(BYTES_OUT_MAX.saturating_sub(self.lanes[at].bytes_out));
        let room = (self.lanes[at].pair.depth - self.lanes[at].requests_out)
            .min(u32::try_from(CHAIN_MAX).unwrap_or(1)) as usize;
        let Some(id) = self.turn(at) else { return Ok(false) };
        while works.len() < room && budget > 0 {
            let (lane, operation) = (
                &self.lanes[at],
                self.operations.get_mut(&id).expect("what waits is there"),
            );
            // The next run may be of a region that another device of the owner's has.
            let Some(remote_key) = operation.key(lane.peer.device) else {
                break;
            };
            let Some(chunk) = operation.next(budget.min(u64::from(lane.port.message_bytes_max))) else {
                break;
            };
            let keys = chunk.region.keys(&lane.device);
            let (local_key, _) =
                keys.expect("it was registered with each device of the path when it was posted");
            let (local, remote, bytes, direction) =
                (chunk.local, chunk.remote, chunk.bytes, operation.direction);
            operation.sent(bytes);
            budget -= u64::from(bytes);
            let number = self.note(Sent {
                operation: Some(id),
                lane: at,
                bytes,
            });
            works.push(Work {
                number,
                direction,
                local,
                local_key,
                bytes,
                remote,
                remote_key,
            });
        }
        if works.is_empty() {
            return Ok(false);
        }
        // SAFETY: who posted the operation vouches for its memory until its event, which comes after the last of these is back.
        let taken = unsafe { self.lanes[at].pair.post(&works) };
        let (count, error) = match taken {
            Ok(count) => (count, None),
            Err(error) => (0, Some(error)),
        };
        for work in &works[..count] {
            self.lanes[at].requests_out += 1;
            self.lanes[at].bytes_out += u64::from(work.bytes);
        }
        // What was not taken is on no queue: as if it had come back, and the path with it, since its bytes were counted as sent.
        for work in &works[count..] {
            let slot = usize::try_from(work.number).expect("it is a place in a table");
            self.sent[slot] = None;
            self.free.push(slot);
            if let Some(operation) = self.operations.get_mut(&id) {
                operation.returned();
            }
        }
        match error {
            Some(error) => Err(error),
            None if count < works.len() => Err(too_few(&self.lanes[at])),
            None => Ok(true),
        }
    }

    /// The operation whose turn it is on this queue pair. The ones behind it come first the next time.
    fn turn(&mut self, at: usize) -> Option<u64> {
        for _ in 0..self.waiting.len() {
            let id = self.waiting.pop_front()?;
            let Some(operation) = self.operations.get(&id).filter(|operation| operation.has_more()) else {
                continue;
            };
            self.waiting.push_back(id);
            if self.is_for(operation, at) {
                return Some(id);
            }
        }
        None
    }

    /// Whether this queue pair may take some of the operation: it can, and none that can is nearer to the memory.
    fn is_for(&self, operation: &Operation, at: usize) -> bool {
        let can = |lane: &Lane| {
            (lane.can_read || operation.direction == Direction::Write)
                && operation.key(lane.peer.device).is_some()
        };
        let is_near = |lane: &Lane| operation.near() >> (lane.device.index % 63) & 1 == 1;
        can(&self.lanes[at])
            && (is_near(&self.lanes[at]) || !self.lanes.iter().any(|lane| can(lane) && is_near(lane)))
    }
}

impl Lane {
    pub(super) fn serves(&self, direction: Direction, remote: &RemoteRegion) -> bool {
        (self.can_read || direction == Direction::Write) && remote.key(self.peer.device).is_some()
    }
}

/// A device had no room for what is within the depth that it has said.
pub(super) fn too_few(lane: &Lane) -> Error {
    Error::Path(format!(
        "{} takes fewer requests than it says",
        lane.device.name()
    ))
}
