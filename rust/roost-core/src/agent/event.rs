//! What goes into the agent and what comes out of it.

use serde::{Deserialize, Serialize};

use super::TemplateId;
use crate::control::{Bytes, Environ, Exit, TemplateKey, ToAgent, ToClient};
use crate::id::{HostId, Incarnation, ProcId};

/// A descriptor that the layer above holds for a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// What happened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Input {
    /// A proc, or the driver, said something.
    Message {
        /// Who.
        from: ProcId,
        /// What.
        message: ToAgent,
        /// The descriptor that came with it, which stays on its host.
        #[serde(skip)]
        descriptor: Option<Token>,
    },
    /// A template has imported its modules and forks from now on.
    TemplateReady(TemplateId),
    /// A template has imported its modules, but cannot fork safely: what needs it starts cold.
    TemplateRefused {
        /// The template.
        template: TemplateId,
        /// Why.
        reason: String,
    },
    /// A template could not import what it was asked for.
    TemplateFailed {
        /// The template.
        template: TemplateId,
        /// Why.
        reason: String,
        /// The last lines of its stderr.
        stderr: String,
    },
    /// A template's process ended.
    TemplateEnded {
        /// The template.
        template: TemplateId,
        /// Whether something killed it: then it is worth another try.
        killed: bool,
        /// How it ended, for people.
        reason: String,
        /// The last lines of its stderr.
        stderr: String,
    },
    /// The process of a launch exists.
    Launched {
        /// The proc.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The process.
        pid: u32,
    },
    /// The process of a launch could not be made.
    LaunchFailed {
        /// The proc.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Why.
        reason: String,
    },
    /// The template ended before it answered a launch.
    LaunchLost {
        /// The proc.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// A process is ending: nothing of it runs any more, though its memory may not be free yet.
    Died {
        /// The proc.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// What was seen.
        seen: Seen,
    },
    /// The exit status of a process.
    Exited {
        /// The proc.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// How it ended.
        exit: Exit,
    },
    /// A process is gone, with its memory. Comes after [`Input::Died`].
    Gone {
        /// The proc.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// The two ends of a lane could not be made.
    PairFailed {
        /// One end.
        first: ProcId,
        /// The other.
        second: ProcId,
        /// Why.
        reason: String,
    },
    /// The two ends of a link could not be made.
    LinkFailed {
        /// Who asked for it.
        asks: Life,
        /// Whose memory was wanted.
        serves: Life,
        /// Why.
        reason: String,
    },
    /// Procs can be started on this host from now on.
    HostJoined {
        /// The host.
        host: HostId,
        /// Its name, for people.
        name: String,
    },
    /// A host is given up: nothing is heard of it any more, and nothing said to it.
    HostLost {
        /// The host.
        host: HostId,
        /// Why.
        reason: String,
    },
    /// A host was let go in order: what still runs there has been stopped.
    HostLeft {
        /// The host.
        host: HostId,
    },
    /// Everything ends now: no proc is started again, those that run are killed.
    Close,
    /// Nothing but the time.
    Tick,
}

impl Input {
    /// Make what was seen of a spare's process be seen of the rank whose place it has taken.
    pub fn follow(&mut self, place: &Place) {
        match self {
            Self::Message { from, .. } if *from == place.spare.0 => *from = place.proc.0,
            Self::Died {
                proc, incarnation, ..
            }
            | Self::Exited {
                proc, incarnation, ..
            }
            | Self::Gone { proc, incarnation }
                if (*proc, *incarnation) == place.spare =>
            {
                (*proc, *incarnation) = place.proc;
            }
            _ => {}
        }
    }
}

/// What is known at the end of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// How it ended, where that is certain already.
    pub exit: Option<Exit>,
    /// How it seems to have ended, for when no status comes.
    pub likely: Option<Exit>,
    /// Whether the kernel's memory killer was at work.
    pub oom: bool,
    /// The last lines of its stderr.
    pub stderr: String,
    /// Its started page, by slot; what is missing at the end is zero.
    pub started: Vec<u64>,
    /// The last frame that it was about to write to each of its lanes between hosts, in the same way.
    pub said: Vec<u64>,
}

/// A signal to a proc.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Signal {
    /// SIGTERM.
    Terminate,
    /// SIGKILL.
    Kill,
}

/// How a process is made. Either way its parent is a template, which adopts and reaps what it leaves behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    /// A fork of the template.
    Fork,
    /// Executed by it, with this environment.
    Cold(Environ),
}

/// Make the process of one incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The proc.
    pub proc: ProcId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Who gets the other end of its first data lane.
    pub owner: ProcId,
    /// Whether that lives on the same host. Else no lane is made with it: an [`Output::Far`] follows.
    pub owner_is_here: bool,
    /// The place in the owner's started page for it.
    pub owner_slot: Option<u32>,
    /// Its name as people read it.
    pub label: String,
    /// Its parent.
    pub template: TemplateId,
    /// How it is made.
    pub source: Source,
    /// What stands for the interpreter, in a cold start.
    pub command: Option<Vec<String>>,
    /// The spawn message.
    pub spec: Bytes,
    /// Constructors to run, recorded since the spawn.
    pub recorded: Vec<Bytes>,
    /// Whether its output goes on to the driver's.
    pub logs: bool,
    /// Whether it waits for a place: its owner gets no lane to it before [`Output::TakePlace`].
    pub is_spare: bool,
}

/// A spare takes the place of a rank: its process is that rank's from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The spare, and which life of it.
    pub spare: (ProcId, Incarnation),
    /// The rank's proc, and which life of it this is.
    pub proc: (ProcId, Incarnation),
    /// The place in the owner's started page for it.
    pub owner_slot: Option<u32>,
    /// Its name as people read it.
    pub label: String,
}

/// One end of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneEnd {
    /// Who gets it.
    pub proc: ProcId,
    /// The incarnation that gets it.
    pub incarnation: Incarnation,
    /// The place in its started page for the other.
    pub slot: Option<u32>,
}

/// One life of a proc.
pub type Life = (ProcId, Incarnation);

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Output {
    /// Start a template.
    StartTemplate {
        /// Its number in what follows.
        template: TemplateId,
        /// What it imports.
        key: TemplateKey,
        /// Its environment.
        environ: Environ,
    },
    /// Start a proc. Its owner gets its end of the data lane as [`ToClient::Connected`] once the process is there.
    Launch(Box<Order>),
    /// Let the process of a spare be that of a rank, then give the owner its end of the data lane. What was seen of the
    /// spare and not been told yet is told of the rank: see [`Input::follow`].
    TakePlace(Place),
    /// Tell procs of one host, or the driver.
    Send {
        /// Whom.
        to: Vec<ProcId>,
        /// What.
        message: ToClient,
        /// The descriptor that goes with it, to the only one there is then.
        #[serde(skip)]
        descriptor: Option<Token>,
    },
    /// Make a data lane and hand its ends out, each as [`ToClient::Connected`].
    Pair {
        /// One end.
        first: LaneEnd,
        /// The other.
        second: LaneEnd,
    },
    /// Make a data lane between procs of two hosts. Both hosts get this, and each tells its proc what it has to do:
    /// [`ToClient::Dial`] here, [`ToClient::Expect`] there.
    Far {
        /// Who dials.
        dial: LaneEnd,
        /// Who is dialled.
        accept: LaneEnd,
        /// The host of that one.
        accept_host: HostId,
        /// The number of the session that runs over it.
        session: u64,
    },
    /// Make a link to the memory of a proc, and hand its ends out, each as [`ToClient::Linked`].
    Link {
        /// Its number.
        link: u32,
        /// Who asked for it.
        asks: Life,
        /// Whose memory is wanted.
        serves: Life,
    },
    /// Make one between procs of two hosts. Both hosts get this, and each tells its proc what it has to do:
    /// [`ToClient::DialLink`] here, [`ToClient::ExpectLink`] there.
    FarLink {
        /// Its number.
        link: u32,
        /// Who dials.
        dial: Life,
        /// Who is dialled.
        accept: Life,
        /// The host of that one.
        accept_host: HostId,
        /// Whether who dials asked for it.
        dialler_asks: bool,
    },
    /// Signal a process.
    Signal {
        /// The proc.
        proc: ProcId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// The signal.
        signal: Signal,
    },
}
