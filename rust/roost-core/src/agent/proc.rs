//! What the agent knows of one proc.

use std::sync::Arc;

use super::recorded::Recorded;
use super::template::{Keys, Parents, TemplateId};
use super::{Place, Seen, Signal};
use crate::control::{Death, Environ, Exit, Launch, Rank, Status, Times};
use crate::id::{HostId, Incarnation, MeshId, ProcId};
use crate::limits::STARTED_SLOTS;
use crate::restart::{History, On, Policy};

/// Where it stands. See the module above.
#[derive(Debug)]
pub(super) enum Phase {
    /// Waits for its template.
    Queued,
    /// Its process is made, or being made. `ready`: it said so before its process id was known.
    Starting { ready: bool },
    /// It handles messages.
    Up,
    /// Its end was seen and is told when the exit status is here, at the latest at `until_ns`.
    Dying { seen: Seen, until_ns: u64, gone: bool },
    /// Its end was told; the next incarnation starts at `at_ns`, but not before its memory is free.
    Down { at_ns: u64, gone: bool },
    /// The owner was asked for the next launch.
    Asking { warn_at_ns: Option<u64> },
    /// It stays down. The last status is for those who ask later.
    Over { last: Box<Status>, gone: bool },
}

impl Phase {
    /// Whether there is a process that hears.
    pub(super) fn is_alive(&self) -> bool {
        matches!(self, Self::Starting { .. } | Self::Up)
    }

    /// Whether nothing of it is left, nor will be.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Over { gone: true, .. })
    }
}

/// It was told to end.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) reason: String,
    /// Whether the next incarnation follows.
    pub(super) restart: bool,
    pub(super) terminate_at_ns: u64,
    pub(super) kill_at_ns: u64,
    /// The signal that was sent last.
    pub(super) sent: Option<Signal>,
}

#[derive(Debug)]
pub(super) struct Proc {
    pub(super) mesh: MeshId,
    /// Its place in the order of all spawns.
    pub(super) number: u64,
    pub(super) label: String,
    pub(super) owner: ProcId,
    pub(super) launch: Launch,
    /// Where it lives, or lived last.
    pub(super) host: HostId,
    /// What makes it there.
    pub(super) parents: Parents,
    /// What would elsewhere.
    pub(super) keys: Arc<Keys>,
    /// The environment of a cold start for which the launch gives none.
    pub(super) environ: Environ,
    pub(super) policy: Option<Policy>,
    pub(super) logs: bool,
    pub(super) ask: bool,
    /// It has no rank: nobody hears of it.
    pub(super) is_spare: bool,
    /// The place that its last process has taken.
    pub(super) became: Option<Place>,

    pub(super) history: History,
    /// Deaths that the policy mended, oldest first.
    pub(super) earlier: Vec<Death>,
    pub(super) recorded: Recorded,

    pub(super) incarnation: Incarnation,
    pub(super) phase: Phase,
    pub(super) times: Times,
    pub(super) pid: Option<u32>,
    /// Its exit status, where that came before its end was seen.
    pub(super) exit: Option<Exit>,
    pub(super) ending: Option<Ending>,
    /// The strongest signal that it is to get, also when its process is not there yet.
    pub(super) signal: Option<Signal>,
    pub(super) kill_reason: Option<String>,
    pub(super) start_failure: Option<String>,
    /// Its host is gone, and why: nobody saw its end.
    pub(super) lost: Option<String>,
    /// When it has to be up.
    pub(super) start_by_ns: Option<u64>,
    /// Launches of this incarnation that were lost with a template.
    pub(super) launches_lost: u32,
    /// Who waits for a lane until it is back.
    pub(super) waiting: Vec<(ProcId, Incarnation)>,
    next_slot: u32,
    /// When the table of procs knows that it wants to be looked at.
    pub(super) timer: Option<u64>,
}

/// The part of a spawn that all its ranks share.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) mesh: MeshId,
    pub(super) owner: ProcId,
    pub(super) keys: Arc<Keys>,
    pub(super) environ: Environ,
    pub(super) policy: Option<Policy>,
    pub(super) logs: bool,
    pub(super) ask: bool,
}

impl Proc {
    pub(super) fn new(shared: Shared, number: u64, rank: Rank, parents: Parents) -> Self {
        let Shared {
            mesh,
            owner,
            keys,
            environ,
            policy,
            logs,
            ask,
        } = shared;
        let Rank {
            label, launch, host, ..
        } = rank;
        Self {
            mesh,
            number,
            label,
            owner,
            launch,
            host,
            parents,
            keys,
            environ,
            policy,
            logs,
            ask,
            is_spare: false,
            became: None,
            history: History::default(),
            earlier: Vec::new(),
            recorded: Recorded::default(),
            incarnation: Incarnation::default(),
            phase: Phase::Queued,
            times: Times::default(),
            pid: None,
            exit: None,
            ending: None,
            signal: None,
            kill_reason: None,
            start_failure: None,
            lost: None,
            start_by_ns: None,
            launches_lost: 0,
            waiting: Vec::new(),
            next_slot: 0,
            timer: None,
        }
    }

    /// Make it the given incarnation, of which nothing has happened yet.
    pub(super) fn renew(&mut self, incarnation: Incarnation) {
        self.incarnation = incarnation;
        self.phase = Phase::Queued;
        self.times = Times::default();
        self.pid = None;
        self.exit = None;
        self.ending = None;
        self.signal = None;
        self.kill_reason = None;
        self.start_failure = None;
        self.lost = None;
        self.start_by_ns = None;
        self.launches_lost = 0;
        self.next_slot = 0;
    }

    /// Whether it starts elsewhere when its host is gone. A spare of another host is no better than one that waits there.
    pub(super) fn may_move(&self) -> bool {
        !self.is_spare && self.policy.is_some_and(|policy| policy.on == On::AnyHost)
    }

    /// The template that its next launch needs.
    pub(super) fn parent(&self) -> TemplateId {
        if self.launch.is_cold() {
            self.parents.light
        } else {
            self.parents.template
        }
    }

    /// The next place in its started page. They come round again: by then the first lanes are long over.
    pub(super) fn take_slot(&mut self) -> u32 {
        let slot = self.next_slot;
        self.next_slot = (slot + 1) % STARTED_SLOTS;
        slot
    }

    /// When it wants to be looked at.
    pub(super) fn wakeup_ns(&self) -> Option<u64> {
        match &self.phase {
            Phase::Starting { .. } => {
                let end = self.ending.as_ref().and_then(Ending::wakeup_ns);
                end.into_iter().chain(self.start_by_ns).min()
            }
            Phase::Up => self.ending.as_ref().and_then(Ending::wakeup_ns),
            Phase::Dying { until_ns, .. } => Some(*until_ns),
            Phase::Down { at_ns, gone } => gone.then_some(*at_ns),
            Phase::Asking { warn_at_ns } => *warn_at_ns,
            Phase::Queued => self.start_by_ns,
            Phase::Over { .. } => None,
        }
    }
}

impl Ending {
    /// Whether a process that ended so was ended by its signals. Others may have sent the same, and sooner.
    pub(super) fn forced(&self, exit: Exit) -> bool {
        match exit {
            Exit::Signal(15) => self.sent.is_some(),
            Exit::Signal(9) => self.sent == Some(Signal::Kill),
            _ => false,
        }
    }

    fn wakeup_ns(&self) -> Option<u64> {
        match self.sent {
            None => Some(self.terminate_at_ns.min(self.kill_at_ns)),
            Some(Signal::Terminate) => Some(self.kill_at_ns),
            Some(Signal::Kill) => None,
        }
    }
}
