//! The rules, the same on every backend.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a test may end where it stands"
)]

mod bed;

use std::time::{Duration, Instant};

use bed::{Kind, kinds, pair, part, pattern, transfer};
use roost_rdma::{Direction, Error, Handle, Transfer};

fn on_each(test: impl Fn(Kind)) {
    for &kind in kinds() {
        // Said when the test fails.
        eprintln!("{kind:?}");
        test(kind);
    }
}

#[test]
fn bytes_are_read_and_written() {
    on_each(|kind| {
        let (_exchange, owner, asker) = pair(kind);
        for bytes in [1, 100, 4096, 70_000, 600_000, 5_000_000] {
            let content = pattern(bytes, 1);
            let handle = owner.register(content.clone());
            let mut into = vec![0; bytes + 10];
            let done = asker.read(&handle, &mut into[5..bytes + 5], 0).unwrap();
            assert_eq!(done.bytes, bytes as u64);
            assert!(into[5..bytes + 5] == content[..]);
            assert_eq!(
                (&into[..5], &into[bytes + 5..]),
                (&[0; 5][..], &[0; 5][..]),
                "tails are untouched"
            );
            let mut from = pattern(bytes, 2);
            asker.write(&handle, &mut from, 0).unwrap();
            let mut again = vec![0; bytes];
            asker.read(&handle, &mut again, 0).unwrap();
            assert!(again == from);
        }
        assert_eq!(asker.engine.backend_of(owner.peer), Some(kind.backend()));
        let notices = asker.engine.notices();
        assert_eq!(notices.len(), 1, "told once: {notices:?}");
    });
}

#[test]
fn a_range_leaves_the_rest_alone() {
    on_each(|kind| {
        let (_exchange, owner, asker) = pair(kind);
        let content = pattern(10_000, 1);
        let handle = owner.register(content.clone());
        let mut from = pattern(100, 9);
        asker.write(&handle, &mut from, 5_000).unwrap();
        let mut into = vec![0; 10_000];
        asker.read(&handle, &mut into, 0).unwrap();
        let mut wanted = content;
        wanted[5_000..5_100].copy_from_slice(&from);
        assert!(into == wanted);
    });
}

#[test]
fn what_cannot_be_is_refused_at_once() {
    on_each(|kind| {
        let (_exchange, owner, asker) = pair(kind);
        let handle = owner.register(pattern(1_000, 1));
        let mut into = vec![0; 2_000];
        let refused = [
            asker.read(&handle, &mut into[..1_001], 0),
            asker.read(&handle, &mut into[..1_000], 1),
            asker.read(&handle, &mut into[..1_000], u64::MAX),
            asker.read(&handle, &mut into[..0], 0),
        ];
        for result in refused {
            assert!(matches!(result, Err(Error::Misuse(_))), "{result:?}");
        }
        let (one, other) = (
            part(Direction::Read, &handle, 0, &mut into[..500]),
            part(Direction::Read, &handle, 500, &mut into[499..999]),
        );
        assert!(matches!(
            asker.run(transfer(vec![one, other])),
            Err(Error::Misuse(_))
        ));
        assert!(asker.run(transfer(Vec::new())).is_ok(), "an empty batch is fine");
        assert!(into.iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_forged_handle_gets_nothing() {
    on_each(|kind| {
        let (_exchange, owner, asker) = pair(kind);
        let handle = owner.register(pattern(1_000, 1));
        let mut into = vec![0; 1_000];
        asker.read(&handle, &mut into, 0).unwrap();
        into.fill(0);
        let mut forged = handle.clone();
        forged.key[3] ^= 1;
        let mut unknown = handle.clone();
        unknown.region = 99;
        let mut other_job = handle.clone();
        other_job.job += 1;
        let mut larger = handle.clone();
        larger.size += 100;
        for forged in [forged, unknown, other_job, larger] {
            let result = asker.read(&forged, &mut into, 0);
            assert!(matches!(result, Err(Error::Refused(_))), "{result:?}");
        }
        assert!(into.iter().all(|byte| *byte == 0));
        asker.read(&handle, &mut into, 0).unwrap();
        let mut other_life = handle.clone();
        other_life.owner.incarnation.0 += 1;
        assert!(matches!(
            asker.read(&other_life, &mut into, 0),
            Err(Error::PeerLost(_))
        ));
    });
}

#[test]
fn one_part_that_is_refused_fails_the_batch_before_anything_is_written() {
    on_each(|kind| {
        let (_exchange, owner, asker) = pair(kind);
        let good = owner.register(vec![0; 100_000]);
        let mut bad = owner.register(vec![0; 100_000]);
        bad.key[0] ^= 1;
        let mut from = pattern(100_000, 1);
        let mut more = pattern(100_000, 2);
        let parts = vec![
            part(Direction::Write, &good, 0, &mut from),
            part(Direction::Write, &bad, 0, &mut more),
        ];
        let Err(Error::Refused(text)) = asker.run(transfer(parts)) else {
            panic!("it was refused");
        };
        assert!(text.starts_with("part 1:"), "{text}");
        let mut into = vec![1; 100_000];
        asker.read(&good, &mut into, 0).unwrap();
        assert!(into.iter().all(|byte| *byte == 0));
    });
}

#[test]
fn a_batch_of_many_parts() {
    on_each(|kind| {
        let (_exchange, owner, asker) = pair(kind);
        let sizes: Vec<usize> = (0..1_000).map(|number| 1 + number * 7 % 5_000).collect();
        let handles: Vec<Handle> = sizes
            .iter()
            .map(|bytes| owner.register(pattern(*bytes, *bytes as u8)))
            .collect();
        let mut into: Vec<Vec<u8>> = sizes.iter().map(|bytes| vec![0; *bytes]).collect();
        let targets: Vec<Handle> = sizes
            .iter()
            .map(|bytes| owner.register(vec![0; *bytes]))
            .collect();
        for _ in 0..3 {
            let mut parts: Vec<_> = handles
                .iter()
                .zip(&mut into)
                .map(|(handle, into)| part(Direction::Read, handle, 0, into))
                .collect();
            let mut from: Vec<Vec<u8>> = sizes.iter().map(|bytes| pattern(*bytes, 77)).collect();
            parts.extend(
                targets
                    .iter()
                    .zip(&mut from)
                    .map(|(handle, from)| part(Direction::Write, handle, 0, from)),
            );
            asker.run(transfer(parts)).unwrap();
            for (bytes, got) in sizes.iter().zip(&into) {
                assert!(*got == pattern(*bytes, *bytes as u8));
            }
        }
        for (target, bytes) in targets.iter().zip(&sizes) {
            let mut back = vec![0; *bytes];
            asker.read(target, &mut back, 0).unwrap();
            assert!(back == pattern(*bytes, 77));
        }
    });
}

#[test]
fn overlapping_buffers_and_ones_own() {
    on_each(|kind| {
        let (_exchange, owner, _asker) = pair(kind);
        let handle = owner.register(pattern(300_000, 1));
        let mut into = vec![0; 300_000];
        owner.read(&handle, &mut into, 0).unwrap();
        assert!(into == pattern(300_000, 1));
        let mut large = vec![0; 3_000_000];
        let handle = owner.register(pattern(3_000_000, 1));
        owner.read(&handle, &mut large, 0).unwrap();
        assert!(large == pattern(3_000_000, 1));
        assert!(owner.drop_region(&handle).result.is_ok());
        assert!(matches!(owner.read(&handle, &mut large, 0), Err(Error::Gone(_))));
    });
}

#[test]
fn a_dropped_buffer_is_gone() {
    on_each(|kind| {
        let (_exchange, owner, asker) = pair(kind);
        let handle = owner.register(pattern(1_000, 1));
        let never_leased = owner.register(pattern(1_000, 1));
        let mut into = vec![0; 1_000];
        asker.read(&handle, &mut into, 0).unwrap();
        assert_eq!(asker.engine.counts().leases_held, 1);
        let started = Instant::now();
        let done = owner.drop_region(&handle);
        assert!(done.result.is_ok());
        assert!(
            done.keep.downcast_ref::<Vec<u8>>().is_some(),
            "the memory is given back"
        );
        assert!(
            started.elapsed() < Duration::from_millis(500),
            "who has a lease answers"
        );
        assert!(owner.drop_region(&handle).result.is_ok(), "once more is fine");
        assert!(owner.drop_region(&never_leased).result.is_ok());
        for handle in [&handle, &never_leased] {
            let result = asker.read(handle, &mut into, 0);
            assert!(matches!(result, Err(Error::Gone(_))), "{result:?}");
        }
        assert_eq!(owner.engine.counts().regions, 0);
        assert_eq!(owner.engine.counts().leases_given, 0);
        assert_eq!(asker.engine.counts().leases_held, 0);
    });
}

#[test]
fn dropped_in_mid_transfer() {
    on_each(|kind| {
        let (_exchange, owner, asker) = pair(kind);
        for round in 0..6 {
            let bytes = 32 << 20;
            let handle = owner.register(vec![1; bytes]);
            let mut local = vec![2_u8; bytes];
            let direction = if round % 2 == 0 {
                Direction::Read
            } else {
                Direction::Write
            };
            let token = asker
                .submit(transfer(vec![part(direction, &handle, 0, &mut local)]))
                .unwrap();
            std::thread::sleep(Duration::from_millis(round));
            drop(owner.drop_region(&handle));
            match asker.wait(token).result {
                Ok(_) | Err(Error::Gone(_)) => {}
                other => panic!("{other:?}"),
            }
            assert!(matches!(
                asker.read(&handle, &mut local[..1], 0),
                Err(Error::Gone(_))
            ));
        }
    });
}

#[test]
fn an_owner_that_ends_in_mid_transfer() {
    on_each(|kind| {
        let (exchange, owner, asker) = pair(kind);
        let bytes = 96 << 20;
        let handle = owner.register(vec![1; bytes]);
        let mut local = vec![2_u8; bytes];
        let mut first = [0];
        asker.read(&handle, &mut first, 0).unwrap();
        let token = asker
            .submit(transfer(vec![part(Direction::Read, &handle, 0, &mut local)]))
            .unwrap();
        exchange.remove(owner.peer);
        asker.engine.peer_lost(owner.peer, "it was killed".into());
        let started = Instant::now();
        let result = asker.wait(token).result;
        assert!(matches!(result, Err(Error::PeerLost(_))), "{result:?}");
        assert!(started.elapsed() < Duration::from_millis(250));
        assert!(
            matches!(asker.read(&handle, &mut first, 0), Err(Error::PeerLost(_))),
            "and stays lost"
        );
    });
}

#[test]
fn a_timeout_and_a_cancel_end_it() {
    on_each(|kind| {
        let (exchange, owner, asker) = pair(kind);
        let handle = owner.register(vec![1; 1_000]);
        let mut local = vec![0; 1_000];
        exchange
            .is_silent
            .store(true, std::sync::atomic::Ordering::Relaxed);
        let short = Transfer {
            timeout: Duration::from_millis(50),
            ..transfer(vec![part(Direction::Read, &handle, 0, &mut local)])
        };
        let Err(Error::TimedOut(why)) = asker.run(short) else {
            panic!("{kind:?}: it was in time");
        };
        assert!(why.contains("link to proc"), "{kind:?}: {why}");
        let token = asker
            .submit(transfer(vec![part(Direction::Read, &handle, 0, &mut local)]))
            .unwrap();
        asker.engine.cancel(token);
        assert_eq!(asker.wait(token).result, Err(Error::Cancelled));
        assert_eq!(asker.engine.counts().transfers, 0);
    });
}

#[test]
fn after_a_cancel_nothing_is_written() {
    on_each(|kind| {
        let (_exchange, owner, asker) = pair(kind);
        let bytes = 8 << 20;
        let handle = owner.register(vec![1; bytes]);
        let mut after = vec![0_u8; bytes];
        for round in 0..40_u64 {
            let mut local = vec![0_u8; bytes];
            let token = asker
                .submit(transfer(vec![part(Direction::Read, &handle, 0, &mut local)]))
                .unwrap();
            std::thread::sleep(Duration::from_micros(round * 97 % 3_000));
            asker.engine.cancel(token);
            let result = asker.wait(token).result;
            assert!(matches!(result, Ok(_) | Err(Error::Cancelled)), "{result:?}");
            local.fill(7);
            // As much again comes the same way: what is late would be there.
            asker.read(&handle, &mut after, 0).unwrap();
            assert!(local.iter().all(|byte| *byte == 7), "written after the end");
        }
        let mut local = vec![0_u8; bytes];
        asker.read(&handle, &mut local, 0).unwrap();
        assert!(local.iter().all(|byte| *byte == 1));
    });
}

#[test]
fn a_link_that_is_cut_is_made_again() {
    on_each(|kind| {
        let (exchange, owner, asker) = pair(kind);
        let bytes = 32 << 20;
        let handle = owner.register(pattern(bytes, 3));
        let target = owner.register(vec![0; bytes]);
        for round in 0..8 {
            let mut local = vec![0_u8; bytes];
            let token = asker
                .submit(transfer(vec![part(Direction::Read, &handle, 0, &mut local)]))
                .unwrap();
            std::thread::sleep(Duration::from_millis(round * 3));
            exchange.cut();
            asker.wait(token).result.unwrap();
            assert!(local == pattern(bytes, 3));
            let token = asker
                .submit(transfer(vec![part(Direction::Write, &target, 0, &mut local)]))
                .unwrap();
            std::thread::sleep(Duration::from_millis(round * 3));
            exchange.cut();
            asker.wait(token).result.unwrap();
        }
        let mut back = vec![0_u8; bytes];
        asker.read(&target, &mut back, 0).unwrap();
        assert!(back == pattern(bytes, 3));
    });
}
