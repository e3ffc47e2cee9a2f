//! Ranks are threads here, each with a mapping of its own.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use super::*;

fn groups(ranks: usize) -> Vec<HostGroup> {
    let (first, offer) = HostGroup::make(ranks).unwrap();
    let others: Vec<_> = (1..ranks)
        .map(|rank| HostGroup::open(&offer, ranks, rank).unwrap())
        .collect();
    std::iter::once(first).chain(others).collect()
}

fn sum_of(numbers: &mut [f32]) -> Reduction {
    Reduction {
        address: numbers.as_mut_ptr().addr(),
        count: numbers.len(),
        data_type: DataType::F32,
        op: ReduceOp::Sum,
    }
}

type Outcome = Result<(), HostGroupError>;

/// Begins one; what comes of it comes by the channel, also when it has come already.
fn begin(group: &HostGroup, reduction: Reduction) -> Receiver<Outcome> {
    let (tell, told): (SyncSender<Outcome>, _) = sync_channel(1);
    let later = tell.clone();
    // SAFETY: each test waits for what comes before it lets the memory go.
    match unsafe { group.begin(reduction, Box::new(move |outcome| later.send(outcome).unwrap())) } {
        Ok(Begun::Ended) => tell.send(Ok(())).unwrap(),
        Ok(Begun::UnderWay) => {}
        Err(error) => tell.send(Err(error)).unwrap(),
    }
    told
}

#[test]
fn sums_of_every_size_in_a_row_and_several_under_way() {
    // Nothing, small and large, tails, several pieces, and the bounds between them.
    let sizes = [0, 1, 257, 5461, 5462, 16384, 65536, 65537, 300_001];
    std::thread::scope(|scope| {
        for (rank, group) in groups(3).into_iter().enumerate() {
            scope.spawn(move || {
                for round in 0..20 {
                    let mut all: Vec<Vec<f32>> = sizes
                        .iter()
                        .map(|size| (0..*size).map(|at| ((at + round) % 97 + rank) as f32).collect())
                        .collect();
                    let begun: Vec<_> = all.iter_mut().map(|one| begin(&group, sum_of(one))).collect();
                    for one in begun {
                        assert_eq!(one.recv().unwrap(), Ok(()));
                    }
                    for one in &all {
                        for (at, found) in one.iter().enumerate() {
                            assert_eq!(
                                *found,
                                (3 * ((at + round) % 97) + 3) as f32,
                                "at {at} of {}",
                                one.len()
                            );
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn an_abort_frees_who_waits_in_a_small_one_a_large_one_and_behind_them() {
    for size in [1, 300_000] {
        let [group, other] = groups(2).try_into().unwrap();
        let (mut first, mut second) = (vec![1.0; size], vec![1.0; size]);
        let begun = [
            begin(&group, sum_of(&mut first)),
            begin(&group, sum_of(&mut second)),
        ];
        assert!(begun[0].recv_timeout(Duration::from_millis(50)).is_err());
        assert_eq!((group.lagging(), other.lagging()), (vec![1], vec![]));
        let aborted = Instant::now();
        group.abort("rank 1 died");
        let wanted = HostGroupError::Aborted("rank 1 died".to_owned());
        for one in begun {
            assert_eq!(one.recv().unwrap(), Err(wanted.clone()));
        }
        assert!(
            aborted.elapsed() < Duration::from_millis(500),
            "{:?}",
            aborted.elapsed()
        );
        group.abort("once more");
        assert_eq!(begin(&group, sum_of(&mut first)).recv().unwrap(), Err(wanted));
    }
}

#[test]
fn ranks_in_different_operations_are_told_so() {
    let [one, other] = groups(2).try_into().unwrap();
    let (mut ones, mut others) = (vec![1.0; 10], vec![1.0; 11]);
    let begun = begin(&one, sum_of(&mut ones));
    let told = begin(&other, sum_of(&mut others))
        .recv()
        .unwrap()
        .unwrap_err()
        .to_string();
    assert_eq!(
        told,
        "rank 0 is in an operation on 40 bytes of f32 (sum), this one in one on 44 bytes of f32 (sum)"
    );
    let told = begun.recv().unwrap().unwrap_err().to_string();
    assert!(
        told.starts_with("rank 1 is in an operation on 44 bytes"),
        "{told}"
    );
    // Nothing was written.
    assert_eq!((ones[0], others[0]), (1.0, 1.0));
}

#[test]
fn an_offer_that_is_not_to_be_reached_is_none() {
    let (group, offer) = HostGroup::make(2).unwrap();
    assert!(HostGroup::open(&offer, 2, 1).is_some());
    assert!(HostGroup::open(&offer, 3, 1).is_none(), "another size");
    assert!(HostGroup::open(&offer, 2, 2).is_none(), "no rank of it");
    let another_host = offer.replacen(&offer[..4], "none", 1);
    assert!(HostGroup::open(&another_host, 2, 1).is_none());
    let (another, its_offer) = HostGroup::make(2).unwrap();
    // The same descriptor of the same process, which has become another group's.
    let words: Vec<&str> = its_offer.split(' ').collect();
    let stale = [
        &offer.split(' ').take(2).collect::<Vec<_>>()[..],
        &words[2..3],
        &offer.split(' ').skip(3).collect::<Vec<_>>()[..],
    ];
    assert!(
        HostGroup::open(&stale.concat().join(" "), 2, 1).is_none(),
        "another group's memory"
    );
    for nonsense in ["", "a b c", "a b c d e"] {
        assert!(HostGroup::open(nonsense, 2, 1).is_none(), "{nonsense:?}");
    }
    group.close_door();
    assert!(HostGroup::open(&offer, 2, 1).is_none(), "closed");
    assert!(HostGroup::make(0).is_err() && HostGroup::make(RANKS_MAX + 1).is_err());
    assert!(HostGroup::make(RANKS_MAX).is_ok());
    drop(another);
}
