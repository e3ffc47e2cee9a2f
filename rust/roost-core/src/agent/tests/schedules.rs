//! Any order of events, on several hosts that come and go: promises that hold after each.

mod acting;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// What the world may do next; numbers choose among what is there.
#[derive(Debug, Clone, Copy)]
enum Step {
    Spawn {
        owner: usize,
        limit: u32,
        warm: bool,
        ask: bool,
        spares: u64,
        hosts: (usize, usize),
        moves: bool,
    },
    Wait {
        ms: u64,
    },
    Launch(usize),
    Up(usize),
    Die {
        which: usize,
        code: i32,
        status_known: bool,
    },
    Exit(usize),
    Go(usize),
    Stop(usize),
    Restart(usize),
    Kill(usize),
    Connect(usize, usize),
    Answer(bool),
    Template(u8),
    Join,
    Part {
        which: usize,
        lost: bool,
    },
    /// A host that is gone still says this of a proc.
    Late(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0_usize..8;
    prop_oneof![
        (
            (0_usize..4, 0_u32..4, any::<bool>(), any::<bool>(), 0_u64..3),
            ((0_usize..4, 0_usize..4), any::<bool>())
        )
            .prop_map(
                |((owner, limit, warm, ask, spares), (hosts, moves))| Step::Spawn {
                    owner,
                    limit,
                    warm,
                    ask,
                    spares,
                    hosts,
                    moves,
                }
            ),
        Just(Step::Join),
        (which.clone(), any::<bool>()).prop_map(|(which, lost)| Step::Part { which, lost }),
        which.clone().prop_map(Step::Late),
        (1_u64..20_000).prop_map(|ms| Step::Wait { ms }),
        which.clone().prop_map(Step::Launch),
        which.clone().prop_map(Step::Up),
        (which.clone(), 0..3, any::<bool>()).prop_map(|(which, code, status_known)| Step::Die {
            which,
            code,
            status_known
        }),
        which.clone().prop_map(Step::Exit),
        which.clone().prop_map(Step::Go),
        which.clone().prop_map(Step::Stop),
        which.clone().prop_map(Step::Restart),
        which.clone().prop_map(Step::Kill),
        (which.clone(), which).prop_map(|(from, to)| Step::Connect(from, to)),
        any::<bool>().prop_map(Step::Answer),
        (0_u8..4).prop_map(Step::Template),
    ]
}

/// A process as the world has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Process {
    Ordered,
    Running,
    /// Ended; its memory is still there.
    Ending,
}

#[derive(Default)]
struct World {
    processes: BTreeMap<(u64, u32), Process>,
    /// Procs that were told to be over, and not to be restarted since.
    over: BTreeSet<u64>,
    /// Starts of each proc that its policy is answerable for.
    mended: BTreeMap<u64, Vec<u64>>,
    limits: BTreeMap<u64, u32>,
    asked: Vec<(u64, u32)>,
    /// The last epoch that each receiver heard.
    epochs: BTreeMap<u64, u32>,
    loading: Vec<TemplateId>,
    /// Where processes are.
    on: BTreeMap<(u64, u32), u64>,
    /// Hosts that procs can be started on besides the driver's, and how many there ever were.
    hosts: Vec<u64>,
    joined: u64,
    /// Procs that may move, and where those are that may not.
    moving: BTreeSet<u64>,
    home: BTreeMap<u64, u64>,
}

impl World {
    fn take(&mut self, rig: &mut Rig) {
        for output in rig.take() {
            match output {
                Output::Launch(order) => {
                    let of = rig.launched_on[&(order.proc.get(), order.incarnation.0)];
                    self.launched(&order, of);
                }
                Output::Send { to, message, .. } => self.told(rig.now_ns, to[0].get(), message),
                Output::StartTemplate { template, .. } => self.loading.push(template),
                Output::Signal {
                    proc, incarnation, ..
                } => {
                    let process = self.processes.get(&(proc.get(), incarnation.0));
                    assert!(
                        process.is_none_or(|process| *process != Process::Ordered),
                        "there is none to signal"
                    );
                }
                Output::TakePlace(place) => self.placed(&place),
                Output::Pair { first, second } => assert_ne!(first.proc, second.proc),
                Output::Far { dial, accept, .. } => assert_ne!(dial.proc, accept.proc),
                Output::Link { asks, serves, .. } => self.linked(asks, serves),
                Output::FarLink { dial, accept, .. } => self.linked(dial, accept),
            }
        }
    }

    fn linked(&self, one: Life, other: Life) {
        assert_ne!(one.0, other.0);
        for (id, incarnation) in [one, other] {
            let life = (id.get(), incarnation.0);
            assert!(
                life.0 == DRIVER || self.processes.contains_key(&life),
                "the memory of {life:?} is gone"
            );
        }
    }

    fn launched(&mut self, order: &Order, of: u64) {
        let number = order.proc.get();
        assert!(
            self.home[&number] == of || self.moving.contains(&number),
            "proc {number} has moved"
        );
        self.on.insert((number, order.incarnation.0), of);
        assert!(
            !self.over.contains(&number),
            "proc {number} was told to be over, and starts"
        );
        let alive: Vec<_> = self.processes.keys().filter(|(one, _)| *one == number).collect();
        assert!(
            alive.is_empty(),
            "proc {number} starts while {alive:?} still has its memory"
        );
        self.processes
            .insert((number, order.incarnation.0), Process::Ordered);
    }

    fn placed(&mut self, place: &Place) {
        let ((spare, spare_life), (number, life)) = (place.spare, place.proc);
        let process = self.processes.remove(&(spare.get(), spare_life.0));
        assert_eq!(process, Some(Process::Running), "a spare that is ready");
        let has_process = self.processes.keys().any(|(one, _)| *one == number.get());
        assert!(!has_process, "proc {number} starts while it still has its memory");
        self.processes.insert((number.get(), life.0), Process::Running);
        self.on.insert((number.get(), life.0), self.home[&spare.get()]);
    }

    fn told(&mut self, now_ns: u64, to: u64, message: ToClient) {
        match message {
            ToClient::Ask { proc, incarnation } => self.asked.push((proc.get(), incarnation.0)),
            ToClient::Epoch { epoch, .. } => {
                self.epochs.insert(to, epoch);
            }
            ToClient::Member(member) => {
                let last = self.epochs.entry(to).or_default();
                assert!(
                    member.epoch == *last || member.epoch == *last + 1,
                    "a receiver missed an epoch"
                );
                *last = member.epoch;
                if to == DRIVER {
                    self.changed(now_ns, member.proc.get(), &member.status);
                }
            }
            _ => {}
        }
    }

    fn changed(&mut self, now_ns: u64, number: u64, status: &Status) {
        match status {
            Status::Dead { death } if death.kind != DeathKind::Stopped => {
                let mended = self.mended.entry(number).or_default();
                mended.retain(|at| at + 60 * SECOND > now_ns);
                mended.push(now_ns);
                assert!(
                    mended.len() <= self.limits[&number] as usize,
                    "proc {number} is mended too often"
                );
            }
            Status::Restarting { .. } => {
                self.over.remove(&number);
            }
            Status::Failed { .. } | Status::Stopped { .. } => {
                self.over.insert(number);
                self.mended.remove(&number);
            }
            _ => {}
        }
    }
}

proptest! {
    #[test]
    fn promises_hold_in_any_schedule(steps in prop::collection::vec(step(), 1..120)) {
        let (mut rig, mut world, mut spawned) = (Rig::with_templates(), World::default(), 0);
        for step in steps {
            world.run(&mut rig, step, &mut spawned);
            world.take(&mut rig);
        }
        // The end of the job: everything that runs is killed, and nothing starts any more.
        rig.input(Input::Close);
        let mut killed = BTreeSet::new();
        for output in rig.take() {
            match output {
                Output::Signal { proc, incarnation, signal: Signal::Kill } => {
                    killed.insert((proc.get(), incarnation.0));
                }
                Output::Launch(order) => prop_assert!(false, "{order:?} after the end"),
                _ => {}
            }
        }
        for ((number, incarnation), process) in std::mem::take(&mut world.processes) {
            let (id, incarnation) = (proc(number), Incarnation(incarnation));
            if process == Process::Ordered {
                rig.input(Input::Launched { proc: id, incarnation, pid: 7 });
                prop_assert_eq!(rig.signals(), [Signal::Kill]);
            }
            if process != Process::Ending {
                rig.die(number, incarnation.0, Exit::Signal(9));
            }
            rig.go(number, incarnation.0);
        }
        rig.wait(SECOND);
        prop_assert!(rig.agent.is_empty());
        prop_assert_eq!(rig.launches(), []);
    }
}
