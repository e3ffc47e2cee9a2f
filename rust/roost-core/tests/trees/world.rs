//! Hosts, procs, what is on its way between them, and time.

use std::collections::BTreeMap;

use roost_core::carrier::{Carrier, Destination, Output, Parcel, Relay, Way, Word};
use roost_core::id::{HostId, ProcId};

use crate::end::End;
use crate::random::Random;

const MILLISECOND: u64 = 1_000_000;

/// What has happened.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) delivered: u64,
    pub(crate) answered: u64,
    pub(crate) posted: u64,
    pub(crate) lost: u64,
    pub(crate) unreached: u64,
    pub(crate) doubled: u64,
    pub(crate) taken_back: u64,
    pub(crate) overtaken: u64,
    pub(crate) held: u64,
    pub(crate) cuts: u64,
    pub(crate) forgotten: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        self.delivered += other.delivered;
        self.answered += other.answered;
        self.posted += other.posted;
        self.lost += other.lost;
        self.unreached += other.unreached;
        self.doubled += other.doubled;
        self.taken_back += other.taken_back;
        self.overtaken += other.overtaken;
        self.held += other.held;
        self.cuts += other.cuts;
        self.forgotten += other.forgotten;
    }
}

enum Event {
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
}

struct Proc {
    /// The sender's end, and its own.
    ends: [End; 2],
    /// The carrier that brought the last that it took, if one did.
    way: Option<u64>,
    connection: u64,
    is_connected: bool,
    /// When the last bytes in each direction arrive: a connection keeps their order.
    arrives_ns: [u64; 2],
    /// When its timers are looked at next.
    tick_ns: u64,
}

/// See the module.
pub(crate) struct World {
    random: Random,
    now_ns: u64,
    events: BTreeMap<(u64, u64), Event>,
    next_event: u64,
    procs_each: usize,
    procs: Vec<Proc>,
    root: Relay,
    relays: Vec<Relay>,
    carriers: u64,
    casts_left: u64,
    next_number: u64,
    epoch: u32,
    /// Percent of words that are lost, met by nobody, or come twice.
    faults: [u64; 3],
    delay_ns_max: u64,
    tally: Tally,
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
        };
        let mut world = Self {
            now_ns: 0,
            events: BTreeMap::new(),
            next_event: 0,
            procs_each,
            procs: (0..hosts * procs_each).map(proc).collect(),
            root: Relay::default(),
            relays: (0..hosts).map(|_| Relay::default()).collect(),
            carriers: 0,
            casts_left: random.between(1, 30),
            next_number: 0,
            epoch: 0,
            faults,
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
        world
    }

    fn at(&mut self, at_ns: u64, event: Event) {
        self.next_event += 1;
        self.events.insert((at_ns, self.next_event), event);
    }

    fn soon(&mut self, event: Event) {
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
            } => {
                if self.procs[proc].connection == connection && self.procs[proc].is_connected {
                    let new = self.procs[proc].ends[usize::from(down)].receive(self.now_ns, &bytes);
                    if down {
                        self.procs[proc].way = None;
                    }
                    self.took(proc, down, new);
                }
            }
            Event::Word { at, from, word } => self.word(at, from, word),
            Event::Handed {
                proc,
                carrier,
                frames,
            } => {
                let before = self.procs[proc].ends[1].session.received();
                let new = self.procs[proc].ends[1].receive_posted(self.now_ns, &frames);
                let taken = self.procs[proc].ends[1].session.received() - before;
                self.tally.overtaken += u64::from(taken > 1);
                self.procs[proc].way = Some(carrier);
                self.took(proc, true, new);
            }
            Event::Answer {
                proc,
                carrier,
                frames,
            } => self.answer(proc, carrier, &frames),
            Event::Done { proc, number } => {
                let length = self.random.index(100);
                self.procs[proc].ends[1].say(number, length);
                self.flush(proc, false);
            }
            Event::Tick { proc } => self.tick(proc),
            Event::Cut { proc } => {
                self.tally.cuts += 1;
                self.procs[proc].is_connected = false;
                let later_ns = self.random.below(400 * MILLISECOND);
                self.at(self.now_ns + later_ns, Event::Connect { proc });
            }
            Event::Connect { proc } => self.connect(proc),
            Event::Epoch { proc, down, epoch } => {
                let end = &mut self.procs[proc].ends[usize::from(down)];
                end.epoch = end.epoch.max(epoch);
                let new = end.receive(self.now_ns, &[]);
                self.took(proc, down, new);
            }
            Event::Forget { host } => {
                self.tally.forgotten += 1;
                self.relays[host] = Relay::default();
            }
        }
    }

    /// A proc's answer is in the hands of its host.
    fn answer(&mut self, proc: usize, carrier: u64, frames: &[u8]) {
        let host = proc / self.procs_each;
        self.relays[host].answered(carrier, parcel(proc, frames));
        // Now and then one turn sees several.
        if self.random.percent(60) {
            self.relays[host].end_turn();
            self.perform(Some(host));
        } else {
            let frames = Vec::new();
            self.soon(Event::Answer {
                proc,
                carrier,
                frames,
            });
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

    fn post(&mut self, posted: Vec<(usize, Vec<u8>)>) {
        self.tally.posted += posted.len() as u64;
        let mut hosts: BTreeMap<usize, Vec<Parcel>> = BTreeMap::new();
        for (proc, frames) in posted {
            hosts
                .entry(proc / self.procs_each)
                .or_default()
                .push(parcel(proc, &frames));
        }
        let destination = |(number, parcels)| Destination {
            host: host(number),
            addresses: Vec::new(),
            parcels,
        };
        self.carriers += 1;
        let hosts = hosts.into_iter().map(destination).collect();
        let sender = ProcId::new(u64::MAX).expect("not zero");
        self.root.begin(Carrier::new(self.carriers, sender, hosts));
        self.perform(None);
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

    fn word(&mut self, at: Option<usize>, from: Way, word: Word) {
        let relay = match at {
            Some(number) => &mut self.relays[number],
            None => &mut self.root,
        };
        match word {
            Word::Carrier(carrier) => relay.carried(host(at.expect("a host")), from, carrier),
            Word::Gathered(gathered) if at.is_some() => {
                relay.gathered(gathered);
                relay.end_turn();
            }
            Word::Gathered(gathered) => {
                for parcel in gathered.parcels {
                    let proc = usize::try_from(parcel.session).expect("an index");
                    let new = self.procs[proc].ends[0].receive_posted(self.now_ns, &parcel.frames);
                    self.took(proc, false, new);
                }
            }
        }
        self.perform(at);
    }

    /// Do what a relay says; the root's has no number.
    fn perform(&mut self, at: Option<usize>) {
        loop {
            let relay = match at {
                Some(number) => &mut self.relays[number],
                None => &mut self.root,
            };
            let Some(output) = relay.next_output() else { return };
            let way = at.map_or(Way::Root, |number| Way::Host(host(number)));
            match output {
                Output::Deliver {
                    session,
                    carrier,
                    frames,
                    ..
                } => {
                    let proc = usize::try_from(session).expect("an index");
                    self.soon(Event::Handed {
                        proc,
                        carrier,
                        frames: frames.to_vec(),
                    });
                }
                Output::Carry(carrier) if self.random.percent(self.faults[1]) => {
                    self.tally.unreached += 1;
                    let relay = match at {
                        Some(number) => &mut self.relays[number],
                        None => &mut self.root,
                    };
                    relay.unreached(carrier);
                }
                Output::Carry(carrier) => {
                    let to = usize::try_from(carrier.hosts[0].host.get()).expect("an index") - 1;
                    self.send(Some(to), way, Word::Carrier(carrier));
                }
                Output::Gather { to, gathered } => {
                    let to = match to {
                        Way::Root => None,
                        Way::Host(to) => Some(usize::try_from(to.get()).expect("an index") - 1),
                    };
                    self.send(to, way, Word::Gathered(gathered));
                }
            }
        }
    }

    fn send(&mut self, at: Option<usize>, from: Way, word: Word) {
        if self.random.percent(self.faults[0]) {
            self.tally.lost += 1;
            return;
        }
        if self.random.percent(self.faults[2]) {
            self.tally.doubled += 1;
            let word = word.clone();
            self.soon(Event::Word { at, from, word });
        }
        self.soon(Event::Word { at, from, word });
    }

    /// What an end has taken, and what follows from it.
    fn took(&mut self, proc: usize, down: bool, new: Vec<u64>) {
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

    /// Write what one end has to say, the proc's by the way that the last came.
    fn flush(&mut self, proc: usize, down: bool) {
        let way = self.procs[proc].way.filter(|_| !down);
        let posted = way.and_then(|carrier| Some((carrier, self.procs[proc].ends[1].post(self.now_ns)?)));
        if let Some((carrier, frames)) = posted {
            self.tally.posted += 1;
            self.soon(Event::Answer {
                proc,
                carrier,
                frames,
            });
        } else {
            self.write(proc, down);
        }
        self.watch(proc, down);
    }

    fn write(&mut self, proc: usize, down: bool) {
        let side = usize::from(!down);
        let delay_ns = 1 + self.random.below(self.delay_ns_max);
        let one = &mut self.procs[proc];
        if !one.is_connected || !one.ends[side].session.has_unsent() {
            return;
        }
        let bytes = one.ends[side].write(&mut self.random);
        let at_ns = (self.now_ns + delay_ns).max(one.arrives_ns[side] + 1);
        one.arrives_ns[side] = at_ns;
        let (connection, has_more) = (one.connection, one.ends[side].session.has_unsent());
        self.at(
            at_ns,
            Event::Bytes {
                proc,
                connection,
                down,
                bytes,
            },
        );
        if has_more {
            self.soon(Event::Tick { proc });
        }
    }

    /// Have the timers of an end looked at.
    fn watch(&mut self, proc: usize, down: bool) {
        let one = &mut self.procs[proc];
        let at_ns = one.ends[usize::from(!down)].session.next_wakeup();
        if let Some(at_ns) = at_ns.filter(|at_ns| *at_ns < one.tick_ns) {
            one.tick_ns = at_ns;
            self.at(at_ns.max(self.now_ns + 1), Event::Tick { proc });
        }
    }

    fn tick(&mut self, proc: usize) {
        self.procs[proc].tick_ns = u64::MAX;
        for (side, down) in [(0, true), (1, false)] {
            let session = &mut self.procs[proc].ends[side].session;
            let unsent = session.unsent_bytes();
            let is_due = session.handle_timeout(self.now_ns);
            // An acknowledgement alone is 32 bytes.
            self.tally.taken_back += u64::from(is_due && session.unsent_bytes() > unsent + 32);
            if is_due || session.has_unsent() {
                self.write(proc, down);
            }
            self.watch(proc, down);
        }
    }

    fn connect(&mut self, proc: usize) {
        let one = &mut self.procs[proc];
        if one.is_connected {
            return;
        }
        one.is_connected = true;
        one.connection += 1;
        one.arrives_ns = [self.now_ns; 2];
        let received = [0, 1].map(|side: usize| one.ends[side].session.received());
        one.ends[0].resume(received[1]);
        one.ends[1].resume(received[0]);
        self.write(proc, true);
        self.write(proc, false);
    }

    fn check(&mut self) {
        for (number, proc) in self.procs.iter().enumerate() {
            let [sender, receiver] = &proc.ends;
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
                self.tally.held += end.held;
            }
        }
    }
}

fn host(number: usize) -> HostId {
    HostId::new(number as u64 + 1).expect("not zero")
}

fn parcel(proc: usize, frames: &[u8]) -> Parcel {
    Parcel {
        proc: ProcId::new(proc as u64 + 1).expect("not zero"),
        session: proc as u64,
        frames: frames.into(),
    }
}
