//! Carriers: frames to many procs on many hosts that travel together along a tree of hosts, and the answers that are gathered
//! on the way back.
//!
//! A frame that is carried is a frame of the session between its sender and its receiver, posted by one and taken by the other
//! ([`Session::post`](crate::session::Session::post)): numbers, acknowledgements and what is kept for sending again stay
//! theirs. So a tree promises nothing: what a dead host had in hand, or a full one has dropped, its sender sends over its own
//! connection when it is not acknowledged in time, and what arrives twice is dropped by its number.
//!
//! A carrier names its hosts in order. Whoever has one splits them into at most [`CARRIER_HOSTS_MAX`] runs and sends each to
//! the first host of its run, which does the same with the others: there is no tree to be kept, and a host that is not
//! reached is left out by whoever did not reach it.
//!
//! | module | what it is |
//! |---|---|
//! | `relay` | what one host does with carriers and answers |

mod relay;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use self::relay::{Output, Relay, Way, batches};
use crate::control::Bytes;
use crate::id::{HostId, ProcId};
use crate::limits::CARRIER_HOSTS_MAX;

/// Frames from one proc to many.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Carrier {
    /// Counted by the root; answers name it.
    pub number: u64,
    /// The proc that has posted the frames.
    pub from: ProcId,
    /// What the frames of all receivers end with: all but their heads, and where each goes, of a message to a mesh.
    pub tail: Bytes,
    /// The hosts that it is for, the one that it is sent to first.
    pub hosts: Vec<Destination>,
}

/// One host of a carrier.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// The host.
    pub host: HostId,
    /// Where it listens, to be tried in order.
    pub addresses: Vec<String>,
    /// What its procs get: what their frames begin with.
    pub parcels: Vec<Parcel>,
}

/// Frames of one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parcel {
    /// The proc that gets them; of answers, the proc that gives them.
    pub proc: ProcId,
    /// The number of its session with the other.
    pub session: u64,
    /// Whole frames; in a carrier without its tail.
    pub frames: Bytes,
}

/// Answers to what one carrier has brought.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gathered {
    /// The carrier.
    pub carrier: u64,
    /// The answers.
    pub parcels: Vec<Parcel>,
}

/// What two hosts of a tree say to each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Word {
    /// Away from the root.
    Carrier(Carrier),
    /// Towards it.
    Gathered(Gathered),
}

impl Carrier {
    /// A carrier of these frames, by host: what all of them end with travels once.
    pub fn new(number: u64, from: ProcId, mut hosts: Vec<Destination>) -> Self {
        let parcels = || hosts.iter().flat_map(|host| &host.parcels);
        let tail = parcels().next().map_or(&[][..], |first| &first.frames);
        let common = |shared: usize, parcel: &Parcel| {
            let ends = tail[tail.len() - shared..].iter().rev();
            ends.zip(parcel.frames.iter().rev())
                .take_while(|(one, other)| one == other)
                .count()
        };
        let shared = parcels().fold(tail.len(), common);
        let tail = Bytes::from(&tail[tail.len() - shared..]);
        for parcel in hosts.iter_mut().flat_map(|host| &mut host.parcels) {
            parcel.frames = Bytes::from(&parcel.frames[..parcel.frames.len() - shared]);
        }
        Self {
            number,
            from,
            tail,
            hosts,
        }
    }

    /// The carriers that take it on, each to be sent to its first host.
    fn split(self) -> impl Iterator<Item = Self> {
        let Self {
            number,
            from,
            tail,
            hosts,
        } = self;
        let (count, mut hosts) = (hosts.len(), hosts.into_iter());
        let runs = count.min(CARRIER_HOSTS_MAX);
        (0..runs).map(move |run| Self {
            number,
            from,
            tail: tail.clone(),
            hosts: hosts
                .by_ref()
                .take((count * (run + 1)) / runs - (count * run) / runs)
                .collect(),
        })
    }

    /// The whole frames of a parcel.
    fn whole(&self, parcel: &Parcel) -> Bytes {
        [&*parcel.frames, &*self.tail].concat().into()
    }
}
