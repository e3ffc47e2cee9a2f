//! Ranks are threads here, each with a mapping of its own.

use std::sync::atomic::Ordering;
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
        purpose: Purpose {
            verb: Verb::AllReduce,
            root: 0,
            number: 1,
        },
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
        "rank 0 is in all_reduce of 40 bytes of f32 (sum), operation 1; and this rank in all_reduce of 44 bytes of f32 (sum), operation 1"
    );
    let told = begun.recv().unwrap().unwrap_err().to_string();
    assert!(told.starts_with("rank 1 is in all_reduce of 44 bytes"), "{told}");
    // Nothing was written.
    assert_eq!((ones[0], others[0]), (1.0, 1.0));
}

#[test]
fn who_has_failed_says_nothing_new_to_those_who_have_not_looked_yet() {
    let [one, other] = groups(2).try_into().unwrap();
    let (mut ones, mut others) = (vec![1.0; 10], vec![1.0; 11]);
    let first = begin(&one, sum_of(&mut ones));
    let failed = begin(&other, sum_of(&mut others)).recv().unwrap().unwrap_err();
    // This would be what the first one has wanted all the time.
    let mut again = vec![1.0; 10];
    assert_eq!(begin(&other, sum_of(&mut again)).recv().unwrap(), Err(failed));
    let told = first.recv().unwrap().unwrap_err().to_string();
    assert!(told.starts_with("rank 1 is in all_reduce of 44 bytes"), "{told}");
    let begun = begin(&one, sum_of(&mut ones));
    assert_eq!(begun.recv().unwrap().unwrap_err().to_string(), told);
    assert_eq!((ones[0], others[0], again[0]), (1.0, 1.0, 1.0));
}

#[test]
fn ranks_that_began_other_verbs_or_in_another_order_are_told_so() {
    let mine = sum_of(&mut []).purpose;
    let theirs = [
        (
            Purpose {
                verb: Verb::Reduce,
                ..mine
            },
            "reduce of 8 bytes of f32 (sum) to rank 0, operation 1",
        ),
        (
            Purpose { number: 2, ..mine },
            "all_reduce of 8 bytes of f32 (sum), operation 2",
        ),
    ];
    for (purpose, text) in theirs {
        let [one, other] = groups(2).try_into().unwrap();
        let (mut ones, mut others) = (vec![1.0; 2], vec![1.0; 2]);
        let begun = [
            begin(&one, sum_of(&mut ones)),
            begin(
                &other,
                Reduction {
                    purpose,
                    ..sum_of(&mut others)
                },
            ),
        ];
        let told = begun.map(|one| one.recv().unwrap().unwrap_err().to_string());
        assert!(
            told[0].starts_with(&format!("rank 1 is in {text}; and this rank in")),
            "{told:?}"
        );
        assert!(
            told[1].ends_with(&format!("; and this rank in {text}")),
            "{told:?}"
        );
    }
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

#[test]
fn as_many_ranks_as_there_may_be() {
    std::thread::scope(|scope| {
        for group in groups(RANKS_MAX) {
            scope.spawn(move || {
                for size in [1, 257, 70_001] {
                    let mut numbers = vec![1.0; size];
                    assert_eq!(begin(&group, sum_of(&mut numbers)).recv().unwrap(), Ok(()));
                    assert!(numbers.iter().all(|one| *one == RANKS_MAX as f32), "{size}");
                }
            });
        }
    });
}

#[test]
fn a_rank_that_dies_between_its_word_and_the_bell_leaves_sleepers_that_an_abort_frees() {
    let [group, dead] = groups(2).try_into().unwrap();
    let mut numbers = vec![1.0; 300_000];
    let begun = begin(&group, sum_of(&mut numbers));
    let (bell, lines) = (dead.segment().bell(), dead.segment().lines());
    while bell.sleepers.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // It has said that its piece is there, and no more.
    lines[1].posted.store(1, Ordering::SeqCst);
    assert!(
        begun.recv_timeout(Duration::from_millis(50)).is_err(),
        "somebody rang"
    );
    group.abort("rank 1 died");
    assert_eq!(
        begun.recv().unwrap(),
        Err(HostGroupError::Aborted("rank 1 died".to_owned()))
    );
}

#[test]
fn who_still_reads_the_memory_of_a_group_that_was_let_go_reads_what_was_there() {
    let [first, slow] = groups(2).try_into().unwrap();
    let mut numbers = vec![2.0; 10];
    let begun = begin(&first, sum_of(&mut numbers));
    drop(first);
    assert!(begun.recv().unwrap().is_err());
    // The next group of the same ranks has memory of its own.
    let rebuilt = groups(2);
    std::thread::scope(|scope| {
        for group in rebuilt {
            scope.spawn(move || {
                let mut numbers = vec![3.0; 10];
                assert_eq!(begin(&group, sum_of(&mut numbers)).recv().unwrap(), Ok(()));
                assert!(numbers.iter().all(|one| *one == 6.0));
            });
        }
    });
    let mut late = vec![5.0; 10];
    assert_eq!(begin(&slow, sum_of(&mut late)).recv().unwrap(), Ok(()));
    assert!(late.iter().all(|one| *one == 7.0), "{late:?}");
}
