use std::collections::BTreeSet;

use proptest::prelude::*;
use roost_core::id::{HostId, Incarnation, ProcId};

use super::*;
use crate::handle::Peer;

fn handle(region: u64, size: u64) -> Arc<Handle> {
    Arc::new(Handle {
        job: 1,
        host: HostId::new(2).unwrap(),
        owner: Peer {
            proc: ProcId::new(3).unwrap(),
            incarnation: Incarnation(0),
        },
        region,
        key: [u8::try_from(region).unwrap(); 16],
        size,
    })
}

fn part(direction: Direction, region: u64, runs: &[(u64, usize, u64)]) -> Part {
    let run = |&(remote, local, bytes)| Run { remote, local, bytes };
    Part {
        direction,
        handle: handle(region, 1000),
        runs: runs.iter().map(run).collect(),
    }
}

#[derive(Debug, Clone)]
struct View {
    shape: Vec<u64>,
    item: u64,
    remote: Vec<i64>,
    local: Vec<i64>,
}

const REMOTE: u32 = 100_000;
const LOCAL: u32 = 700_000;

/// From each byte there to its byte here, item by item, as a child would do it.
fn naive(view: &View) -> BTreeSet<(u64, usize)> {
    let mut items = vec![(i128::from(REMOTE), i128::from(LOCAL))];
    for ((&count, &remote), &local) in view.shape.iter().zip(&view.remote).zip(&view.local) {
        items = items
            .iter()
            .flat_map(|&(there, here)| {
                (0..i128::from(count))
                    .map(move |at| (there + at * i128::from(remote), here + at * i128::from(local)))
            })
            .collect();
    }
    let bytes = items.iter().flat_map(|&(there, here)| {
        (0..i128::from(view.item)).map(move |byte| {
            (
                u64::try_from(there + byte).unwrap(),
                usize::try_from(here + byte).unwrap(),
            )
        })
    });
    bytes.collect()
}

fn views() -> impl Strategy<Value = View> {
    let axis = (1_u64..5, -40_i64..40, -40_i64..40);
    (proptest::collection::vec(axis, 0..4), 1_u64..9).prop_map(|(axes, item)| View {
        shape: axes.iter().map(|axis| axis.0).collect(),
        item,
        remote: axes.iter().map(|axis| axis.1).collect(),
        local: axes.iter().map(|axis| axis.2).collect(),
    })
}

/// Views whose dimensions follow each other without gaps, in any order: one run.
fn contiguous() -> impl Strategy<Value = View> {
    let shape = proptest::collection::vec(1_u64..6, 1..4);
    (shape, 1_u64..9)
        .prop_flat_map(|(shape, item)| {
            let order: Vec<usize> = (0..shape.len()).collect();
            (Just(shape), Just(item), Just(order).prop_shuffle())
        })
        .prop_map(|(shape, item, order)| {
            let mut strides = vec![0_i64; shape.len()];
            let mut bytes = item;
            for dimension in order {
                strides[dimension] = i64::try_from(bytes).unwrap();
                bytes *= shape[dimension];
            }
            View {
                shape,
                item,
                remote: strides.clone(),
                local: strides,
            }
        })
}

fn runs_of(view: &View) -> Result<Vec<Run>, Misuse> {
    strided(
        &view.shape,
        view.item,
        u64::from(REMOTE),
        &view.remote,
        LOCAL as usize,
        &view.local,
    )
}

proptest! {
    #[test]
    fn runs_cover_what_the_view_has(view in views()) {
        let mut covered = BTreeSet::new();
        for run in runs_of(&view).unwrap() {
            for byte in 0..run.bytes {
                covered.insert((run.remote + byte, run.local + usize::try_from(byte).unwrap()));
            }
        }
        prop_assert_eq!(covered, naive(&view));
    }

    #[test]
    fn what_is_contiguous_is_one_run(view in contiguous()) {
        let bytes = view.shape.iter().product::<u64>() * view.item;
        prop_assert_eq!(
            runs_of(&view).unwrap(),
            vec![Run { remote: u64::from(REMOTE), local: LOCAL as usize, bytes }]
        );
    }

    #[test]
    fn overlaps_are_found_and_no_others(
        runs in proptest::collection::vec((any::<bool>(), 1_u64..3, 0_u64..200, 0_usize..200, 1_u64..20), 1..8),
    ) {
        let parts: Vec<Part> = runs
            .iter()
            .map(|&(reads, region, remote, local, bytes)| {
                let direction = if reads { Direction::Read } else { Direction::Write };
                part(direction, region, &[(remote, local, bytes)])
            })
            .collect();
        let target = |part: &Part| {
            let run = part.runs[0];
            match part.direction {
                Direction::Read => (0, run.local as u64, run.local as u64 + run.bytes),
                Direction::Write => (part.handle.region, run.remote, run.remote + run.bytes),
            }
        };
        let meets = |one: &Part, other: &Part| {
            let (one, other) = (target(one), target(other));
            one.0 == other.0 && one.1 < other.2 && other.1 < one.2
        };
        let overlap = (0..parts.len()).any(|one| (0..one).any(|other| meets(&parts[one], &parts[other])));
        match check(&parts) {
            Ok(()) => prop_assert!(!overlap),
            Err(Misuse::Overlap { part, other }) => prop_assert!(meets(&parts[part], &parts[other])),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn no_numbers_overflow(
        shape in proptest::collection::vec(1_u64.., 0..4),
        item in any::<u64>(),
        offset in any::<u64>(),
        remote in proptest::collection::vec(any::<i64>(), 4),
        local in proptest::collection::vec(any::<i64>(), 4),
        address in any::<usize>(),
    ) {
        let count = shape.len();
        if let Ok(runs) = strided(&shape, item, offset, &remote[..count], address, &local[..count]) {
            for run in runs {
                prop_assert!(run.remote.checked_add(run.bytes).is_some());
                prop_assert!((run.local as u64).checked_add(run.bytes).is_some());
            }
        }
    }
}

#[test]
fn rows_of_a_matrix_are_one_run_and_columns_are_not() {
    let rows = strided(&[512, 1024], 4, 4096 * 100, &[4096, 4], 0x10000, &[4096, 4]).unwrap();
    assert_eq!(rows.len(), 1);
    let columns = strided(&[1024, 10], 4, 40, &[4096, 4], 0x10000, &[40, 4]).unwrap();
    assert_eq!(columns.len(), 1024);
    assert_eq!(
        columns[1],
        Run {
            remote: 4136,
            local: 0x10000 + 40,
            bytes: 40
        }
    );
    // Both sides the same way round, backwards: as good as forwards.
    let backwards = strided(&[100], 4, 396, &[-4], 0x10000 + 396, &[-4]).unwrap();
    assert_eq!(
        backwards,
        vec![Run {
            remote: 0,
            local: 0x10000,
            bytes: 400
        }]
    );
}

#[test]
fn views_that_cannot_be_are_refused() {
    assert_eq!(
        strided(&[4, 0], 4, 0, &[16, 4], 64, &[16, 4]),
        Err(Misuse::EmptyView)
    );
    assert_eq!(strided(&[4], 0, 0, &[4], 64, &[4]), Err(Misuse::EmptyView));
    assert_eq!(strided(&[4], 4, 8, &[-4], 64, &[4]), Err(Misuse::ViewBeyond));
    assert_eq!(strided(&[4], 4, 64, &[4], 8, &[-4]), Err(Misuse::ViewBeyond));
    assert!(matches!(
        strided(&[4], 4, 0, &[4, 4], 64, &[4]),
        Err(Misuse::Dimensions { .. })
    ));
    let torn = strided(&[1 << 23], 1, 0, &[2], 64, &[1]);
    assert_eq!(torn, Err(Misuse::TooManyRuns { runs: 1 << 23 }));
}

#[test]
fn checks_name_the_part() {
    use Direction::{Read, Write};
    assert_eq!(check(&[]), Ok(()));
    let good = part(Read, 1, &[(0, 5000, 1000)]);
    assert_eq!(check(std::slice::from_ref(&good)), Ok(()));
    assert_eq!(
        check(&[good.clone(), part(Read, 1, &[])]),
        Err(Misuse::Empty { part: 1 })
    );
    assert_eq!(
        check(&[good.clone(), part(Read, 1, &[(0, 9000, 0)])]),
        Err(Misuse::Empty { part: 1 })
    );
    assert_eq!(
        check(&[good.clone(), part(Write, 1, &[(1, 0, 1000)])]),
        Err(Misuse::Beyond {
            part: 1,
            end: 1001,
            size: 1000
        })
    );
    assert!(matches!(
        check(&[part(Read, 1, &[(u64::MAX, 0, 2)])]),
        Err(Misuse::Beyond { .. })
    ));
    assert_eq!(
        check(&[part(Read, 1, &[(0, usize::MAX, 2)])]),
        Err(Misuse::Address { part: 0 })
    );
    // A broadcast target meets itself.
    assert_eq!(
        check(&[part(Read, 1, &[(0, 5000, 4), (4, 5000, 4)])]),
        Err(Misuse::Overlap { part: 0, other: 0 })
    );
    // Sources may be read as often as one likes, and one buffer's bytes are not another's.
    assert_eq!(check(&[good.clone(), part(Read, 1, &[(0, 7000, 1000)])]), Ok(()));
    assert_eq!(
        check(&[part(Write, 1, &[(0, 5000, 9)]), part(Write, 2, &[(0, 5000, 9)])]),
        Ok(())
    );
}

#[test]
fn runs_that_continue_each_other_are_joined() {
    let mut runs = Vec::new();
    for at in [0_u64, 10, 20, 40] {
        let run = Run {
            remote: at,
            local: 100 + usize::try_from(at).unwrap(),
            bytes: 10,
        };
        push(&mut runs, run);
    }
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[0].bytes, 30);
}
