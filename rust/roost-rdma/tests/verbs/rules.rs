//! What holds on every device: each test bed runs each of these.

use crate::bed::{Bed, PATIENCE, copy, pattern, read, wait, write};
use roost_rdma::verbs::{Event, Failure, RemoteRegion};
use roost_rdma::{Direction, Run};

/// Not a multiple of anything, and several chunks.
const BYTES: usize = (3 << 20) + 123;

pub(crate) fn reads_and_writes_carry_every_byte_and_no_other(bed: &Bed) {
    let mut owned = pattern(1, BYTES);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    let mut target = vec![7; BYTES + 200];
    read(&mut path, &mut target[100..100 + BYTES], 0, &published).unwrap();
    assert!(
        target[100..100 + BYTES] == pattern(1, BYTES)
            && target[..100] == [7; 100]
            && target[100 + BYTES..] == [7; 100]
    );
    let mut source = pattern(2, 1_000_001);
    write(&mut path, &mut source, 4097, &published).unwrap();
    drop(published);
    let mut wanted = pattern(1, BYTES);
    wanted[4097..4097 + source.len()].copy_from_slice(&source);
    assert!(owned == wanted);
}

pub(crate) fn a_batch_of_scattered_runs_is_one_operation(bed: &Bed) {
    let mut owned = pattern(3, 1 << 20);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    let mut target = vec![0; 1 << 20];
    let base = target.as_mut_ptr().expose_provenance();
    let pieces: Vec<(usize, usize)> = (0..500).map(|at| (at * 2000, 1 + at * 3)).collect();
    let runs: Vec<Run> = pieces
        .iter()
        .map(|&(at, bytes)| Run {
            remote: at as u64,
            local: base + at,
            bytes: bytes as u64,
        })
        .collect();
    // SAFETY: the target lives until both events have come.
    unsafe {
        path.post(1, Direction::Read, &runs[..250], &published.remote())
            .unwrap();
        path.post(2, Direction::Read, &runs[250..], &published.remote())
            .unwrap();
    }
    let mut events = wait(&mut path, PATIENCE, 2);
    events.sort_by_key(|event| format!("{event:?}"));
    assert_eq!(events, [Event::Done { id: 1 }, Event::Done { id: 2 }]);
    let mut wanted = vec![0; 1 << 20];
    for (at, bytes) in pieces {
        wanted[at..at + bytes].copy_from_slice(&pattern(3, 1 << 20)[at..at + bytes]);
    }
    assert!(target == wanted);
    // SAFETY: it names no memory.
    unsafe { path.post(3, Direction::Write, &[], &published.remote()) }.unwrap();
    assert_eq!(wait(&mut path, PATIENCE, 1), [Event::Done { id: 3 }]);
}

pub(crate) fn a_wrong_key_writes_nothing_and_harms_no_other_path(bed: &Bed) {
    let mut owned = pattern(4, BYTES);
    let published = bed.publish(&mut owned);
    let ((mut path, _serving), (mut other, _other_serving)) = (bed.path(), bed.path());
    let mut remote = published.remote();
    remote.keys.iter_mut().for_each(|(_, key)| *key ^= 0x00ff_f000);
    let mut source = pattern(5, BYTES);
    let run = Run {
        remote: 0,
        local: source.as_mut_ptr().expose_provenance(),
        bytes: BYTES as u64,
    };
    // SAFETY: the source lives until the event has come.
    unsafe { path.post(1, Direction::Write, &[run], &remote) }.unwrap();
    let events = wait(&mut path, PATIENCE, 2);
    assert!(
        matches!(
            &events[0],
            Event::Failed {
                id: 1,
                failure: Failure::Access(_)
            }
        ),
        "{events:?}"
    );
    assert!(matches!(&events[1], Event::Broken { .. }), "{events:?}");
    // SAFETY: it names no memory.
    let refused = unsafe { path.post(2, Direction::Write, &[], &remote) };
    assert!(refused.unwrap_err().to_string().contains("closed"));
    let mut target = vec![0; BYTES];
    read(&mut other, &mut target, 0, &published).unwrap();
    assert!(target == pattern(4, BYTES));
    let (mut again, _again_serving) = bed.path();
    read(&mut again, &mut target[..1000], 5, &published).unwrap();
}

pub(crate) fn revoked_memory_is_out_of_reach(bed: &Bed) {
    let mut owned = pattern(6, BYTES);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    let mut target = vec![0; 4096];
    read(&mut path, &mut target, 0, &published).unwrap();
    let remote: RemoteRegion = RemoteRegion::decode(&published.remote().encode()).unwrap();
    drop(published);
    let run = Run {
        remote: 0,
        local: target.as_mut_ptr().expose_provenance(),
        bytes: 4096,
    };
    // SAFETY: the target lives until the event has come.
    unsafe { path.post(1, Direction::Read, &[run], &remote) }.unwrap();
    let events = wait(&mut path, PATIENCE, 1);
    assert!(
        matches!(
            &events[0],
            Event::Failed {
                id: 1,
                failure: Failure::Access(_)
            }
        ),
        "{events:?}"
    );
}

pub(crate) fn what_does_not_fit_is_refused_before_anything_is_sent(bed: &Bed) {
    let mut owned = pattern(7, 10_000);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    let mut target = vec![0; 20_000];
    let local = target.as_mut_ptr().expose_provenance();
    for (remote, bytes) in [(0, 10_001), (9_999, 2), (u64::MAX, 2), (10_001, 0)] {
        // SAFETY: the target lives to the end.
        let refused = unsafe {
            path.post(
                1,
                Direction::Read,
                &[Run { remote, local, bytes }],
                &published.remote(),
            )
        };
        assert!(
            refused.unwrap_err().to_string().contains("pass the end"),
            "{bytes} at {remote}"
        );
    }
    // SAFETY: nothing is mapped there, which is refused.
    let nowhere = unsafe {
        path.post(
            2,
            Direction::Read,
            &[Run {
                remote: 0,
                local: 0x1000,
                bytes: 100,
            }],
            &published.remote(),
        )
    };
    let nowhere = nowhere.unwrap_err().to_string();
    assert!(nowhere.contains("not mapped"), "{nowhere}");
    let foreign = RemoteRegion {
        keys: vec![(200, 1)],
        ..published.remote()
    };
    // SAFETY: it is refused.
    let unknown = unsafe {
        path.post(
            3,
            Direction::Read,
            &[Run {
                remote: 0,
                local,
                bytes: 1,
            }],
            &foreign,
        )
    };
    assert!(
        unknown
            .unwrap_err()
            .to_string()
            .contains("none of the owner's devices")
    );
    read(&mut path, &mut target[..10_000], 0, &published).unwrap();
}

pub(crate) fn closing_tells_every_operation_and_lets_memory_go(bed: &Bed) {
    let mut owned = pattern(8, 8 << 20);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    let mut target = vec![0; 8 << 20];
    let run = Run {
        remote: 0,
        local: target.as_mut_ptr().expose_provenance(),
        bytes: 8 << 20,
    };
    for id in 0..4 {
        // SAFETY: the target lives until the path has told of all of them; they race for it, and nobody looks.
        unsafe { path.post(id, Direction::Read, &[run], &published.remote()) }.unwrap();
    }
    path.close();
    let mut ended = Vec::new();
    loop {
        for event in wait(&mut path, PATIENCE, 1) {
            match event {
                Event::Done { id }
                | Event::Failed {
                    id,
                    failure: Failure::Flushed,
                } => ended.push(id),
                Event::Broken { .. } => {
                    ended.sort_unstable();
                    assert_eq!(ended, [0, 1, 2, 3]);
                    drop(path);
                    drop(published);
                    assert_eq!((bed.asker.regions(), bed.owner.regions()), (0, 0));
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

pub(crate) fn a_cancelled_operation_ends_and_the_path_goes_on(bed: &Bed) {
    let mut owned = pattern(9, 8 << 20);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    let mut target = vec![0; 8 << 20];
    let run = Run {
        remote: 0,
        local: target.as_mut_ptr().expose_provenance(),
        bytes: 8 << 20,
    };
    // SAFETY: the target lives until the event has come.
    unsafe { path.post(1, Direction::Read, &[run], &published.remote()) }.unwrap();
    path.cancel(1);
    let events = wait(&mut path, PATIENCE, 1);
    assert!(
        matches!(
            &events[0],
            Event::Failed {
                id: 1,
                failure: Failure::Cancelled
            } | Event::Done { id: 1 }
        ),
        "{events:?}"
    );
    target.fill(0);
    copy(&mut path, Direction::Read, &mut target, 0, &published).unwrap();
    assert!(target == pattern(9, 8 << 20));
}
