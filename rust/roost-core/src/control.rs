//! The control lane: what procs and the agent of their host tell each other, apart from the data.
//!
//! Each message is one packet of a `SOCK_SEQPACKET` socket, in a fixed binary form (postcard); descriptors travel
//! beside it. What does not fit into [`CONTROL_PACKET_BYTES_MAX`] travels in a memory file, announced by
//! [`Envelope::Large`]. No message of Roost's own is ever a pickle.
//!
//! `death` says how a proc ended; `bytes` and `ids` say how those are written; `clocks` translates times between hosts.

mod bytes;
mod clocks;
mod death;
mod ids;
#[cfg(test)]
mod tests;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::bytes::Bytes;
pub use self::death::{Death, DeathKind, Exit, Times};
use crate::id::{HostId, Incarnation, MeshId, ProcId};
use crate::limits::{CONTROL_MESSAGE_BYTES_MAX, CONTROL_PACKET_BYTES_MAX};
use crate::restart::Policy;
use crate::trust::Credentials;

/// A control message that could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The bytes are no control message of this version.
    #[error("a control packet of {length} bytes is not a message of this version")]
    Malformed {
        /// Length of the packet.
        length: usize,
        /// What the decoder met.
        source: postcard::Error,
    },
    /// The message is longer than any that may be sent.
    #[error("control message of {length} bytes passes the limit of {CONTROL_MESSAGE_BYTES_MAX}")]
    TooLarge {
        /// Its length.
        length: usize,
    },
}

/// What one packet holds: a message, or the announcement of one that lies in the memory file beside it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Envelope<T> {
    /// The message itself.
    Inline(T),
    /// The message is `length` bytes at the start of the descriptor that came with the packet.
    Large {
        /// Bytes of the message.
        length: u64,
    },
}

/// Which warm process forks a proc: one for each list of modules and search path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct TemplateKey {
    /// Modules that are imported before the first fork.
    pub preload: Vec<String>,
    /// Where they are looked for; where it is empty, where the interpreter looks by itself.
    pub sys_path: Vec<String>,
}

/// The environment of a process that is to be executed: all of it, names and values as the system has them.
pub type Environ = Vec<(Bytes, Bytes)>;

/// What a proc is started with; kept for its later incarnations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    /// The spawn message, opaque to the core.
    pub spec: Bytes,
    /// Its environment from the first instruction on; with it the start is cold.
    pub environ: Option<Environ>,
    /// What stands for the interpreter; with it the start is cold.
    pub command: Option<Vec<String>>,
}

impl Launch {
    /// Whether it needs a process of its own making, rather than a fork of the template.
    pub fn is_cold(&self) -> bool {
        self.environ.is_some() || self.command.is_some()
    }
}

/// One rank of a spawn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rank {
    /// Its proc.
    pub proc: ProcId,
    /// Its name as people read it, `workers[gpus=3]`.
    pub label: String,
    /// What it is started with.
    pub launch: Launch,
    /// Where.
    pub host: HostId,
}

/// Start the procs of one mesh.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spawn {
    /// The proc mesh.
    pub mesh: MeshId,
    /// Its name.
    pub name: String,
    /// The proc whose actor spawned it; the mesh does not outlive it.
    pub owner: ProcId,
    /// The template that forks them; none when all start cold, which needs one without modules.
    pub template: Option<TemplateKey>,
    /// The environment that the template is started with, where it does not run yet.
    pub template_environ: Environ,
    /// What becomes of a rank that dies.
    pub policy: Option<Policy>,
    /// Whether their output goes on to the driver's.
    pub logs: bool,
    /// Whether the owner is asked for the launch of each later incarnation.
    pub ask: bool,
    /// The ranks.
    pub ranks: Vec<Rank>,
    /// Procs without a rank, for those that die.
    pub spares: Vec<Rank>,
}

/// How long a proc has to end by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patience {
    /// From the request to SIGTERM.
    pub grace_ns: u64,
    /// From SIGTERM to SIGKILL.
    pub sigterm_ns: u64,
}

impl Patience {
    /// SIGKILL at once.
    pub const NONE: Self = Self {
        grace_ns: 0,
        sigterm_ns: 0,
    };
}

/// What one actor does now; those that do nothing are not named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Activity {
    /// Its slot in its proc.
    pub slot: u32,
    /// Messages in its mailbox.
    pub queued: u32,
    /// The endpoints that run, each with the time on `CLOCK_MONOTONIC` at which it left the mailbox.
    pub running: Vec<(String, u64)>,
}

/// From a proc, or the driver, to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ToAgent {
    /// The sender is ready for messages.
    Up,
    /// The sender's setup raised; it ends now.
    StartFailed {
        /// What it raised.
        reason: String,
    },
    /// The sender wants a data lane to this proc.
    Connect {
        /// The proc to talk to.
        proc: ProcId,
    },
    /// The sender has no lane to this proc any more, or has lost what it needs for one: another may be made when either asks.
    ConnectLost {
        /// The proc at its other end.
        proc: ProcId,
        /// Why, as seen by the sender.
        reason: String,
    },
    /// A shared segment for another proc; the descriptor comes with the message.
    SegmentOffer {
        /// The receiver.
        to: ProcId,
        /// The sender's number for it.
        segment: u64,
        /// Its size.
        size_bytes: u64,
    },
    /// The answer to a segment that was offered to the sender.
    SegmentAck {
        /// The proc that offered it.
        to: ProcId,
        /// Its number there.
        segment: u64,
        /// Whether it was mapped.
        ok: bool,
    },
    /// Start procs.
    Spawn(Box<Spawn>),
    /// The answer to [`ToClient::Ask`].
    Respawn {
        /// The proc that is to start again.
        proc: ProcId,
        /// The incarnation that was asked for.
        incarnation: Incarnation,
        /// What to start, or why the user's function gave nothing.
        launch: Result<Launch, String>,
    },
    /// Keep this message of the constructor, in two pieces, for later incarnations of these procs.
    RecordActor {
        /// The procs.
        procs: Vec<ProcId>,
        /// The actor mesh.
        mesh: MeshId,
        /// What the message begins with, opaque to the core, and the same for many.
        start: Bytes,
        /// The rest of it.
        rest: Bytes,
    },
    /// The actor mesh has ended: its constructors are not run again.
    ForgetActor {
        /// The procs.
        procs: Vec<ProcId>,
        /// The actor mesh.
        mesh: MeshId,
    },
    /// End these procs for good.
    Stop {
        /// The procs.
        procs: Vec<ProcId>,
        /// Why.
        reason: String,
        /// How long they have.
        patience: Patience,
    },
    /// End these procs, then start their next incarnation.
    Restart {
        /// The procs.
        procs: Vec<ProcId>,
        /// Why.
        reason: String,
        /// How long they have to end.
        patience: Patience,
    },
    /// SIGKILL at once; the policy decides what follows.
    Kill {
        /// The procs.
        procs: Vec<ProcId>,
        /// Why, for the failure.
        reason: Option<String>,
    },
    /// The sender's event loop has not moved for as long as may be.
    Stalled {
        /// What is the matter, for people.
        reason: String,
        /// Where its threads are, as its interpreter tells it; empty where it cannot.
        stack: String,
    },
    /// The sender's event loop moves again.
    Resumed,
    /// What do the actors of this mesh do?
    Look {
        /// The proc that they live in.
        to: ProcId,
        /// Their mesh.
        mesh: MeshId,
    },
    /// The answer to [`ToClient::Look`].
    Seen {
        /// The proc that asked.
        to: ProcId,
        /// The mesh.
        mesh: MeshId,
        /// Its actors that do something.
        activities: Vec<Activity>,
    },
    /// A connection that was handed to the sender has proved itself, or has not.
    Greeted,
    /// Start this template, where it does not run yet: procs of it will follow.
    Prepare {
        /// Which.
        template: TemplateKey,
        /// The environment that it is started with.
        environ: Environ,
    },
    /// The sender wants to reach the memory of this life of a proc.
    Link {
        /// The proc.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
}

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
}

/// Write a message: the packet, and the message itself where it is too long for one.
///
/// # Errors
///
/// [`ControlError::TooLarge`] when it passes every limit.
pub fn encode<T: Serialize>(message: &T) -> Result<(Vec<u8>, Option<Vec<u8>>), ControlError> {
    // The envelope's own number is the first byte; so an inline packet is that byte and the message.
    let packet = write(&Envelope::Inline(message))?;
    if packet.len() <= CONTROL_PACKET_BYTES_MAX {
        return Ok((packet, None));
    }
    let mut message = packet;
    message.remove(0);
    let length = message.len();
    if length > CONTROL_MESSAGE_BYTES_MAX {
        return Err(ControlError::TooLarge { length });
    }
    let announcement = write(&Envelope::<()>::Large {
        length: length as u64,
    })?;
    Ok((announcement, Some(message)))
}

/// Read one packet.
///
/// # Errors
///
/// [`ControlError::Malformed`], and [`ControlError::TooLarge`] when it announces more than may be sent.
pub fn decode<T: DeserializeOwned>(packet: &[u8]) -> Result<Envelope<T>, ControlError> {
    let envelope = read(packet)?;
    if let Envelope::Large { length } = envelope {
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        if length > CONTROL_MESSAGE_BYTES_MAX {
            return Err(ControlError::TooLarge { length });
        }
    }
    Ok(envelope)
}

/// Read a message that came in a memory file.
///
/// # Errors
///
/// [`ControlError::Malformed`].
pub fn decode_large<T: DeserializeOwned>(message: &[u8]) -> Result<T, ControlError> {
    read(message)
}

/// Write a message that travels in pieces of its own, as between hosts; read by [`decode_large`].
///
/// # Errors
///
/// [`ControlError::TooLarge`].
pub fn encode_whole<T: Serialize>(message: &T) -> Result<Vec<u8>, ControlError> {
    let bytes = write(message)?;
    let length = bytes.len();
    if length > CONTROL_MESSAGE_BYTES_MAX {
        return Err(ControlError::TooLarge { length });
    }
    Ok(bytes)
}

fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, ControlError> {
    postcard::to_stdvec(value).map_err(|source| ControlError::Malformed { length: 0, source })
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ControlError> {
    let malformed = |source| ControlError::Malformed {
        length: bytes.len(),
        source,
    };
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(malformed)?;
    if rest.is_empty() {
        Ok(value)
    } else {
        Err(malformed(postcard::Error::SerdeDeCustom))
    }
}
