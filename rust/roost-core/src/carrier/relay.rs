//! What one host does with carriers and answers.

use std::collections::{BTreeMap, VecDeque};

use super::{Carrier, Destination, Gathered, Parcel};
use crate::control::Bytes;
use crate::id::{HostId, ProcId};
use crate::limits::{CARRIER_FRAMES_BYTES_MAX, CARRIERS_REMEMBERED_MAX};
use crate::wire::FrameHead;

/// Where a carrier came from, and so its answers go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The root.
    Root,
    /// Another host.
    Host(HostId),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Give a proc of this host frames.
    Deliver {
        /// The proc.
        to: ProcId,
        /// Who has posted them.
        from: ProcId,
        /// The number of the two's session.
        session: u64,
        /// The carrier that has brought them.
        carrier: u64,
        /// Whole frames.
        frames: Bytes,
    },
    /// Send a carrier to its first host; where that is not reached, [`Relay::unreached`] finds another way.
    Carry(Carrier),
    /// Send answers back.
    Gather {
        /// To whom.
        to: Way,
        /// The answers.
        gathered: Gathered,
    },
}

/// These in runs, each of at most [`CARRIER_FRAMES_BYTES_MAX`]: what goes together.
pub fn batches<T>(all: Vec<T>, bytes: impl Fn(&T) -> usize) -> Vec<Vec<T>> {
    let (mut runs, mut held) = (Vec::new(), usize::MAX);
    for one in all {
        let more = bytes(&one);
        if held.saturating_add(more) > CARRIER_FRAMES_BYTES_MAX {
            runs.push(Vec::new());
            held = 0;
        }
        held += more;
        if let Some(run) = runs.last_mut() {
            run.push(one);
        }
    }
    runs
}

/// See the module.
#[derive(Debug, Default)]
pub struct Relay {
    /// Where the last carriers came from, the newest last. Their numbers are those of one root: a host works for one driver at a
    /// time, with a relay of its own for each, and procs begin no carriers.
    ways: VecDeque<(u64, Way)>,
    /// Answers that are ready, by carrier.
    ready: BTreeMap<u64, Vec<Parcel>>,
    /// What each proc of this host has answered last, and to which carrier.
    last: BTreeMap<ProcId, (u64, Parcel)>,
    outputs: VecDeque<Output>,
}

impl Relay {
    /// A carrier begins here: all of its hosts are others.
    pub fn begin(&mut self, carrier: Carrier) {
        let parts = carrier.split().map(Output::Carry);
        self.outputs.extend(parts);
    }

    /// A carrier has come, whose first host is this one.
    pub fn carried(&mut self, own: HostId, from: Way, mut carrier: Carrier) {
        if carrier.hosts.first().is_none_or(|first| first.host != own) {
            // A defect of another host's; whoever posted it hears of nothing, and sends it again.
            return;
        }
        if self.ways.len() == CARRIERS_REMEMBERED_MAX {
            self.ways.pop_front();
        }
        self.ways.push_back((carrier.number, from));
        // On its way before anything is done here: the longest path sets how long all takes.
        let here = carrier.hosts.remove(0);
        let onward = Carrier {
            hosts: std::mem::take(&mut carrier.hosts),
            ..carrier.clone()
        };
        self.begin(onward);
        self.deliver(&carrier, &here);
    }

    fn deliver(&mut self, carrier: &Carrier, here: &Destination) {
        for parcel in &here.parcels {
            self.outputs.push_back(Output::Deliver {
                to: parcel.proc,
                from: carrier.from,
                session: parcel.session,
                carrier: carrier.number,
                frames: carrier.whole(parcel),
            });
        }
    }

    /// The first host of a carrier was not reached: the others get it without that one.
    pub fn unreached(&mut self, mut carrier: Carrier) {
        if !carrier.hosts.is_empty() {
            carrier.hosts.remove(0);
        }
        self.begin(carrier);
    }

    /// A proc of this host answers what a carrier has brought.
    pub fn answered(&mut self, carrier: u64, answer: Parcel) {
        if is_numbered(&answer.frames) {
            self.last.insert(answer.proc, (carrier, answer.clone()));
        }
        self.ready.entry(carrier).or_default().push(answer);
    }

    /// A proc of this host has ended: what has to be said to the root before that is. Its last answer may be on its way through
    /// other hosts, which news of its end do not take, and nobody is left to send it again. It is one at most: before the next
    /// the root's side has acknowledged it. What comes twice is dropped by its number.
    pub fn ended(&mut self, proc: ProcId) -> Option<Gathered> {
        let (carrier, parcel) = self.last.remove(&proc)?;
        let parcels = vec![parcel];
        Some(Gathered { carrier, parcels })
    }

    /// Another host has gathered answers.
    pub fn gathered(&mut self, gathered: Gathered) {
        self.ready
            .entry(gathered.carrier)
            .or_default()
            .extend(gathered.parcels);
    }

    /// Sends what answers there are: what is ready together goes together, and nothing waits for more.
    pub fn end_turn(&mut self) {
        for (carrier, parcels) in std::mem::take(&mut self.ready) {
            let known = self.ways.iter().rev().find(|(number, _)| *number == carrier);
            let to = known.map_or(Way::Root, |(_, way)| *way);
            for parcels in batches(parcels, |parcel| parcel.frames.len()) {
                let gathered = Gathered { carrier, parcels };
                self.outputs.push_back(Output::Gather { to, gathered });
            }
        }
    }

    /// The next thing to be done.
    pub fn next_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }
}

/// Whether there is more in these frames than acknowledgements.
fn is_numbered(frames: &[u8]) -> bool {
    let mut rest = frames;
    while let Ok(Some(head)) = FrameHead::decode(rest) {
        if head.sequence != 0 {
            return true;
        }
        rest = rest.get(head.frame_length()..).unwrap_or_default();
    }
    false
}
