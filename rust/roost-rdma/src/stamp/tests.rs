use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;

use super::*;

fn stamp(look: Look) -> Stamp {
    match look {
        Look::Still(stamp) => stamp,
        Look::Updating => panic!("an update is in progress"),
    }
}

#[test]
fn an_update_is_seen_from_its_beginning_to_its_end() {
    let stamps = Stamps::new();
    let slot = stamps.take().unwrap();
    let view = View::map(slot.file()).unwrap();
    let look = || view.look(slot.index()).unwrap();
    let before = stamp(look());
    assert_eq!(before.version, 0);
    slot.begin().unwrap();
    assert_eq!(look(), Look::Updating);
    slot.end(7).unwrap();
    let after = stamp(look());
    assert_eq!(after.version, 7);
    assert_ne!(after.sequence, before.sequence);
    assert_eq!(slot.look(), look());
    assert_eq!(view.look(SLOTS), None);
}

#[test]
fn updates_do_not_nest() {
    let slot = Stamps::new().take().unwrap();
    assert!(slot.end(1).is_err());
    slot.begin().unwrap();
    assert!(slot.begin().is_err());
    slot.end(1).unwrap();
    assert!(slot.end(2).is_err());
    assert_eq!(stamp(slot.look()).version, 1);
}

#[test]
fn a_slot_that_is_used_again_is_not_taken_for_what_it_was() {
    let stamps = Stamps::new();
    for is_torn in [false, true] {
        let slot = stamps.take().unwrap();
        let view = View::map(slot.file()).unwrap();
        let (index, before) = (slot.index(), stamp(slot.look()));
        if is_torn {
            slot.begin().unwrap();
        }
        drop(slot);
        let next = stamps.take().unwrap();
        assert_eq!(next.index(), index);
        let after = stamp(view.look(index).unwrap());
        assert_ne!(after.sequence, before.sequence);
        assert_eq!(after.version, 0);
    }
}

#[test]
fn there_are_as_many_tables_as_needed() {
    let stamps = Stamps::new();
    let slots: Vec<Slot> = (0..=SLOTS).map(|_| stamps.take().unwrap()).collect();
    let mut addresses: Vec<usize> = slots.iter().map(Slot::address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    assert_eq!(addresses.len(), slots.len());
}

#[test]
fn nobody_else_can_write_a_stamp() {
    let slot = Stamps::new().take().unwrap();
    assert!(Mapping::shared(slot.file(), TABLE_BYTES, true).is_err());
    assert!(rustix::io::pwrite(slot.file(), &[1], 0).is_err());
    assert!(rustix::fs::ftruncate(slot.file(), 0).is_err());
    let other = rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    assert!(View::map(other.as_fd()).is_err());
}

/// Readers beside a writer whose words all hold the version: what two equal looks enclose is one version.
#[test]
fn what_equal_looks_enclose_is_whole() {
    const WORDS: usize = 512;
    const UPDATES: u64 = 20_000;
    let slot = Stamps::new().take().unwrap();
    let view = View::map(slot.file()).unwrap();
    let words: Vec<AtomicU64> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut good = 0;
                // Once at least after the writer's end, so that each reader has read something.
                while !is_over.load(Ordering::Acquire) || good == 0 {
                    let Some(Look::Still(before)) = view.look(slot.index()) else {
                        continue;
                    };
                    let seen: Vec<u64> = words.iter().map(|word| word.load(Ordering::Relaxed)).collect();
                    if view.look(slot.index()) == Some(Look::Still(before)) {
                        assert!(seen.iter().all(|&word| word == before.version), "torn");
                        good += 1;
                    }
                }
            });
        }
        for version in 1..=UPDATES {
            slot.begin().unwrap();
            for word in &words {
                word.store(version, Ordering::Relaxed);
            }
            slot.end(version).unwrap();
        }
        is_over.store(true, Ordering::Release);
    });
}

/// The owner dies in an update: the slot never comes to rest, and its memory does not go with the owner.
#[test]
fn a_writer_that_dies_in_an_update_leaves_it_open() {
    let slot = Stamps::new().take().unwrap();
    let view = View::map(slot.file()).unwrap();
    let mut owner = crate::local::testing::Forked::new(|_| {
        slot.begin().ok();
    });
    owner.wait_ready();
    owner.kill();
    assert_eq!(view.look(slot.index()), Some(Look::Updating));
    let process = crate::local::Process::of(owner.pidfd());
    assert!(process.is_err() || !process.unwrap().is_alive());
}
