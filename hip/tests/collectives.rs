//! The binding of RCCL and NCCL end to end: processes that move real bytes through the stand-in, die, hang and fail.
//!
//! Each rank is this program again, with the rank's number in its environment. Rank and parent speak lines: the rank says
//! how far it is, the parent plays supervision and says what it knows of deaths.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_possible_truncation,
    reason = "a test with small numbers, whose ranks are told who they are by their environment"
)]

mod ranks;
mod standin;

use ranks::{Group, median_and_p99, rounds};

const RANKS: usize = 8;

/// What a rank does; the parent's tests below start it by name.
#[test]
#[ignore = "a rank: started by the tests of this file"]
fn rank() {
    ranks::child::main();
}

#[test]
fn every_collective_of_every_type_and_odd_size() {
    let mut group = Group::start(RANKS, "all", "");
    let said = group.wait_all("ok");
    println!("{} results compared in each of {RANKS} ranks", said[0]);
    group.end();
}

#[test]
fn calls_that_block_give_the_same() {
    let mut group = Group::start(3, "all blocking", "");
    group.wait_all("ok");
    group.end();
}

#[test]
fn a_death_in_the_middle_releases_every_survivor_and_the_group_is_made_again() {
    let mut group = Group::start(RANKS, "death", "");
    let mut times = Vec::new();
    for round in 0..rounds() {
        group.wait_all("inside");
        let victim = (round * 5 + 3) % RANKS;
        group.kill(victim);
        // Nobody is released by itself: the library waits for the dead for ever.
        for rank in (0..RANKS).filter(|rank| *rank != victim) {
            group.tell(rank, &format!("dead {victim}"));
        }
        for rank in (0..RANKS).filter(|rank| *rank != victim) {
            let said = group.wait(rank, "aborted");
            assert!(said.contains(&format!("rank {victim} died")), "{said}");
            times.push(said.split(' ').next().unwrap().parse::<f64>().unwrap());
        }
        let id = group.new_id();
        group.restart(victim, "death", &id);
        for rank in (0..RANKS).filter(|rank| *rank != victim) {
            group.tell(rank, &format!("again {id}"));
        }
    }
    group.wait_all("inside");
    group.end();
    let (median, p99) = median_and_p99(&mut times);
    println!(
        "{} kills: survivors raise after {median:.2} ms (median), {p99:.2} ms (99 of 100)",
        rounds()
    );
    assert!(
        p99 < 1000.0,
        "100 ms are promised, on a machine that has time for it"
    );
}

#[test]
fn split_children_are_aborted_with_their_parent() {
    let mut group = Group::start(RANKS, "split", "");
    group.wait_all("inside");
    group.kill(2);
    for rank in (0..RANKS).filter(|rank| *rank != 2) {
        group.tell(rank, "dead 2");
        let said = group.wait(rank, "aborted");
        assert!(said.contains("rank 2 died"), "{said}");
    }
    group.end();
}

#[test]
fn an_abort_that_hangs_is_bounded_and_told() {
    let mut group = Group::start(2, "death", "hang_abort=1");
    group.wait_all("inside");
    group.kill(1);
    group.tell(0, "dead 1");
    let said = group.wait(0, "stuck");
    assert_eq!(said, "1 of 1");
    group.kill(0);
    group.end();
}

#[test]
fn a_start_that_hangs_can_be_aborted() {
    let mut group = Group::start(2, "death", "hang_init=1");
    group.tell(0, "dead 1");
    let said = group.wait(0, "aborted");
    assert!(said.contains("rank 1 died"), "{said}");
    group.end();
}

#[test]
fn an_error_is_told_with_what_the_library_says_of_it() {
    let mut group = Group::start(2, "error", "fail=2:6");
    for said in group.wait_all("error") {
        let wanted = "ncclCommGetAsyncError returned 6 (remote process exited or there was a network error): operation 2 failed";
        assert!(said.starts_with(wanted), "{said}");
    }
    group.end();
}

#[test]
fn a_rank_that_does_not_come_is_felt_as_time_that_is_over() {
    let mut group = Group::start_with(3, "late", |rank| if rank == 1 { "hang=2" } else { "" });
    for rank in [0, 2] {
        let said = group.wait(rank, "late");
        assert_eq!(said, "a collective operation did not end within 300 ms");
    }
    group.end();
}

#[test]
fn slow_ranks_are_waited_for() {
    let mut group = Group::start_with(4, "few", |rank| if rank == 2 { "slow=40" } else { "" });
    group.wait_all("ok");
    group.end();
}
