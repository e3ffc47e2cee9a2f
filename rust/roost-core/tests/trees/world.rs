//! Hosts, procs, what is on its way between them, and time.

use std::collections::BTreeMap;

use roost_core::carrier::{Gathered, Relay, Way, Word};

use crate::end::End;
use crate::random::Random;
use crate::tally::Tally;

const MILLISECOND: u64 = 1_000_000;
pub(crate) const CUT_NS_MAX: u64 = 400 * MILLISECOND;

pub(crate) enum Event {
    /// The sender casts.
    Cast,
    /// Bytes over the connection that had this number, to the proc or to the sender.
    Bytes {
        proc: usize,
        connection: u64,
        down: bool,
        bytes: Vec<u8>,
    },
    /// A word between hosts; `at` is the host, none for the root.
    Word {
        at: Option<usize>,
        from: Way,
        word: Word,
    },
    /// A host hands frames to its proc.
    Handed {
        proc: usize,
        carrier: u64,
        frames: Vec<u8>,
    },
    /// A proc's answer is in the hands of its host's agent.
    Answer {
        proc: usize,
        carrier: u64,
        frames: Vec<u8>,
    },
    /// An actor has done its work.
    Done {
        proc: usize,
        number: u64,
    },
    /// A timer of a session, or more room in a socket.
    Tick {
        proc: usize,
    },
    Cut {
        proc: usize,
    },
    Connect {
        proc: usize,
    },
    /// An end hears of a membership epoch.
    Epoch {
        proc: usize,
        down: bool,
        epoch: u32,
    },
    /// A host's agent has lost all that it knew.
    Forget {
        host: usize,
    },
    Kill {
        proc: usize,
    },
    /// Its agent sees that it has ended.
    Died {
        proc: usize,
    },
    /// The root hears of it, behind what it had said last.
    Ended {
        proc: usize,
        last: Option<Gathered>,
    },
}

pub(crate) struct Proc {
    /// The sender's end, and its own.
    pub(crate) ends: [End; 2],
    /// The carrier that brought the last that it took, if one did.
    pub(crate) way: Option<u64>,
    pub(crate) connection: u64,
    pub(crate) is_connected: bool,
    /// When the last bytes in each direction arrive: a connection keeps their order.
    pub(crate) arrives_ns: [u64; 2],
    /// When its timers are looked at next.
    pub(crate) tick_ns: u64,
    /// When the last that it gave to its agent arrives there.
    pub(crate) lane_ns: u64,
    /// The number of the last of its answers that its agent has had.
    pub(crate) given: usize,
    pub(crate) is_dead: bool,
    /// The sender knows that it is dead.
    pub(crate) is_given_up: bool,
}

/// See the module.
pub(crate) struct World {
    pub(crate) random: Random,
    pub(crate) now_ns: u64,
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    pub(crate) procs_each: usize,
    pub(crate) procs: Vec<Proc>,
    pub(crate) root: Relay,
    pub(crate) relays: Vec<Relay>,
    /// When the last that each host has said to the root arrives there.
    pub(crate) trunks_ns: Vec<u64>,
    pub(crate) carriers: u64,
    casts_left: u64,
    next_number: u64,
    epoch: u32,
    /// Percent of words that are lost, met by nobody, or come twice.
    pub(crate) faults: [u64; 3],
    /// Percent of answers after which their proc is killed.
    kills: u64,
    pub(crate) delay_ns_max: u64,
    pub(crate) tally: Tally,
}

impl World {
    pub(crate) fn run(seed: u64) -> Tally {
        let mut world = Self::new(seed);
        while let Some(((now_ns, _), event)) = world.events.pop_first() {
            world.now_ns = now_ns;
            world.handle(event);
            // Whatever happens, what is said is heard within a minute.
            assert!(now_ns < 60_000 * MILLISECOND, "it goes on and on");
        }
        world.check();
        world.tally
    }

    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let (hosts, procs_each) = (1 + random.index(40), 1 + random.index(3));
        let some = |random: &mut Random, most| {
            if random.percent(50) {
                0
            } else {
                random.between(1, most)
            }
        };
        let faults = [
            some(&mut random, 30),
            some(&mut random, 40),
            some(&mut random, 20),
        ];
        let proc = |_| Proc {
            ends: [End::new(), End::new()],
            way: None,
            connection: 0,
            is_connected: true,
            arrives_ns: [0; 2],
            tick_ns: u64::MAX,
            lane_ns: 0,
            given: 0,
            is_dead: false,
            is_given_up: false,
        };
        let mut world = Self {
            now_ns: 0,
            events: BTreeMap::new(),
            next_event: 0,
            procs_each,
            procs: (0..hosts * procs_each).map(proc).collect(),
            root: Relay::default(),
            relays: (0..hosts).map(|_| Relay::default()).collect(),
            trunks_ns: vec![0; hosts],
            carriers: 0,
            casts_left: random.between(1, 30),
            next_number: 0,
            epoch: 0,
            faults,
            kills: some(&mut random, 5),
            delay_ns_max: random.pick(&[MILLISECOND, 20 * MILLISECOND, 700 * MILLISECOND]),
            tally: Tally::default(),
            random,
        };
        world.at(0, Event::Cast);
        for _ in 0..some(&mut world.random, 10) {
            let (at_ns, proc) = (
                world.random.below(3_000 * MILLISECOND),
                world.random.index(hosts * procs_each),
            );
            world.at(at_ns, Event::Cut { proc });
        }
        for _ in 0..some(&mut world.random, 5) {
            let (at_ns, host) = (world.random.below(3_000 * MILLISECOND), world.random.index(hosts));
            world.at(at_ns, Event::Forget { host });
        }
        for _ in 0..some(&mut world.random, 3) {
            let at_ns = world.random.below(3_000 * MILLISECOND);
            let proc = world.random.index(hosts * procs_each);
            world.at(at_ns, Event::Kill { proc });
        }
        world
    }

    pub(crate) fn at(&mut self, at_ns: u64, event: Event) {
        self.next_event += 1;
        self.events.insert((at_ns, self.next_event), event);
    }

    pub(crate) fn soon(&mut self, event: Event) {
        let at_ns = self.now_ns + 1 + self.random.below(self.delay_ns_max);
        self.at(at_ns, event);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Cast => self.cast(),
            Event::Bytes {
                proc,
                connection,
                down,
                bytes,
            } => self.bytes(proc, connection, down, &bytes),
            Event::Word { at, from, word } => self.word(at, from, word),
            Event::Answer {
                proc,
                carrier,
                frames,
            } => self.answer(proc, carrier, &frames),
            Event::Tick { proc } => self.tick(proc),
            Event::Cut { proc } => self.cut(proc),
            Event::Connect { proc } => self.connect(proc),
            Event::Forget { host } => self.forget(host),
            Event::Kill { proc } => self.kill(proc),
            Event::Died { proc } => self.died(proc),
            Event::Ended { proc, last } => self.ended(proc, last),
            Event::Epoch { proc, down, epoch } if !self.procs[proc].is_deaf(down) => {
                let end = &mut self.procs[proc].ends[usize::from(down)];
                end.epoch = end.epoch.max(epoch);
                let new = end.receive(self.now_ns, &[]);
                self.took(proc, down, new);
            }
            Event::Handed {
                proc,
                carrier,
                frames,
            } if !self.procs[proc].is_dead => self.handed(proc, carrier, &frames),
            Event::Done { proc, number } if !self.procs[proc].is_dead => self.done(proc, number),
            Event::Epoch { .. } | Event::Handed { .. } | Event::Done { .. } => {}
        }
    }

    /// An actor has done its work.
    fn done(&mut self, proc: usize, number: u64) {
        let length = self.random.index(100);
        self.procs[proc].ends[1].say(number, length);
        self.flush(proc, false);
        if self.random.percent(self.kills) {
            self.kill(proc);
        }
    }

    /// Something for many procs, or for one.
    fn cast(&mut self) {
        self.casts_left -= 1;
        if self.casts_left > 0 {
            let pause = self.random.pick(&[5, 300]);
            let later_ns = self.random.below(pause * MILLISECOND);
            self.at(self.now_ns + later_ns, Event::Cast);
        }
        if self.random.percent(15) {
            self.change_members();
        }
        self.next_number += 1;
        let count = self.procs.len();
        let (first, length) = (self.random.index(count), self.random.index(300));
        let many = self.random.percent(75);
        let last = if many {
            first + self.random.index(count - first)
        } else {
            first
        };
        let mut posted = Vec::new();
        for proc in first..=last {
            if self.procs[proc].is_given_up {
                continue;
            }
            let end = &mut self.procs[proc].ends[0];
            end.say(self.next_number, length);
            match Some(end).filter(|_| many).and_then(|end| end.post(self.now_ns)) {
                Some(frames) => posted.push((proc, frames)),
                None => self.write(proc, true),
            }
            self.watch(proc, true);
        }
        self.post(posted);
    }

    /// The sender writes a later epoch from now on, of which some procs hear later than of its frames.
    fn change_members(&mut self) {
        self.epoch += 1;
        for proc in 0..self.procs.len() {
            self.procs[proc].ends[0].session.set_epoch(self.epoch);
            self.procs[proc].ends[0].epoch = self.epoch;
            let epoch = self.epoch;
            self.soon(Event::Epoch {
                proc,
                down: true,
                epoch,
            });
        }
    }

    /// What an end has taken, and what follows from it.
    pub(crate) fn took(&mut self, proc: usize, down: bool, new: Vec<u64>) {
        if down {
            self.tally.delivered += new.len() as u64;
            for number in new {
                self.soon(Event::Done { proc, number });
            }
        } else {
            self.tally.answered += new.len() as u64;
        }
        self.watch(proc, !down);
        self.flush(proc, !down);
    }

    fn check(&mut self) {
        for (number, proc) in self.procs.iter().enumerate() {
            let [sender, receiver] = &proc.ends;
            self.tally.held += sender.held + receiver.held;
            if proc.is_dead {
                assert!(proc.is_given_up, "nobody hears of the end of proc {number}");
                assert!(
                    sender.said.starts_with(&receiver.taken),
                    "proc {number} got no more"
                );
                assert!(
                    receiver.said.starts_with(&sender.taken),
                    "of proc {number} came no more"
                );
                continue;
            }
            assert_eq!(receiver.taken, sender.said, "proc {number} got what it was sent");
            assert_eq!(sender.taken, receiver.said, "of proc {number} came what it said");
            assert_eq!(
                receiver.said.len(),
                receiver.taken.len(),
                "proc {number} answered all"
            );
            for end in &proc.ends {
                assert_eq!(end.session.acknowledged(), end.session.last_sequence());
                assert_eq!(end.session.held_bytes(), 0, "nothing is kept for nobody");
            }
        }
    }
}
