//! Sums of both sides: what `checksum` promises.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may end where it stands"
)]

mod bed;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bed::{Kind, Side, kinds, pair, part, pattern, transfer};
use roost_rdma::checksum::{Checksum, fold};
use roost_rdma::{Direction, Done, Error, Handle, Memory, Part, Run, Transfer};

fn summed(side: &Side, parts: Vec<Part>) -> Result<Done, Error> {
    side.run(Transfer {
        checksum: true,
        ..transfer(parts)
    })
}

fn sum_of(bytes: &[u8]) -> u64 {
    let mut sum = Checksum::new();
    sum.update(bytes);
    sum.finish()
}

#[test]
fn both_sides_agree_on_every_way() {
    for &kind in kinds() {
        let (_exchange, owner, asker) = pair(kind);
        // Little, more than one question holds, and in between.
        for bytes in [1, 1_000, 3_000_000, 40_000_000] {
            let content = pattern(bytes, 1);
            let handle = owner.register(content.clone());
            let mut local = vec![0; bytes];
            let read = vec![part(Direction::Read, &handle, 0, &mut local)];
            let done = summed(&asker, read).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            assert_eq!(done.checksum, Some(sum_of(&content)), "{kind:?}");
            assert!(local == content);
            local.reverse();
            let write = vec![part(Direction::Write, &handle, 0, &mut local)];
            let done = summed(&asker, write).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            assert_eq!(done.checksum, Some(sum_of(&local)), "{kind:?}");
        }
    }
}

#[test]
fn parts_of_many_runs_and_many_parts() {
    for &kind in kinds() {
        let (_exchange, owner, asker) = pair(kind);
        let content = pattern(200_000, 1);
        let handle = owner.register(content.clone());
        let target = owner.register(vec![0; 200_000]);
        let mut into = vec![0_u8; 100_000];
        let mut from = pattern(100_000, 2);
        // Every other ten bytes: more runs than one question holds.
        let every_other = |direction, handle: &Handle, local: &mut [u8]| {
            let local = local.as_mut_ptr().expose_provenance();
            let run = |number: usize| Run {
                remote: number as u64 * 20,
                local: local + number * 10,
                bytes: 10,
            };
            Part {
                direction,
                handle: handle.clone().into(),
                runs: (0..10_000).map(run).collect(),
            }
        };
        let mut parts = vec![
            every_other(Direction::Read, &handle, &mut into),
            every_other(Direction::Write, &target, &mut from),
        ];
        let mut small: Vec<Vec<u8>> = vec![vec![0; 7]; 1_000];
        let small_parts = small.iter_mut().enumerate();
        parts.extend(small_parts.map(|(number, into)| part(Direction::Read, &handle, number as u64, into)));
        let done = summed(&asker, parts).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        let mut sums = vec![sum_of(&into), sum_of(&from)];
        sums.extend((0..1_000).map(|at| sum_of(&content[at..at + 7])));
        assert_eq!(done.checksum, Some(fold(&sums)), "{kind:?}");
    }
}

#[test]
fn a_byte_that_changes_on_the_way_is_found() {
    for direction in [Direction::Read, Direction::Write] {
        let (exchange, owner, asker) = pair(Kind::Tcp);
        let bytes = 3_000_000;
        let handles = [
            owner.register(pattern(bytes, 1)),
            owner.register(pattern(bytes, 2)),
        ];
        let mut local = vec![vec![3; bytes]; 2];
        let flips = match direction {
            Direction::Read => &exchange.asker_flips,
            Direction::Write => &exchange.owner_flips,
        };
        // In the second part.
        flips.store(bytes + 400_000, Ordering::Relaxed);
        let parts = handles.iter().zip(&mut local);
        let parts: Vec<_> = parts
            .map(|(handle, local)| part(direction, handle, 0, local))
            .collect();
        let result = summed(&asker, parts.clone());
        assert!(
            matches!(result, Err(Error::Corrupt { part: 1, wanted, found }) if wanted != found),
            "{direction:?}: {result:?}"
        );
        summed(&asker, parts).unwrap();
    }
}

#[test]
fn a_link_that_is_cut_while_they_are_made() {
    for &kind in kinds() {
        let (exchange, owner, asker) = pair(kind);
        let bytes = 40_000_000;
        let handle = owner.register(pattern(bytes, 1));
        let mut local = vec![0; bytes];
        for round in 0..8 {
            let read = Transfer {
                checksum: true,
                ..transfer(vec![part(Direction::Read, &handle, 0, &mut local)])
            };
            let token = asker.submit(read).unwrap();
            std::thread::sleep(Duration::from_millis(round * 5));
            exchange.cut();
            let done = asker.wait(token).result.unwrap();
            assert_eq!(done.checksum, Some(sum_of(&local)), "{kind:?}");
        }
    }
}

#[test]
fn dropped_or_cancelled_while_they_are_made() {
    for &kind in kinds() {
        let (_exchange, owner, asker) = pair(kind);
        let bytes = 40_000_000;
        let mut local = vec![0; bytes];
        for round in 0..8 {
            let handle = owner.register(pattern(bytes, 1));
            let read = Transfer {
                checksum: true,
                ..transfer(vec![part(Direction::Read, &handle, 0, &mut local)])
            };
            let token = asker.submit(read).unwrap();
            std::thread::sleep(Duration::from_millis(round * 5));
            if round % 2 == 0 {
                drop(owner.drop_region(&handle));
            } else {
                asker.engine.cancel(token);
            }
            let result = asker.wait(token).result;
            assert!(
                matches!(result, Ok(_) | Err(Error::Gone(_) | Error::Cancelled)),
                "{kind:?}: {result:?}"
            );
        }
        let handle = owner.register(pattern(bytes, 1));
        summed(&asker, vec![part(Direction::Read, &handle, 0, &mut local)]).unwrap();
    }
}

#[test]
fn more_at_once_than_there_are_slots() {
    for &kind in kinds() {
        let (_exchange, owner, asker) = pair(kind);
        let handles: Vec<Handle> = (0..40)
            .map(|seed| owner.register(pattern(500_000, seed)))
            .collect();
        let mut local = vec![vec![0; 500_000]; 40];
        let read = |(handle, local): (&Handle, &mut Vec<u8>)| {
            let read = Transfer {
                checksum: true,
                ..transfer(vec![part(Direction::Read, handle, 0, local)])
            };
            asker.submit(read).unwrap()
        };
        let tokens: Vec<u64> = handles.iter().zip(&mut local).map(read).collect();
        for (token, seed) in tokens.into_iter().zip(0..) {
            let sum = asker.wait(token).result.unwrap().checksum;
            assert_eq!(sum, Some(sum_of(&pattern(500_000, seed))), "{kind:?}");
        }
    }
}

#[test]
fn a_version_is_never_taken_for_corrupt() {
    for &kind in kinds() {
        let bytes = 1 << 20;
        let (_exchange, owner, asker) = pair(kind);
        let memory = vec![0_u8; bytes];
        let address = memory.as_ptr().expose_provenance();
        let handle = owner
            .engine
            .register(Memory::of(address, bytes as u64), Box::new(memory))
            .unwrap();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for version in 1.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    owner.engine.begin_update(handle.region).unwrap();
                    let memory: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
                    for at in 0..bytes {
                        // SAFETY: the region's memory; nobody here reads it but through the kernel.
                        unsafe { memory.add(at).write_volatile(version as u8) };
                    }
                    owner.engine.end_update(handle.region, version).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
            let mut local = vec![0; bytes];
            let end = Instant::now() + Duration::from_secs(1);
            while Instant::now() < end {
                let read = Transfer {
                    version: Some(0),
                    checksum: true,
                    ..transfer(vec![part(Direction::Read, &handle, 0, &mut local)])
                };
                let result = asker.run(read);
                if result.is_err() {
                    is_over.store(true, Ordering::Relaxed);
                }
                let done = result.unwrap();
                assert_eq!(done.checksum, Some(sum_of(&local)), "{kind:?}");
            }
            is_over.store(true, Ordering::Relaxed);
        });
    }
}
