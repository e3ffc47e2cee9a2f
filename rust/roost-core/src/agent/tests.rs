//! The agent against a world of made-up processes.

mod deaths;
mod hosts;
mod life;
mod linking;
mod links;
mod otp;
mod schedules;
mod sources;
mod spares;
mod travel;
mod trees;

use std::collections::BTreeSet;

use super::*;
use crate::control::{Activity, Death, DeathKind, Exit, Launch, Member, Rank, Spawn, TemplateKey};
use crate::id::Incarnation;
use crate::restart::{On, Policy, Scope, When, WhileDown};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

fn proc(number: u64) -> ProcId {
    ProcId::new(number).expect("tests name procs from 1")
}

fn mesh(number: u64) -> MeshId {
    MeshId::new(number).expect("tests name meshes from 1")
}

fn host(number: u64) -> HostId {
    HostId::new(number).expect("tests name hosts from 1")
}

const DRIVER: u64 = 1_000;

/// The driver's host.
const OWN: u64 = 1;

fn policy(limit: u32) -> Policy {
    Policy {
        limit,
        within_ns: 60 * SECOND,
        backoff_min_ns: 100 * MS,
        backoff_max_ns: 5 * SECOND,
        scope: Scope::One,
        when: When::Failed,
        while_down: WhileDown::Fail,
        on: On::SameHost,
    }
}

fn key() -> TemplateKey {
    TemplateKey {
        preload: vec!["torch".to_owned()],
        sys_path: Vec::new(),
    }
}

/// A spawn of cold procs with these numbers, owned by the driver, without a policy.
fn spawn(numbers: &[u64]) -> Spawn {
    let rank = |&number: &u64| Rank {
        proc: proc(number),
        label: format!("workers[{number}]"),
        launch: Launch {
            spec: b"spec".as_slice().into(),
            environ: Some(Vec::new()),
            command: None,
        },
        host: host(OWN),
    };
    Spawn {
        mesh: mesh(7),
        name: "workers".to_owned(),
        owner: proc(DRIVER),
        template: None,
        template_environ: Vec::new(),
        policy: None,
        logs: true,
        ask: false,
        ranks: numbers.iter().map(rank).collect(),
        spares: Vec::new(),
    }
}

/// The same from a template.
fn warm(numbers: &[u64]) -> Spawn {
    let mut spawn = spawn(numbers);
    spawn.template = Some(key());
    for rank in &mut spawn.ranks {
        rank.launch.environ = None;
    }
    spawn
}

/// An agent, its clock, and what it has said since last asked.
struct Rig {
    agent: Agent,
    now_ns: u64,
    said: Vec<Output>,
    /// How many outputs that were.
    outputs: usize,
    /// Where incarnations were ordered.
    launched_on: BTreeMap<(u64, u32), u64>,
    /// Hosts that are told nothing any more.
    gone: BTreeSet<u64>,
    /// Templates are ready at once; most tests are not about them.
    templates_ready: bool,
}

impl Rig {
    fn new() -> Self {
        let patience = Patience {
            grace_ns: 5 * SECOND,
            sigterm_ns: 3 * SECOND,
        };
        Self {
            agent: Agent::new(proc(DRIVER), host(OWN), patience, 120 * SECOND, 1),
            now_ns: SECOND,
            said: Vec::new(),
            outputs: 0,
            launched_on: BTreeMap::new(),
            gone: BTreeSet::new(),
            templates_ready: true,
        }
    }

    /// Whose templates are the test's to answer for.
    fn with_templates() -> Self {
        Self {
            templates_ready: false,
            ..Self::new()
        }
    }

    /// With these procs up.
    fn with(spawned: Spawn) -> Self {
        let mut rig = Self::new();
        let procs: Vec<ProcId> = spawned.ranks.iter().map(|rank| rank.proc).collect();
        rig.say(DRIVER, ToAgent::Spawn(Box::new(spawned)));
        for id in procs {
            rig.come_up(id.get(), 0);
        }
        rig.said.clear();
        rig
    }

    fn input(&mut self, input: Input) {
        self.agent.handle(self.now_ns, input);
        self.listen();
    }

    fn input_from(&mut self, number: u64, input: Input) {
        self.agent.handle_from(self.now_ns, host(number), input);
        self.listen();
    }

    /// What is said to many is kept as said to each.
    fn listen(&mut self) {
        while let Some((of, output)) = self.agent.next_output() {
            self.outputs += 1;
            assert!(!self.gone.contains(&of.get()), "{of} is gone: {output:?}");
            match output {
                Output::StartTemplate { template, .. } if self.templates_ready => {
                    self.agent.handle(self.now_ns, Input::TemplateReady(template));
                }
                Output::Send {
                    to,
                    message,
                    descriptor,
                } => self.said.extend(to.into_iter().map(|id| {
                    assert_eq!(self.agent.host_of(id), Some(of), "where {id} is");
                    Output::Send {
                        to: vec![id],
                        message: message.clone(),
                        descriptor,
                    }
                })),
                output => {
                    if let Output::Launch(order) = &output {
                        self.launched_on
                            .insert((order.proc.get(), order.incarnation.0), of.get());
                    }
                    self.said.push(output);
                }
            }
        }
    }

    fn say(&mut self, from: u64, message: ToAgent) {
        self.input(Input::Message {
            from: proc(from),
            message,
            descriptor: None,
        });
    }

    /// The process of a launch starts and says that it is ready.
    fn come_up(&mut self, number: u64, incarnation: u32) {
        let pid = 100 + u32::try_from(number).unwrap();
        self.input(Input::Launched {
            proc: proc(number),
            incarnation: Incarnation(incarnation),
            pid,
        });
        self.say(number, ToAgent::Up);
    }

    fn die(&mut self, number: u64, incarnation: u32, exit: Exit) {
        let seen = Seen {
            exit: Some(exit),
            ..Seen::default()
        };
        self.input(Input::Died {
            proc: proc(number),
            incarnation: Incarnation(incarnation),
            seen,
        });
    }

    fn go(&mut self, number: u64, incarnation: u32) {
        self.input(Input::Gone {
            proc: proc(number),
            incarnation: Incarnation(incarnation),
        });
    }

    fn crash(&mut self, number: u64, incarnation: u32) {
        self.die(number, incarnation, Exit::Signal(9));
        self.go(number, incarnation);
    }

    fn wait(&mut self, by_ns: u64) {
        self.now_ns += by_ns;
        self.input(Input::Tick);
    }

    fn stop(&mut self, number: u64, reason: &str) {
        let patience = Patience {
            grace_ns: 5 * SECOND,
            sigterm_ns: 3 * SECOND,
        };
        self.say(
            DRIVER,
            ToAgent::Stop {
                procs: vec![proc(number)],
                reason: reason.to_owned(),
                patience,
            },
        );
    }

    /// What was said since the last call.
    fn take(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.said)
    }

    /// The launches since the last call: proc and incarnation.
    fn launches(&mut self) -> Vec<(u64, u32)> {
        let launch = |output| match output {
            Output::Launch(order) => Some((order.proc.get(), order.incarnation.0)),
            _ => None,
        };
        self.take().into_iter().filter_map(launch).collect()
    }

    /// The notices for one receiver since the last call.
    fn notices(&mut self, receiver: u64) -> Vec<ToClient> {
        let notice = |output| match output {
            Output::Send { to, message, .. } if to == [proc(receiver)] => Some(message),
            _ => None,
        };
        self.take().into_iter().filter_map(notice).collect()
    }

    /// The statuses told to one receiver since the last call.
    fn statuses(&mut self, receiver: u64) -> Vec<Status> {
        let status = |notice| match notice {
            ToClient::Member(member) => Some(member.status),
            _ => None,
        };
        self.notices(receiver).into_iter().filter_map(status).collect()
    }

    /// The signals since the last call.
    fn signals(&mut self) -> Vec<Signal> {
        let signal = |output| match output {
            Output::Signal { signal, .. } => Some(signal),
            _ => None,
        };
        self.take().into_iter().filter_map(signal).collect()
    }
}

/// Short names of statuses, to compare a story at a glance.
fn story(statuses: &[Status]) -> Vec<&'static str> {
    statuses
        .iter()
        .map(|status| match status {
            Status::Starting { .. } => "starting",
            Status::Up { .. } => "up",
            Status::Dead { .. } => "dead",
            Status::Restarting { .. } => "restarting",
            Status::Failed { .. } => "failed",
            Status::Stopped { .. } => "stopped",
            Status::Stalled { .. } => "stalled",
            Status::Resumed => "resumed",
            Status::Gone => "gone",
        })
        .collect()
}
