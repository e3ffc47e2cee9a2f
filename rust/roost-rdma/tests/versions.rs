//! Versions, the same on every backend.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a test may end where it stands"
)]

mod bed;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bed::{KINDS, Kind, Side, pair, part, transfer};
use roost_rdma::{Direction, Done, Error, Handle, Memory, Transfer};

fn read_version(
    side: &Side,
    handles: &[&Handle],
    into: &mut [Vec<u8>],
    version: u64,
    timeout: Duration,
) -> Result<Done, Error> {
    let parts = handles
        .iter()
        .zip(into)
        .map(|(handle, into)| part(Direction::Read, handle, 0, into))
        .collect();
    side.run(Transfer {
        version: Some(version),
        timeout,
        ..transfer(parts)
    })
}

#[test]
fn a_version_is_told_and_an_older_one_is_refused() {
    for kind in KINDS {
        let (_exchange, owner, asker) = pair(kind);
        let handle = owner.register(vec![1; 100_000]);
        let mut into = vec![vec![0; 100_000]];
        let mut read = |version| read_version(&asker, &[&handle], &mut into, version, bed::LONG);
        assert_eq!(read(0).unwrap().version, Some(0));
        assert_eq!(read(1), Err(Error::Stale { wanted: 1, found: 0 }));
        owner.engine.begin_update(handle.region).unwrap();
        assert!(owner.engine.begin_update(handle.region).is_err());
        owner.engine.end_update(handle.region, 5).unwrap();
        assert!(owner.engine.end_update(handle.region, 6).is_err());
        assert_eq!(read(3).unwrap().version, Some(5));
        assert_eq!(read(6), Err(Error::Stale { wanted: 6, found: 5 }));
    }
}

#[test]
fn an_update_in_progress_is_waited_for() {
    for kind in KINDS {
        let (_exchange, owner, asker) = pair(kind);
        let handle = owner.register(vec![1; 100_000]);
        owner.engine.begin_update(handle.region).unwrap();
        std::thread::scope(|scope| {
            let (asker, handle) = (&asker, &handle);
            let reader = scope.spawn(move || {
                let mut into = vec![vec![0; 100_000]];
                read_version(asker, &[handle], &mut into, 1, bed::LONG)
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!reader.is_finished(), "{kind:?}");
            let ended = Instant::now();
            owner.engine.end_update(handle.region, 1).unwrap();
            assert_eq!(reader.join().unwrap().unwrap().version, Some(1));
            assert!(ended.elapsed() < bed::LONG / 4, "{kind:?}: seen late");
        });
        owner.engine.begin_update(handle.region).unwrap();
        let mut into = vec![vec![0; 100_000]];
        let started = Instant::now();
        let result = read_version(&asker, &[&handle], &mut into, 1, Duration::from_millis(100));
        let Err(Error::TimedOut(why)) = result else {
            panic!("{kind:?}: {result:?}");
        };
        assert!(why.contains("an update of a buffer"), "{kind:?}: {why}");
        assert!(started.elapsed() < Duration::from_secs(2));
        drop(owner.drop_region(&handle));
        let result = read_version(&asker, &[&handle], &mut into, 1, bed::LONG);
        assert!(matches!(result, Err(Error::Gone(_))), "{kind:?}: {result:?}");
    }
}

#[test]
fn one_version_of_all_buffers() {
    for kind in KINDS {
        let (_exchange, owner, asker) = pair(kind);
        let handles = [owner.register(vec![1; 1_000]), owner.register(vec![2; 1_000])];
        let set = |handle: &Handle, version| {
            owner.engine.begin_update(handle.region).unwrap();
            owner.engine.end_update(handle.region, version).unwrap();
        };
        set(&handles[0], 2);
        set(&handles[1], 2);
        let mut into = vec![vec![0; 1_000]; 2];
        let both = [&handles[0], &handles[1]];
        let mut read = |version, timeout| read_version(&asker, &both, &mut into, version, timeout);
        assert_eq!(read(1, bed::LONG).unwrap().version, Some(2));
        set(&handles[0], 3);
        assert_eq!(read(4, bed::LONG), Err(Error::Stale { wanted: 4, found: 3 }));
        // On a busy machine a short time is over before there was a look.
        let mut looked = |version| {
            let mut timeout = Duration::from_millis(50);
            loop {
                match read(version, timeout) {
                    Err(Error::TimedOut(why)) if !why.contains("of one version") && timeout < bed::LONG => {
                        timeout *= 2;
                    }
                    result => return result,
                }
            }
        };
        let result = looked(1);
        assert!(
            matches!(&result, Err(Error::TimedOut(why)) if why.contains("of one version")),
            "they differ: {result:?}"
        );
        assert_eq!(looked(3), Err(Error::Stale { wanted: 3, found: 2 }));
        set(&handles[1], 3);
        assert_eq!(read(3, bed::LONG).unwrap().version, Some(3));
    }
}

/// Memory that a writer and a copy by the kernel may touch at once.
fn fill(address: usize, bytes: usize, value: u8) {
    let memory: *mut u8 = std::ptr::with_exposed_provenance_mut(address);
    for at in 0..bytes {
        // SAFETY: the caller's memory; nobody here reads it but through the kernel.
        unsafe { memory.add(at).write_volatile(value) };
    }
}

#[test]
fn torn_reads_are_never_given() {
    for kind in KINDS {
        torn_reads(kind);
    }
}

fn torn_reads(kind: Kind) {
    let bytes = 2 << 20;
    let (_exchange, owner, asker) = pair(kind);
    let memory = vec![0_u8; bytes];
    let address = memory.as_ptr().expose_provenance();
    let handle = owner
        .engine
        .register(Memory::of(address, bytes as u64), Box::new(memory))
        .unwrap();
    let mut into = vec![vec![0; bytes]];
    let began = Instant::now();
    read_version(&asker, &[&handle], &mut into, 0, bed::LONG).unwrap();
    // Long enough for a read, however slow this machine is now: a reader that never finds the memory still is starved, not torn.
    let pause = began.elapsed().max(Duration::from_millis(4));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut version = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                version += 1;
                owner.engine.begin_update(handle.region).unwrap();
                fill(address, bytes, version as u8);
                owner.engine.end_update(handle.region, version).unwrap();
                std::thread::sleep(pause);
            }
        });
        let mut good = 0;
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(1_500) || (good <= 10 && began.elapsed() < bed::LONG) {
            match read_version(&asker, &[&handle], &mut into, 0, Duration::from_secs(5)) {
                Ok(done) => {
                    let wanted = done.version.unwrap() as u8;
                    assert!(into[0].iter().all(|byte| *byte == wanted), "{kind:?}: torn");
                    good += 1;
                }
                Err(Error::TimedOut(_)) => {}
                Err(error) => panic!("{kind:?}: {error}"),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        eprintln!("{kind:?}: {good} good reads");
        assert!(good > 10, "{kind:?}: {good}");
    });
}
