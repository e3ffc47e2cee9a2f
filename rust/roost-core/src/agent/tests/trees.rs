//! Trees of owners under random policies, against the rules of `otp`: every fault is told exactly once, as what those rules
//! make of it, and in the end exactly what should run runs.
//!
//! `ROOST_SIM_SEED=17` repeats one seed, `ROOST_SIM_SEEDS=100000` runs so many of them.

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
    /// Mesh by spare.
    spares: BTreeMap<u64, u64>,
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
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rig = Rig::new();
        rig.agent = Agent::new(proc(DRIVER), PATIENCE, u64::MAX, seed);
        Self {
            rig,
            random: Random(seed),
            model: Model::default(),
            processes: BTreeMap::new(),
            spares: BTreeMap::new(),
            killed: Vec::new(),
            due: Vec::new(),
            told: Vec::new(),
            heard: BTreeMap::new(),
            given_up: 0,
            faults: 0,
            places: 0,
        }
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

    // What the world does ------------------------------------------------------------------------------------------------
    fn step(&mut self) {
        match self.below(20) {
            0 | 1 => self.spawn(),
            2..=5 => {
                let ordered = self.those(|process| matches!(process, Process::Ordered { .. }));
                if let Some(key) = self.one_of(&ordered) {
                    self.answer(key);
                }
            }
            6..=8 => {
                let started = self.those(|process| *process == Process::Running { is_up: false });
                if let Some(key) = self.one_of(&started) {
                    self.come_up(key);
                }
            }
            9..=11 => {
                let running = self.those(|process| matches!(process, Process::Running { .. }));
                if let Some(key) = self.one_of(&running) {
                    let (code, known) = (self.below(3), self.below(2) == 0);
                    self.die(key, code, known);
                }
            }
            12 => {
                let untold =
                    self.those(|process| matches!(process, Process::Ending { tell_ns: Some(_), .. }));
                if let Some(key) = self.one_of(&untold) {
                    let code = self.below(3);
                    self.exit(key, code);
                }
            }
            13 | 14 => {
                let ending = self.those(|process| matches!(process, Process::Ending { .. }));
                if let Some(key) = self.one_of(&ending) {
                    self.go(key);
                }
            }
            15 => self.ask(0),
            16 => self.ask(1),
            17 => self.ask(2),
            _ => {
                let ms = [1, 60, 500, 5_000, 30_000][usize::try_from(self.below(5)).expect("an index")];
                self.pass(ms * MS);
            }
        }
        self.settle();
    }

    fn policy(&mut self) -> Option<Policy> {
        let pause_ns = self.below(3) * 100 * MS;
        (self.below(5) > 0).then(|| Policy {
            limit: u32::try_from(self.below(4)).expect("small"),
            within_ns: [5, 60][usize::try_from(self.below(2)).expect("an index")] * SECOND,
            backoff_min_ns: pause_ns,
            backoff_max_ns: pause_ns * 8,
            scope: [Scope::One, Scope::All, Scope::Rest][usize::try_from(self.below(3)).expect("an index")],
            when: [When::Failed, When::Always][usize::try_from(self.below(2)).expect("an index")],
            while_down: WhileDown::Fail,
        })
    }

    fn spawn(&mut self) {
        let first = self.model.0.len() as u64 + 1;
        let ranks: Vec<u64> = (first..first + 1 + self.below(3)).collect();
        if self.model.0.len() + self.spares.len() + ranks.len() + 2 > PROCS_MAX {
            return;
        }
        let mut owners = self.those(|process| *process == Process::Running { is_up: true });
        owners.retain(|&(number, _)| self.model.runs(number));
        owners.push((DRIVER, 0));
        let owner = self.one_of(&owners).map_or(DRIVER, |(number, _)| number);
        let policy = self.policy();
        let count = if policy.is_some() { self.below(3) } else { 0 };
        let base = if self.below(2) == 0 {
            warm(&ranks)
        } else {
            spawn(&ranks)
        };
        let spawned = Spawn {
            mesh: mesh(first),
            owner: proc(owner),
            policy,
            ..base
        };
        let spawned = match policy {
            Some(policy) => spares::with_spares(spawned, count, policy),
            None => spawned,
        };
        for &number in &ranks {
            self.model.spawn(number, first, owner, policy);
        }
        self.spares
            .extend(spawned.spares.iter().map(|spare| (spare.proc.get(), first)));
        self.rig.say(owner, ToAgent::Spawn(Box::new(spawned)));
    }

    /// The template's answer to an order.
    fn answer(&mut self, key: (u64, u32)) {
        let (proc, incarnation) = (proc(key.0), Incarnation(key.1));
        match self.below(8) {
            0 => {
                self.processes.remove(&key);
                self.fault(key, false);
                let reason = "no memory".to_owned();
                self.rig.input(Input::LaunchFailed {
                    proc,
                    incarnation,
                    reason,
                });
            }
            1 => self.lose(key),
            _ => self.launch(key),
        }
    }

    fn launch(&mut self, key: (u64, u32)) {
        self.processes.insert(key, Process::Running { is_up: false });
        let (proc, incarnation) = (proc(key.0), Incarnation(key.1));
        self.rig.input(Input::Launched {
            proc,
            incarnation,
            pid: 7,
        });
    }

    fn lose(&mut self, key: (u64, u32)) {
        let Some(Process::Ordered { lost }) = self.processes.remove(&key) else {
            return;
        };
        let is_asked = self
            .model
            .0
            .get(&key.0)
            .is_some_and(|child| child.asked.is_some());
        if lost == LAUNCHES_LOST_MAX || is_asked || self.killed.contains(&key) {
            self.fault(key, false);
        }
        let (proc, incarnation) = (proc(key.0), Incarnation(key.1));
        self.rig.input(Input::LaunchLost { proc, incarnation });
        self.take();
        if let Some(Process::Ordered { lost: again }) = self.processes.get_mut(&key) {
            *again = lost + 1;
        }
    }

    fn come_up(&mut self, key: (u64, u32)) {
        self.processes.insert(key, Process::Running { is_up: true });
        self.rig.say(key.0, ToAgent::Up);
    }

    fn die(&mut self, key: (u64, u32), code: u64, known: bool) {
        let was_up = self.processes[&key] == Process::Running { is_up: true };
        let tell_ns = (!known).then(|| self.rig.now_ns + crate::limits::EXIT_STATUS_WAIT_NS);
        self.processes.insert(key, Process::Ending { tell_ns, was_up });
        if known {
            self.fault(key, was_up && code == 0);
        } else if let Some(child) = self.model.0.get_mut(&key.0) {
            child.stage = Stage::Ending;
        }
        let exit = known.then(|| status(code));
        let (proc, incarnation) = (proc(key.0), Incarnation(key.1));
        let seen = Seen {
            exit,
            ..Seen::default()
        };
        self.rig.input(Input::Died {
            proc,
            incarnation,
            seen,
        });
    }

    fn exit(&mut self, key: (u64, u32), code: u64) {
        let Some(Process::Ending { tell_ns, was_up }) = self.processes.get_mut(&key) else {
            return;
        };
        *tell_ns = None;
        let clean = *was_up && code == 0;
        self.fault(key, clean);
        let (proc, incarnation) = (proc(key.0), Incarnation(key.1));
        self.rig.input(Input::Exited {
            proc,
            incarnation,
            exit: status(code),
        });
    }

    fn go(&mut self, key: (u64, u32)) {
        if let Some(Process::Ending { tell_ns: Some(_), .. }) = self.processes.get(&key) {
            // Nobody will say how it ended: its memory is free, its end is told in its time.
            self.pass(crate::limits::EXIT_STATUS_WAIT_NS);
        }
        self.processes.remove(&key);
        self.rig.go(key.0, key.1);
    }

    /// Somebody stops, restarts or kills a few procs.
    fn ask(&mut self, what: u64) {
        let all: Vec<u64> = self.model.0.keys().copied().collect();
        let Some(first) = self.one_of(&all) else { return };
        let mesh = self.model.0[&first].mesh;
        let whole = self.below(2) == 0;
        let numbers: Vec<u64> = all
            .into_iter()
            .filter(|number| *number == first || (whole && self.model.0[number].mesh == mesh))
            .collect();
        let procs: Vec<ProcId> = numbers.iter().map(|&number| proc(number)).collect();
        let (reason, patience) = ("asked".to_owned(), PATIENCE);
        let message = match what {
            0 => {
                for number in numbers {
                    let told = self.model.stop(number);
                    self.due.extend(told);
                }
                ToAgent::Stop {
                    procs,
                    reason,
                    patience,
                }
            }
            1 => {
                for number in numbers {
                    self.model.restart(number);
                }
                ToAgent::Restart {
                    procs,
                    reason,
                    patience,
                }
            }
            _ => {
                let running = numbers.iter().map(|number| (*number, self.model.0[number].life));
                self.killed
                    .extend(running.filter(|key| self.model.runs(key.0) && self.processes.contains_key(key)));
                ToAgent::Kill { procs, reason: None }
            }
        };
        self.rig.say(DRIVER, message);
    }

    /// Time passes, with all that comes due.
    fn pass(&mut self, by_ns: u64) {
        let until_ns = self.rig.now_ns + by_ns;
        loop {
            self.settle();
            let next_ns = self.rig.agent.next_wakeup_ns().filter(|&at_ns| at_ns <= until_ns);
            self.rig.now_ns = next_ns.unwrap_or(until_ns).max(self.rig.now_ns);
            for key in self.those(|process| matches!(process, Process::Ending { tell_ns: Some(_), .. })) {
                if let Some(Process::Ending { tell_ns, .. }) = self.processes.get_mut(&key)
                    && tell_ns.is_some_and(|at_ns| at_ns <= self.rig.now_ns)
                {
                    *tell_ns = None;
                    self.fault(key, false);
                }
            }
            self.rig.input(Input::Tick);
            if next_ns.is_none() {
                break;
            }
        }
        self.settle();
    }

    /// The end of a process is told now: what do the rules say?
    fn fault(&mut self, key: (u64, u32), clean: bool) {
        if self.spares.contains_key(&key.0) {
            return;
        }
        self.faults += 1;
        let told = self.model.ended(self.rig.now_ns, key.0, clean);
        self.due.extend(told);
    }

    // What the agent says -------------------------------------------------------------------------------------------------
    /// Take in what it has said, and compare.
    fn settle(&mut self) {
        self.take();
        self.due.sort_unstable();
        self.told.sort_unstable();
        assert_eq!(self.told, self.due, "what was told, and what the rules say");
        self.due.clear();
        self.told.clear();
    }

    fn take(&mut self) {
        for output in self.rig.take() {
            match output {
                Output::Launch(order) => self.ordered(order.proc.get(), order.incarnation.0),
                Output::TakePlace(place) => self.placed(&place),
                Output::Send {
                    to,
                    message: ToClient::Member(member),
                    ..
                } => self.heard(to.get(), &member),
                Output::Send {
                    to,
                    message: ToClient::Warning { text },
                    ..
                } => {
                    assert!(text.contains("is not replaced"), "{to}: {text}");
                    self.given_up += 1;
                }
                Output::Signal {
                    proc,
                    incarnation,
                    signal: Signal::Kill,
                } => {
                    let key = (proc.get(), incarnation.0);
                    if !self.killed.contains(&key) {
                        self.killed.push(key);
                    }
                }
                _ => {}
            }
        }
    }

    fn ordered(&mut self, number: u64, life: u32) {
        let left: Vec<_> = self.processes.keys().filter(|(one, _)| *one == number).collect();
        assert!(
            left.is_empty() || left == [&(number, life)],
            "proc {number} starts while {left:?} has its memory"
        );
        self.processes
            .insert((number, life), Process::Ordered { lost: 0 });
        if !self.spares.contains_key(&number) {
            self.begun(number, life);
        }
    }

    fn placed(&mut self, place: &Place) {
        self.places += 1;
        let ((spare, spare_life), (number, life)) = (place.spare, place.proc);
        let process = self.processes.remove(&(spare.get(), spare_life.0));
        assert_eq!(
            process,
            Some(Process::Running { is_up: true }),
            "a spare that is ready"
        );
        assert_eq!(
            self.spares[&spare.get()],
            self.model.0[&number.get()].mesh,
            "of the same mesh"
        );
        assert!(
            !self.processes.keys().any(|(one, _)| *one == number.get()),
            "the memory of the dead is free"
        );
        self.processes
            .insert((number.get(), life.0), Process::Running { is_up: false });
        self.begun(number.get(), life.0);
    }

    fn begun(&mut self, number: u64, life: u32) {
        let stage = self.model.0[&number].stage;
        assert!(
            matches!(stage, Stage::Runs | Stage::Down),
            "proc {number} starts, and should not: {stage:?}"
        );
        if life > 0 && stage == Stage::Down {
            self.model.started(number, life);
        }
    }

    fn heard(&mut self, to: u64, member: &Member) {
        let (number, life) = (member.proc.get(), member.incarnation.0);
        assert!(
            !self.spares.contains_key(&number) && !self.spares.contains_key(&to),
            "spares are nobody's business"
        );
        let verdict = match &member.status {
            Status::Dead { death } if death.kind == DeathKind::Stopped => Verdict::Again,
            Status::Dead { .. } => Verdict::Mended,
            Status::Failed { earlier, .. } => Verdict::Failed(earlier.len()),
            Status::Stopped { .. } => Verdict::Stopped,
            _ => return,
        };
        let owner = self.model.0[&number].owner;
        if to == DRIVER {
            self.told.push((number, life, verdict));
            if self.model.runs(owner) {
                *self.heard.entry((owner, number, life)).or_default() += 1;
            }
        }
        if to == owner {
            *self.heard.entry((owner, number, life)).or_default() -= 1;
        }
    }

    // The end ---------------------------------------------------------------------------------------------------------------
    /// Let everything that is under way come to its end, and see who is there.
    fn rest(&mut self) {
        for _ in 0..10_000 {
            let before = self.processes.clone();
            for (key, process) in before {
                match process {
                    Process::Ordered { .. } => self.launch(key),
                    Process::Running { .. } if self.has_to_end(key) => self.die(key, 1, true),
                    Process::Running { is_up: false } => self.come_up(key),
                    Process::Running { .. } => {}
                    Process::Ending { .. } => self.go(key),
                }
                self.settle();
            }
            self.pass(SECOND);
            let is_quiet = self
                .processes
                .iter()
                .all(|(&key, &process)| process == Process::Running { is_up: true } && !self.has_to_end(key));
            if is_quiet && self.model.0.values().all(|child| child.stage != Stage::Down) && self.spares_rest()
            {
                return;
            }
        }
        panic!("it does not come to rest: {:?}\n{:?}", self.processes, self.model);
    }

    fn has_to_end(&self, key: (u64, u32)) -> bool {
        let is_asked = self
            .model
            .0
            .get(&key.0)
            .is_some_and(|child| child.asked.is_some());
        let is_useless = self
            .spares
            .get(&key.0)
            .is_some_and(|mesh| !self.needs_spares(*mesh));
        is_asked || is_useless || self.killed.contains(&key)
    }

    fn needs_spares(&self, mesh: u64) -> bool {
        self.model
            .0
            .values()
            .any(|child| child.mesh == mesh && child.stage != Stage::Over)
    }

    /// Whether all spares that should be there are.
    fn spares_rest(&self) -> bool {
        let is_there = |spare: u64| self.processes.keys().any(|&(number, _)| number == spare);
        let missing = self
            .spares
            .iter()
            .filter(|&(&spare, &mesh)| self.needs_spares(mesh) && !is_there(spare))
            .count();
        missing <= self.given_up
    }

    fn check_end(&mut self) {
        for (&number, child) in &self.model.0 {
            let has_process = self.processes.keys().any(|&(one, _)| one == number);
            assert_eq!(
                has_process,
                child.stage == Stage::Runs,
                "proc {number}: {child:?}"
            );
        }
        for (key, unequal) in &self.heard {
            assert_eq!(
                *unequal, 0,
                "the owner heard {key:?} as often as it was told, and not one time more"
            );
        }
        self.rig.input(Input::Close);
        assert_eq!(self.rig.launches(), []);
        for (number, life) in std::mem::take(&mut self.processes).into_keys() {
            self.rig.crash(number, life);
        }
        assert!(self.rig.agent.is_empty(), "nothing outlives the job");
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
    let (next, mut faults, mut places) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
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
                }
            });
        }
    });
    println!("{seeds} seeds: {faults:?} faults, {places:?} places taken by spares");
    assert!(
        *faults.get_mut() > seeds && *places.get_mut() * 10 > seeds,
        "the runs are worth something"
    );
}
