//! The actor system of roost, without sockets, clock, Python or unsafe code.
//!
//! Everything here is a state machine: bytes and the time go in, bytes and answers come out. So every schedule
//! can be replayed from a seed (`tests/sim`), and the crates above only move bytes.
//!
//! - [`id`]: who is who, and the text form of each name.
//! - [`limits`]: every bound and time of this crate, with its reason.
//! - [`wire`]: the bytes between two procs, described byte by byte in `docs/wire.md`.
//! - [`session`]: numbering, acknowledging, replaying and dropping of doubles between two procs.
//! - [`control`]: what procs and the agent of their host tell each other, apart from the data.
//! - [`agent`]: which procs of a host live, and what to do when one ends; [`restart`] is its policy.
//! - [`trust`]: how hosts of one job know each other, and the TLS between them.
//! - [`trunk`]: what the root of a job and the agent of another host tell each other.
//! - [`carrier`]: frames to many procs that travel together along a tree of hosts.
//! - [`credit`]: how many messages a sender may have in a mailbox, and what it may hold back itself.

#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![warn(clippy::missing_errors_doc, clippy::missing_panics_doc)]

pub mod agent;
pub mod carrier;
pub mod control;
pub mod credit;
pub mod id;
pub mod limits;
pub mod restart;
pub mod session;
pub mod trunk;
pub mod trust;
pub mod wire;
