//! Writes that are given up: after their completion nothing of them is written, and what is late meets nobody.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may end where it stands"
)]

mod bed;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bed::{AT_THE_GATE, KINDS, Kind, own, pair, part, transfer};
use roost_rdma::{Completion, Direction, Error, Handle, Memory, Transfer};

/// Memory of an owner that a test looks into, though others write it.
struct Watched(Arc<Vec<u8>>);

impl Watched {
    fn new(bytes: usize) -> Self {
        Self(Arc::new(vec![0; bytes]))
    }

    fn address(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    fn memory(&self) -> Memory {
        Memory::of(self.address(), self.0.len() as u64)
    }

    fn fill(&self, value: u8) {
        let memory: *mut u8 = std::ptr::with_exposed_provenance_mut(self.address());
        for at in 0..self.0.len() {
            // SAFETY: its own memory.
            unsafe { memory.add(at).write_volatile(value) };
        }
    }

    fn has_only(&self, value: u8) -> bool {
        let memory: *const u8 = std::ptr::with_exposed_provenance(self.address());
        // SAFETY: its own memory.
        (0..self.0.len()).all(|at| unsafe { memory.add(at).read_volatile() } == value)
    }
}

/// A NIC of a stub writes when it likes.
fn without_nics() -> impl Iterator<Item = Kind> {
    KINDS.into_iter().filter(|kind| *kind != Kind::Nics)
}

#[test]
fn nothing_is_written_after_the_completion() {
    for kind in without_nics() {
        let (exchange, owner, asker) = pair(kind);
        let bytes = 8 << 20;
        let watched = Watched::new(bytes);
        let keep = Box::new(Arc::clone(&watched.0));
        let handle = owner.engine.register(watched.memory(), keep).unwrap();
        let mut local = vec![2_u8; bytes];
        for round in 0..30_u64 {
            let write = transfer(vec![part(Direction::Write, &handle, 0, &mut local)]);
            let token = asker.submit(write).unwrap();
            std::thread::sleep(Duration::from_micros(round * 97 % 2_000));
            if round % 3 == 0 {
                exchange.cut();
            }
            asker.engine.cancel(token);
            let result = asker.wait(token).result;
            assert!(
                matches!(result, Ok(_) | Err(Error::Cancelled)),
                "{kind:?}: {result:?}"
            );
            watched.fill(7);
            std::thread::sleep(Duration::from_millis(2));
            assert!(watched.has_only(7), "{kind:?}: written after the end");
        }
    }
}

#[test]
fn an_owner_that_stands_still_does_not_write_what_was_cancelled() {
    for kind in without_nics().filter(|kind| *kind != Kind::SameHost) {
        let (exchange, owner, asker) = pair(kind);
        let watched = Watched::new(3 << 20);
        let keep = Box::new(Arc::clone(&watched.0));
        let handle = owner.engine.register(watched.memory(), keep).unwrap();
        let mut first = [1];
        asker.read(&handle, &mut first, 0).unwrap();
        let nobody = Handle {
            owner: own(AT_THE_GATE, 0).peer,
            ..handle.clone()
        };
        let stopped = owner
            .submit(transfer(vec![part(Direction::Read, &nobody, 0, &mut first)]))
            .unwrap();
        // No other link tells the owner that this one is over.
        exchange.is_silent.store(true, Ordering::Relaxed);
        let mut local = vec![2_u8; 3 << 20];
        let write = transfer(vec![part(Direction::Write, &handle, 0, &mut local)]);
        let token = asker.submit(write).unwrap();
        // The engine has had its turn with it, and the sockets have taken what they can: it has answered something later.
        let mine = asker.register(vec![1]);
        asker.read(&mine, &mut first, 0).unwrap();
        asker.engine.cancel(token);
        let asked = Instant::now();
        assert_eq!(asker.wait(token).result, Err(Error::Cancelled), "{kind:?}");
        assert!(asked.elapsed() < Duration::from_secs(5), "{kind:?}");
        watched.fill(7);
        exchange.gate.wait();
        owner.engine.cancel(stopped);
        drop(owner.wait(stopped));
        // It has had its turns.
        owner.read(&handle, &mut first, 0).unwrap();
        assert!(watched.has_only(7), "{kind:?}: written after the end");
    }
}

#[test]
fn a_token_may_be_used_again_at_once() {
    for kind in KINDS {
        let (_exchange, owner, asker) = pair(kind);
        let handle = owner.register(vec![1; 3 << 20]);
        owner.engine.begin_update(handle.region).unwrap();
        let mut local = vec![0_u8; 3 << 20];
        let mut read = |version, timeout| {
            let read = Transfer {
                version,
                timeout,
                ..transfer(vec![part(Direction::Read, &handle, 0, &mut local)])
            };
            asker.engine.submit(read, 5).unwrap();
        };
        // An update is in progress: each waits for its end until it is given up.
        for round in 0..20 {
            read(Some(0), Duration::from_millis(round % 3));
            let Completion { result, .. } = asker.wait(5);
            assert!(matches!(result, Err(Error::TimedOut(_))), "{kind:?}: {result:?}");
        }
        read(Some(0), bed::LONG);
        owner.engine.end_update(handle.region, 3).unwrap();
        assert_eq!(asker.wait(5).result.unwrap().version, Some(3), "{kind:?}");
        assert!(local.iter().all(|byte| *byte == 1));
    }
}
