//! What the agent is asked.

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::ToClient;
use super::bytes::Bytes;
use crate::id::{HostId, Incarnation, MeshId, ProcId};
use crate::restart::Policy;

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
    /// The lane to this proc of another host has no connection, and it is that proc which dials.
    Redial {
        /// The proc at its other end.
        proc: ProcId,
    },
    /// Frames of the sender for the proc that has posted what this carrier has brought. Its agent sees to it.
    Answered {
        /// The carrier.
        carrier: u64,
        /// The number of the two's session.
        session: u64,
        /// Whole frames.
        frames: Bytes,
    },
}
