//! The seeded simulator of trees: one sender, many hosts with procs on them, and carriers between them that get lost, come late,
//! come twice, or meet hosts that are not reached, while the sessions' own connections are cut and made anew, and procs are
//! killed. Each seed is one run; the same seed is the same run.
//!
//! `ROOST_SIM_SEED=17` repeats one seed, `ROOST_SIM_SEEDS=100000` runs so many of them.

mod connection;
mod death;
mod end;
#[path = "../sim/random.rs"]
mod random;
#[path = "../sim/seeds.rs"]
mod seeds;
mod tally;
mod tree;
mod world;

use seeds::{Seed, number};
use tally::Tally;
use world::World;

fn run(seed: u64) -> Tally {
    let _told = Seed(seed, "trees");
    World::run(seed)
}

#[test]
fn each_proc_gets_its_own_in_order_and_once_for_every_seed() {
    if let Some(seed) = number("ROOST_SIM_SEED") {
        println!("{:#?}", run(seed));
        return;
    }
    let mut sum = Tally::default();
    for seed in 0..number("ROOST_SIM_SEEDS").unwrap_or(1_000) {
        let tally = run(seed);
        sum.add(&tally);
    }
    println!("{sum:#?}");
    // A simulator in which nothing happens would find nothing.
    let Tally {
        delivered,
        answered,
        posted,
        lost,
        unreached,
        doubled,
        taken_back,
        overtaken,
        held,
        cuts,
        forgotten,
        deaths,
        last_words,
    } = sum;
    let all = [
        delivered, answered, posted, lost, unreached, doubled, taken_back, overtaken, held, cuts, forgotten,
        deaths, last_words,
    ];
    assert!(all.into_iter().all(|count| count > 50), "{sum:?}");
}

#[test]
fn one_seed_is_one_run() {
    for seed in 0..10 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
