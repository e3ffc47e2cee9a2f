//! Connections to other hosts, on the control thread.
//!
//! | module | what it is |
//! |---|---|
//! | `address` | where a host listens |
//! | `greeter` | connections that are being made: connect, preamble, answer, proof |
//! | `station` | where a host's agent is called, and what a stranger may cost |
//! | `neighbour` | whose process of this machine is at the other end, where there is no key to tell |
//! | `remotes` | the hosts of a job, as its root has them |
//! | `uplink` | the root, as a host has it |
//! | `edges` | other hosts' agents, as one has them: the tree of hosts |
//! | `records`, `line` | what goes over a trunk: records first, then frames |
//! | `far` | a process's data lanes to other hosts, and its links to memory there |
//! | `stream`, `turn` | bytes over a socket; an epoll set inside another |

mod address;
mod edges;
mod far;
mod greeter;
mod line;
mod neighbour;
mod records;
mod remotes;
mod station;
mod stream;
mod turn;
mod uplink;

pub(super) use self::address::Address;
pub(super) use self::edges::{Edges, News as EdgeNews};
pub(super) use self::far::{FarLanes, LinkMade, News as LaneNews, Ready};
pub(super) use self::remotes::{News as RemoteNews, Remotes, Terms, Wanted, Why};
pub(super) use self::station::{Call, Claimed, Lane as CalledLane, Station};
pub(super) use self::uplink::{Uplink, Word};
