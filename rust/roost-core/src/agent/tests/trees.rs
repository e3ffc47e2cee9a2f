//! Trees of owners under random policies, against the rules of `otp`: every fault is told exactly once, as what those rules
//! make of it, and in the end exactly what should run runs. Hosts come and go meanwhile.
//!
//! `ROOST_SIM_SEED=17` repeats one seed, `ROOST_SIM_SEEDS=100000` runs so many of them.

mod acting;
mod checking;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::otp::{Model, Stage, Verdict};
use super::*;
use crate::limits::LAUNCHES_LOST_MAX;

/// As many as one template has in its hands, so that none waits for another's answer.
const PROCS_MAX: usize = 16;
const PATIENCE: Patience = Patience {
    grace_ns: SECOND,
    sigterm_ns: SECOND,
};

/// A process as the world has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    /// Asked of a template, and lost with one so often.
    Ordered {
        lost: u32,
    },
    Running {
        is_up: bool,
    },
    /// Ended; its memory is still there. `tell_ns`: when its end is told without an exit status, if that is still to come.
    Ending {
        tell_ns: Option<u64>,
        was_up: bool,
    },
}

struct World {
    rig: Rig,
    random: Random,
    model: Model,
    processes: BTreeMap<(u64, u32), Process>,
    /// Where they are.
    on: BTreeMap<(u64, u32), u64>,
    /// Hosts that procs can be started on, and how many there were.
    hosts: Vec<u64>,
    joined: u64,
    /// Mesh and host by spare.
    spares: BTreeMap<u64, (u64, u64)>,
    /// Ranks that are to get SIGKILL as soon as there is a process.
    killed: Vec<(u64, u32)>,
    /// What the rules say is told in this step, and what was told.
    due: Vec<(u64, u32, Verdict)>,
    told: Vec<(u64, u32, Verdict)>,
    /// Ends of a proc that its owner heard of, and those that it should have.
    heard: BTreeMap<(u64, u64, u32), i64>,
    /// Spares that are not replaced any more.
    given_up: usize,
    faults: u64,
    places: u64,
    losses: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rig = Rig::new();
        rig.agent = Agent::new(proc(DRIVER), host(OWN), PATIENCE, u64::MAX, seed);
        let mut world = Self {
            rig,
            random: Random(seed),
            model: Model::default(),
            processes: BTreeMap::new(),
            on: BTreeMap::new(),
            hosts: vec![OWN],
            joined: OWN,
            spares: BTreeMap::new(),
            killed: Vec::new(),
            due: Vec::new(),
            told: Vec::new(),
            heard: BTreeMap::new(),
            given_up: 0,
            faults: 0,
            places: 0,
            losses: 0,
        };
        world.join();
        world.join();
        world
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "small"
    )]
    fn below(&mut self, bound: u64) -> u64 {
        (self.random.fraction() * bound as f64) as u64
    }

    fn one_of<T: Copy>(&mut self, those: &[T]) -> Option<T> {
        let length = those.len() as u64;
        (length > 0).then(|| those[usize::try_from(self.below(length)).expect("an index")])
    }

    fn those(&self, is_meant: impl Fn(&Process) -> bool) -> Vec<(u64, u32)> {
        self.processes
            .iter()
            .filter(|(_, process)| is_meant(process))
            .map(|(&key, _)| key)
            .collect()
    }
}

fn status(code: u64) -> Exit {
    match code {
        0 => Exit::Code(0),
        1 => Exit::Code(1),
        _ => Exit::Signal(9),
    }
}

/// Says which seed it was when a run fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let seed = self.0;
            eprintln!(
                "seed {seed} failed; again: ROOST_SIM_SEED={seed} cargo test --package roost-core trees"
            );
        }
    }
}

fn run(seed: u64) -> World {
    let seed = Seed(seed);
    let mut world = World::new(seed.0);
    for _ in 0..20 + world.below(100) {
        world.step();
    }
    world.rest();
    world.check_end();
    world
}

#[expect(
    clippy::disallowed_methods,
    reason = "which seeds to run is told by who runs the tests"
)]
fn number(variable: &str) -> Option<u64> {
    Some(std::env::var(variable).ok()?.parse().expect("a number"))
}

#[test]
fn every_fault_is_told_once_and_as_the_rules_say() {
    if let Some(seed) = number("ROOST_SIM_SEED") {
        run(seed);
        return;
    }
    let seeds = number("ROOST_SIM_SEEDS").unwrap_or(1_000);
    let next = AtomicU64::new(0);
    let [mut faults, mut places, mut losses] = [0; 3].map(AtomicU64::new);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        break;
                    }
                    let world = run(seed);
                    faults.fetch_add(world.faults, Ordering::Relaxed);
                    places.fetch_add(world.places, Ordering::Relaxed);
                    losses.fetch_add(world.losses, Ordering::Relaxed);
                }
            });
        }
    });
    println!(
        "{seeds} seeds: {faults:?} faults, {places:?} places taken by spares, {losses:?} ends with a host"
    );
    assert!(
        *faults.get_mut() > seeds && *places.get_mut() * 10 > seeds && *losses.get_mut() > seeds,
        "the runs are worth something"
    );
}
