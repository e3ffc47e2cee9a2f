//! One read or write on its way: what of it was handed over, what is out, what came back.

use super::memory::Region;
use super::offer::RemoteRegion;
use super::path::Failure;
use crate::plan::{Direction, Run};
use std::sync::Arc;

/// Bytes of one request. Small enough to spread one tensor over several NICs and to lose little when a packet is lost, large
/// enough that requests are few.
pub(super) const CHUNK_BYTES_MAX: u64 = 256 << 10;

/// See the module.
pub(super) struct Operation {
    pub(super) direction: Direction,
    runs: Vec<Run>,
    /// For each run the place of its region.
    region_of: Vec<usize>,
    regions: Vec<Arc<Region>>,
    /// For each run the place of the owner's region.
    target_of: Vec<usize>,
    targets: Vec<RemoteRegion>,
    /// The first run that was not wholly handed over, and how much of it was.
    run: usize,
    offset: u64,
    in_flight: u32,
    ended: Option<Failure>,
}

/// A piece of a run, for one queue pair.
pub(super) struct Chunk<'a> {
    pub(super) local: u64,
    pub(super) remote: u64,
    pub(super) bytes: u32,
    pub(super) region: &'a Region,
}

/// What is copied from or to one of the owner's regions.
#[derive(Debug, Clone, Copy)]
pub struct Reach<'a> {
    /// The owner's region.
    pub remote: &'a RemoteRegion,
    /// What is copied.
    pub runs: &'a [Run],
}

impl Operation {
    /// Runs of no bytes are left out; `region_of` is about the others.
    pub(super) fn new(
        direction: Direction,
        reaches: &[Reach<'_>],
        region_of: Vec<usize>,
        regions: Vec<Arc<Region>>,
    ) -> Self {
        let (target_of, runs) = runs_of(reaches).unzip();
        Self {
            direction,
            runs,
            region_of,
            regions,
            target_of,
            targets: reaches.iter().map(|reach| reach.remote.clone()).collect(),
            run: 0,
            offset: 0,
            in_flight: 0,
            ended: None,
        }
    }

    /// The owner's key for one of its devices, as the next piece needs it.
    pub(super) fn key(&self, peer_device: u8) -> Option<u32> {
        self.targets[*self.target_of.get(self.run)?].key(peer_device)
    }

    /// The devices nearest to all its local memory, by bit; 0 when these are not the same.
    pub(super) fn near(&self) -> u64 {
        self.regions
            .iter()
            .fold(u64::MAX, |mask, region| mask & region.near)
    }

    /// Whether something of it is still to be handed over.
    pub(super) fn has_more(&self) -> bool {
        self.ended.is_none() && self.run < self.runs.len()
    }

    /// The next piece, of at most so many bytes. It is out once `sent` says so.
    pub(super) fn next(&self, bytes_max: u64) -> Option<Chunk<'_>> {
        if !self.has_more() {
            return None;
        }
        let run = &self.runs[self.run];
        let bytes = (run.bytes - self.offset).min(bytes_max).min(CHUNK_BYTES_MAX);
        Some(Chunk {
            local: run.local as u64 + self.offset,
            remote: self.targets[self.target_of[self.run]].base + run.remote + self.offset,
            bytes: u32::try_from(bytes).expect("a chunk is small"),
            region: &self.regions[self.region_of[self.run]],
        })
    }

    /// So many bytes of the next run were handed over.
    pub(super) fn sent(&mut self, bytes: u32) {
        self.in_flight += 1;
        self.offset += u64::from(bytes);
        if self.offset == self.runs[self.run].bytes {
            self.run += 1;
            self.offset = 0;
        }
    }

    /// A piece came back: done, or flushed.
    pub(super) fn returned(&mut self) {
        self.in_flight -= 1;
    }

    /// Nothing more is handed over. The first reason stands.
    pub(super) fn end(&mut self, failure: Failure) {
        self.ended.get_or_insert(failure);
    }

    /// How it ended, once no NIC has anything to do with it any more.
    pub(super) fn result(&self) -> Option<Result<(), Failure>> {
        match (&self.ended, self.in_flight) {
            (_, 1..) => None,
            (Some(failure), 0) => Some(Err(failure.clone())),
            (None, 0) => (self.run == self.runs.len()).then_some(Ok(())),
        }
    }
}

/// All runs that have bytes, each with the place of its reach.
pub(super) fn runs_of<'a>(reaches: &'a [Reach<'_>]) -> impl Iterator<Item = (usize, Run)> + 'a {
    let of = |(at, reach): (usize, &'a Reach<'_>)| reach.runs.iter().map(move |run| (at, *run));
    reaches
        .iter()
        .enumerate()
        .flat_map(of)
        .filter(|(_, run)| run.bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::memory::Access;
    use std::sync::atomic::AtomicUsize;

    fn operation(runs: &[Run]) -> Operation {
        let region = Arc::new(Region::new(
            0x1000,
            1 << 30,
            Access::Target,
            1,
            &Arc::new(AtomicUsize::new(0)),
        ));
        let remote = RemoteRegion {
            base: 0x10_0000,
            bytes: 1 << 30,
            keys: vec![(0, 7), (2, 9)],
        };
        let region_of = vec![0; runs.len()];
        let reach = Reach {
            remote: &remote,
            runs,
        };
        Operation::new(Direction::Read, &[reach], region_of, vec![region])
    }

    #[test]
    fn every_byte_is_handed_over_once() {
        let runs = vec![
            Run {
                remote: 0,
                local: 0x1000,
                bytes: CHUNK_BYTES_MAX + 1,
            },
            Run {
                remote: 1 << 20,
                local: 0x9_0000,
                bytes: 100,
            },
        ];
        let mut operation = operation(&runs);
        let mut pieces = Vec::new();
        while let Some(chunk) = operation.next(u64::MAX) {
            let (local, remote, bytes) = (chunk.local, chunk.remote, chunk.bytes);
            pieces.push((local, remote, bytes));
            operation.sent(bytes);
        }
        let chunk = u32::try_from(CHUNK_BYTES_MAX).unwrap();
        let second = CHUNK_BYTES_MAX;
        assert_eq!(
            pieces,
            [
                (0x1000, 0x10_0000, chunk),
                (0x1000 + second, 0x10_0000 + second, 1),
                (0x9_0000, 0x20_0000, 100)
            ]
        );
        assert_eq!(operation.result(), None);
        (0..3).for_each(|_| operation.returned());
        assert_eq!(operation.result(), Some(Ok(())));
    }

    #[test]
    fn what_was_cancelled_ends_when_the_last_piece_is_back() {
        let mut operation = operation(&[Run {
            remote: 0,
            local: 0x1000,
            bytes: 10 << 20,
        }]);
        operation.sent(4096);
        operation.end(Failure::Cancelled);
        operation.end(Failure::Flushed);
        assert!(operation.next(u64::MAX).is_none());
        assert_eq!(operation.result(), None);
        operation.returned();
        assert_eq!(operation.result(), Some(Err(Failure::Cancelled)));
        assert_eq!((operation.key(2), operation.key(1)), (Some(9), None));
    }
}
