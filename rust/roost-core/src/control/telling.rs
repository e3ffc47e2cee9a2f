//! What the agent tells.

use serde::{Deserialize, Serialize};

use super::asking::Activity;
use super::bytes::Bytes;
use super::death::{Death, Times};
use crate::id::{HostId, Incarnation, MeshId, ProcId};
use crate::trust::Credentials;

/// Where a proc stands, as its host's agent tells it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Status {
    /// Its process is being started.
    Starting {
        /// When.
        times: Times,
        /// The actor meshes whose recorded constructors it is started with.
        actors: Vec<MeshId>,
        /// Where.
        host: HostId,
    },
    /// It handles messages.
    Up {
        /// Its process.
        pid: u32,
        /// When it started and was ready.
        times: Times,
    },
    /// This incarnation ended, and the next is to come.
    Dead {
        /// How.
        death: Death,
    },
    /// The next incarnation will start.
    Restarting {
        /// How long the policy waits before it.
        delay_ns: u64,
        /// Why.
        reason: String,
    },
    /// It failed and will not be started again.
    Failed {
        /// How it ended at last.
        death: Death,
        /// The deaths before it that the policy mended, oldest first.
        earlier: Vec<Death>,
    },
    /// It ended in order, or because it was told to.
    Stopped {
        /// How.
        death: Death,
    },
    /// Its process is gone, with its memory: told to the owner after [`Status::Failed`] or [`Status::Stopped`].
    Gone,
    /// It lives, but its event loop does not move. Told to the owner alone, as what follows.
    Stalled {
        /// What is the matter, for people.
        reason: String,
        /// Where its threads are; empty where that cannot be had.
        stack: String,
    },
    /// Its event loop moves again.
    Resumed,
}

impl Status {
    /// Whether this incarnation has ended.
    pub fn is_end(&self) -> bool {
        matches!(
            self,
            Self::Dead { .. } | Self::Failed { .. } | Self::Stopped { .. }
        )
    }
}

/// One change of one proc.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Member {
    /// The membership epoch that this change made, or that held when only the owner was told.
    pub epoch: u32,
    /// The proc.
    pub proc: ProcId,
    /// The incarnation that it is about.
    pub incarnation: Incarnation,
    /// Where it stands now.
    pub status: Status,
}

/// Where a host stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostStatus {
    /// Procs can be started there.
    Joined,
    /// It was given up: what was there is taken for dead.
    Lost {
        /// Why.
        reason: String,
    },
    /// It was let go in order.
    Left,
}

/// From the agent to a proc, or to the driver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToClient {
    /// The first message: the membership epoch at the receiver's start.
    Epoch {
        /// The epoch.
        epoch: u32,
        /// Where the receiver lives.
        host: HostId,
    },
    /// A data lane; its descriptor comes with the message.
    Connected {
        /// The proc at the other end.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The place in the receiver's started page for what that proc sends; none in the driver.
        slot: Option<u32>,
    },
    /// There will be no data lane.
    ConnectFailed {
        /// The proc that was asked for.
        proc: ProcId,
        /// Why.
        reason: String,
    },
    /// A proc changed.
    Member(Box<Member>),
    /// A shared segment; its descriptor comes with the message.
    Segment {
        /// The proc that offers it.
        from: ProcId,
        /// Its number there.
        segment: u64,
        /// Its size.
        size_bytes: u64,
    },
    /// The answer to a segment that the receiver offered.
    SegmentAck {
        /// The proc that it was offered to.
        from: ProcId,
        /// Its number.
        segment: u64,
        /// Whether it was mapped.
        ok: bool,
    },
    /// The receiver is to end in order.
    Stop {
        /// Why.
        reason: String,
        /// When SIGTERM comes, on `CLOCK_MONOTONIC`.
        deadline_ns: u64,
    },
    /// Something for the log.
    Warning {
        /// What.
        text: String,
    },
    /// What shall this incarnation be started with?
    Ask {
        /// The proc.
        proc: ProcId,
        /// The incarnation that is to start.
        incarnation: Incarnation,
    },
    /// What do the actors of this mesh do? The control thread answers.
    Look {
        /// The proc that asks.
        from: ProcId,
        /// Their mesh.
        mesh: MeshId,
    },
    /// The answer to a look at actors of that proc.
    Seen {
        /// The proc that they live in.
        from: ProcId,
        /// The mesh.
        mesh: MeshId,
        /// Its actors that do something.
        activities: Vec<Activity>,
    },
    /// The receiver, a spare, may have to make actors that begin like this: what they need can be loaded now.
    Prepare {
        /// What their constructors' messages begin with, opaque to the core.
        start: Bytes,
    },
    /// The receiver, a spare, is the next incarnation of a rank that died.
    Become {
        /// Which life of the rank.
        incarnation: Incarnation,
        /// What that is started with.
        spec: Bytes,
        /// Constructors to run, recorded since the spawn.
        recorded: Vec<Bytes>,
    },
    /// A host changed. Told to the driver, and to the owners of procs there, before what follows for those procs.
    Host {
        /// The host.
        host: HostId,
        /// Its name, for people.
        name: String,
        /// Where it stands now.
        status: HostStatus,
    },
    /// What the receiver shows to procs of other hosts, and knows them by. Told once, before the first of the following.
    Network(Box<Credentials>),
    /// Make a data lane to a proc of another host, and make it again when it breaks, until that incarnation has ended.
    Dial {
        /// The proc at the other end.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The place in the receiver's started page for what that proc sends; none in the driver.
        slot: Option<u32>,
        /// The number of the session that runs over it.
        session: u64,
        /// The host of that proc.
        host: HostId,
        /// Where that listens, to be tried in order.
        addresses: Vec<String>,
    },
    /// A proc of another host is going to dial.
    Expect {
        /// The proc at the other end.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The place in the receiver's started page for what that proc sends; none in the driver.
        slot: Option<u32>,
        /// The number of the session that runs over it.
        session: u64,
    },
    /// Somebody has dialled; the descriptor of the connection comes with the message.
    Incoming {
        /// What it said first.
        preamble: Bytes,
    },
    /// How the receiver's monotonic clock stands to the root's.
    Clock {
        /// To be added to the receiver's.
        offset_ns: i64,
    },
    /// A link to the memory of a proc of this host, or from one to the receiver's; its descriptor comes with the message.
    Linked {
        /// Its number.
        link: u32,
        /// The proc at the other end.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Whether the receiver asked for it: else it is the receiver's memory that is wanted.
        asks: bool,
    },
    /// There will be no link of those that the receiver asked for.
    LinkFailed {
        /// The proc whose memory was wanted.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Why.
        reason: String,
        /// Whether that incarnation has ended: there will never be one.
        is_over: bool,
    },
    /// Make a link to a proc of another host.
    DialLink {
        /// Its number.
        link: u32,
        /// The proc at the other end.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Whether the receiver asked for it.
        asks: bool,
        /// The host of that proc.
        host: HostId,
        /// Where that listens, to be tried in order.
        addresses: Vec<String>,
    },
    /// A proc of another host is going to make a link.
    ExpectLink {
        /// Its number.
        link: u32,
        /// The proc at the other end.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Whether the receiver asked for it.
        asks: bool,
    },
    /// Make the connection of the lane to this proc again, which has something to say and cannot dial.
    Redial {
        /// The proc at the other end.
        proc: ProcId,
    },
    /// Frames that a proc of another host has posted, and a carrier has brought.
    Carried {
        /// Who has posted them.
        from: ProcId,
        /// The number of the two's session.
        session: u64,
        /// The carrier.
        carrier: u64,
        /// Whole frames.
        frames: Bytes,
    },
}
