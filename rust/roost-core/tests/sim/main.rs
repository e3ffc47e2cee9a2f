//! The seeded simulator: a few procs that drive the real sessions and the real credit over a network that delays,
//! cuts and loses, while procs stall, die and come back. Each seed is one run; the same seed is the same run.
//!
//! `ROOST_SIM_SEED=17` repeats one seed, `ROOST_SIM_SEEDS=100000` runs so many of them.

mod ahead;
mod frames;
mod ledger;
mod links;
mod membership;
mod network;
mod peer;
mod random;
mod seeds;
mod setup;
mod traffic;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};

use seeds::{Seed, number};
use world::World;

fn run(seed: u64) -> World {
    let _told = Seed(seed, "sim");
    World::run(seed)
}

#[test]
fn promises_hold_for_every_seed() {
    if let Some(seed) = number("ROOST_SIM_SEED") {
        let world = run(seed);
        println!(
            "{:#?}\n{:#?}\n{:#?}",
            world.setup, world.ledger.counts, world.tally
        );
        return;
    }
    let seeds = number("ROOST_SIM_SEEDS").unwrap_or(1_000);
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    run(seed);
                }
            });
        }
    });
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..20 {
        let (first, second) = (run(seed), run(seed));
        assert_eq!(
            (first.ledger.digest(), first.now),
            (second.ledger.digest(), second.now),
            "seed {seed}"
        );
    }
}

/// A simulator in which nothing happens would find nothing.
#[test]
fn every_fault_happens() {
    let mut sum = world::Tally::default();
    let mut counts = ledger::Counts::default();
    let mut refused = 0;
    for seed in 0..150 {
        let world = run(seed);
        let (tally, count) = (world.tally, world.ledger.counts);
        refused += world.ledger.refused;
        sum.cuts += tally.cuts;
        sum.crashes += tally.crashes;
        sum.losses += tally.losses;
        sum.resumes += tally.resumes;
        sum.doubles += tally.doubles;
        sum.full += tally.full;
        sum.held += tally.held;
        sum.refused_hellos += tally.refused_hellos;
        sum.ahead += tally.ahead;
        sum.given_up += tally.given_up;
        counts.answered += count.answered;
        counts.dropped += count.dropped;
        counts.not_delivered += count.not_delivered;
        counts.unknown += count.unknown;
    }
    println!("{sum:#?} {counts:#?} {refused} refused");
    let all = [
        sum.cuts,
        sum.crashes,
        sum.resumes,
        sum.doubles,
        sum.full,
        sum.held,
        sum.refused_hellos,
        sum.ahead,
        refused,
    ];
    assert!(
        all.into_iter().all(|count| count > 5),
        "{sum:?}, {refused} refused"
    );
    assert!(sum.given_up > 0, "{sum:?}");
    let outcomes = [
        counts.answered,
        counts.dropped,
        counts.not_delivered,
        counts.unknown,
    ];
    assert!(outcomes.into_iter().all(|count| count > 100), "{counts:?}");
}
