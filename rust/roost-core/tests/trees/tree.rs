//! The tree: what is posted, and what hosts say to each other.

use std::collections::BTreeMap;

use roost_core::carrier::{Carrier, Destination, Output, Parcel, Way, Word};
use roost_core::id::{HostId, ProcId};

use crate::world::{Event, World};

impl World {
    /// Frames for many procs go together.
    pub(crate) fn post(&mut self, posted: Vec<(usize, Vec<u8>)>) {
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

    /// A host hands frames to its proc.
    pub(crate) fn handed(&mut self, proc: usize, carrier: u64, frames: &[u8]) {
        let end = &mut self.procs[proc].ends[1];
        let before = end.session.received();
        let new = end.receive_posted(self.now_ns, frames);
        let taken = end.session.received() - before;
        self.tally.overtaken += u64::from(taken > 1);
        self.procs[proc].way = Some(carrier);
        self.took(proc, true, new);
    }

    /// A proc's answer is in the hands of its host.
    pub(crate) fn answer(&mut self, proc: usize, carrier: u64, frames: &[u8]) {
        let host = proc / self.procs_each;
        self.procs[proc].gave(frames);
        self.relays[host].answered(carrier, parcel(proc, frames));
        // Now and then one turn sees several.
        if self.random.percent(60) {
            self.relays[host].end_turn();
            self.perform(Some(host));
        } else {
            self.give_to_agent(proc, carrier, Vec::new());
        }
    }

    /// A word has come; `at` is the host, none for the root.
    pub(crate) fn word(&mut self, at: Option<usize>, from: Way, word: Word) {
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
            Word::Gathered(gathered) => self.take_answers(gathered.parcels),
        }
        self.perform(at);
    }

    pub(crate) fn take_answers(&mut self, parcels: Vec<Parcel>) {
        for parcel in parcels {
            let proc = usize::try_from(parcel.session).expect("an index");
            if !self.procs[proc].is_given_up {
                let new = self.procs[proc].ends[0].receive_posted(self.now_ns, &parcel.frames);
                self.took(proc, false, new);
            }
        }
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
                    let to = index(carrier.hosts[0].host);
                    self.send(to, way, Word::Carrier(carrier));
                }
                Output::Gather { to, gathered } => match (to, at) {
                    (Way::Host(to), _) => self.send(index(to), way, Word::Gathered(gathered)),
                    (Way::Root, from) => {
                        let (at, word) = (None, Word::Gathered(gathered));
                        self.over_trunk(from.expect("a host"), Event::Word { at, from: way, word });
                    }
                },
            }
        }
    }

    /// To another host, whose connections keep nothing.
    fn send(&mut self, to: usize, from: Way, word: Word) {
        let at = Some(to);
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

    /// From a host to the root: nothing is lost, and all in order.
    pub(crate) fn over_trunk(&mut self, host: usize, event: Event) {
        let at_ns = self.now_ns + 1 + self.random.below(self.delay_ns_max);
        let at_ns = at_ns.max(self.trunks_ns[host] + 1);
        self.trunks_ns[host] = at_ns;
        self.at(at_ns, event);
    }
}

fn host(number: usize) -> HostId {
    HostId::new(number as u64 + 1).expect("not zero")
}

fn index(host: HostId) -> usize {
    usize::try_from(host.get()).expect("an index") - 1
}

/// A proc's id.
pub(crate) fn id(proc: usize) -> ProcId {
    ProcId::new(proc as u64 + 1).expect("not zero")
}

fn parcel(proc: usize, frames: &[u8]) -> Parcel {
    Parcel {
        proc: id(proc),
        session: proc as u64,
        frames: frames.into(),
    }
}
