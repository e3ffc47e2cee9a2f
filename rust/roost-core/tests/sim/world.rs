//! The world: one clock, one queue of events, all procs.

use std::collections::BTreeMap;

use crate::ledger::{Ledger, Life};
use crate::network::Connection;
use crate::peer::{Node, Status};
use crate::random::Random;
use crate::setup::Setup;

#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A proc's user code sends something.
    Verb { life: Life, left: u64 },
    /// An endpoint is done.
    Done { life: Life, slot: u32 },
    /// Bytes, or the end, reach one end of a connection.
    Arrive { connection: u32, end: usize },
    /// There is room again to write.
    Writable { connection: u32, end: usize },
    /// A session's own time has come.
    Wakeup { life: Life, peer: usize },
    /// Word from the agent.
    Notice { life: Life },
    /// One proc calls another, where connections may be replaced.
    Dial { life: Life, peer: Life, tries: u32 },
    /// A connection breaks.
    Cut,
    /// A proc dies.
    Crash,
    /// A proc's loop is busy with something else.
    Stall,
    /// The agent sees that a proc has died.
    Detected { life: Life },
    /// The agent starts the next life of a proc.
    Restart { node: usize },
}

/// What the agent tells a proc; each with its epoch.
#[derive(Debug, Clone)]
pub(crate) enum Notice {
    /// Who is up and who has died when a proc starts.
    Snapshot {
        epoch: u32,
        members: Vec<Status>,
    },
    Up {
        epoch: u32,
        life: Life,
    },
    /// `started`: the last number of the hearer's messages that it had started, where that is known.
    Dead {
        epoch: u32,
        life: Life,
        started: Option<u64>,
    },
    /// A connection that the agent has made for the two.
    Connected {
        connection: u32,
        end: usize,
    },
}

pub(crate) struct World {
    pub(crate) now: u64,
    order: u64,
    events: BTreeMap<(u64, u64), Event>,
    pub(crate) random: Random,
    pub(crate) setup: Setup,
    pub(crate) nodes: Vec<Node>,
    pub(crate) connections: BTreeMap<u32, Connection>,
    pub(crate) next_connection: u32,
    pub(crate) ledger: Ledger,
    pub(crate) next_message: u64,
    /// What the agent knows, and its epoch.
    pub(crate) members: Vec<Status>,
    pub(crate) epoch: u32,
    /// The last number that a life has started, per sending life: kept outside of the proc.
    pub(crate) started: BTreeMap<(Life, Life), u64>,
    /// Faults that happened, doubles that were dropped, and so on, to see that a run was worth it.
    pub(crate) tally: Tally,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) cuts: u64,
    pub(crate) crashes: u64,
    pub(crate) losses: u64,
    pub(crate) resumes: u64,
    pub(crate) doubles: u64,
    pub(crate) full: u64,
    pub(crate) held: u64,
    pub(crate) refused_hellos: u64,
    /// Payloads that came ahead of their message, and those whose message was cancelled meanwhile.
    pub(crate) ahead: u64,
    pub(crate) given_up: u64,
}

impl World {
    /// Runs one seed to its end and checks what must hold.
    pub(crate) fn run(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let setup = Setup::new(&mut random);
        let mut world = Self::new(random, setup);
        let mut events = 0_u64;
        while let Some(((time, _), event)) = world.events.pop_first() {
            assert!(time >= world.now, "time does not go back");
            world.now = time;
            world.handle(event);
            events += 1;
            assert!(events < 3_000_000, "the run does not come to an end");
        }
        world.check_quiet();
        let lives = world
            .nodes
            .iter()
            .filter(|node| node.alive)
            .map(|node| node.life)
            .collect::<Vec<_>>();
        world.ledger.settle(|life| lives.contains(&life));
        world
    }

    fn new(random: Random, setup: Setup) -> Self {
        let mut world = Self {
            now: 0,
            order: 0,
            events: BTreeMap::new(),
            random,
            nodes: (0..setup.procs)
                .map(|node| Node::new((node, 0), &setup))
                .collect(),
            connections: BTreeMap::new(),
            next_connection: 0,
            ledger: Ledger::default(),
            next_message: 1,
            members: vec![Status::Unheard; setup.procs],
            epoch: 0,
            started: BTreeMap::new(),
            tally: Tally::default(),
            setup,
        };
        for node in 0..world.setup.procs {
            world.nodes[node].alive = false;
        }
        for node in 0..world.setup.procs {
            world.start((node, 0));
        }
        let (cuts, crashes, stalls) = (world.setup.cuts, world.setup.crashes, world.setup.stalls);
        for (count, fault) in [
            (cuts, Event::Cut),
            (crashes, Event::Crash),
            (stalls, Event::Stall),
        ] {
            for _ in 0..count {
                let at = world.random.below(world.setup.faults_end_ns);
                world.at(at, fault.clone());
            }
        }
        world
    }

    pub(crate) fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.events.insert((time, self.order), event);
    }

    pub(crate) fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    pub(crate) fn is_alive(&self, life: Life) -> bool {
        self.nodes[life.0].alive && self.nodes[life.0].life == life
    }

    /// A time on the way.
    pub(crate) fn delay(&mut self) -> u64 {
        let most = self.setup.delay_ns_max;
        // Most are quick: a few slow ones among them make the schedules that hurt.
        if self.random.percent(70) {
            self.random.below(most / 10 + 1)
        } else {
            self.random.below(most + 1)
        }
    }

    fn handle(&mut self, event: Event) {
        if let Some(life) = self.acting(&event) {
            if !self.is_alive(life) {
                return;
            }
            let stalled = self.nodes[life.0].stalled_until;
            if stalled > self.now {
                return self.at(stalled, event);
            }
        }
        match event {
            Event::Verb { life, left } => self.verb(life, left),
            Event::Done { life, slot } => self.done(life, slot),
            Event::Arrive { connection, end } => self.readable(connection, end),
            Event::Writable { connection, end } => self.writable(connection, end),
            Event::Wakeup { life, peer } => self.wakeup(life, peer),
            Event::Notice { life } => self.notice(life),
            Event::Dial { life, peer, tries } => self.dial(life, peer, tries),
            Event::Cut => self.cut(),
            Event::Crash => self.crash(),
            Event::Stall => self.stall(),
            Event::Detected { life } => self.detected(life),
            Event::Restart { node } => self.restart(node),
        }
    }

    /// Whose loop an event needs.
    fn acting(&self, event: &Event) -> Option<Life> {
        match event {
            Event::Verb { life, .. }
            | Event::Done { life, .. }
            | Event::Wakeup { life, .. }
            | Event::Notice { life }
            | Event::Dial { life, .. } => Some(*life),
            Event::Arrive { connection, end } | Event::Writable { connection, end } => {
                let end = &self.connections.get(connection)?.ends[*end];
                Some((end.node, end.incarnation))
            }
            Event::Cut | Event::Crash | Event::Stall | Event::Detected { .. } | Event::Restart { .. } => None,
        }
    }

    fn stall(&mut self) {
        let node = self.random.index(self.setup.procs);
        let time = self.random.below(2 * crate::setup::SECOND);
        self.nodes[node].stalled_until = self.now + time;
    }

    /// Nothing waits any more for something that will not come.
    fn check_quiet(&self) {
        for node in self.nodes.iter().filter(|node| node.alive) {
            assert!(
                node.pending.is_empty(),
                "{:?} still waits for {:?}",
                node.life,
                node.pending
            );
            assert!(
                node.mailboxes
                    .iter()
                    .all(|mailbox| mailbox.entries.is_empty() && mailbox.busy.is_none())
            );
            for peer in node
                .peers
                .iter()
                .flatten()
                .filter(|peer| self.is_alive(peer.life))
            {
                let between = (node.life, peer.life);
                assert!(
                    peer.waiting.iter().all(std::collections::VecDeque::is_empty),
                    "{between:?}: messages wait"
                );
                assert!(peer.answers.is_empty(), "{between:?}: answers wait");
                assert!(!peer.session.has_unsent(), "{between:?}: bytes wait");
                assert_eq!(
                    peer.bound.waiting().messages,
                    0,
                    "{between:?}: the queue's count is wrong"
                );
                if self.setup.session.ack_delay_ns.is_some() {
                    let session = &peer.session;
                    let (acknowledged, last) = (session.acknowledged(), session.last_sequence());
                    assert_eq!(acknowledged, last, "{between:?}: all is acknowledged in time");
                    assert_eq!(session.held_bytes(), 0, "{between:?}: memory is kept");
                }
            }
        }
    }
}
