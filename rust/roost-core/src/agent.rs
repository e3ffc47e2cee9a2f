//! The agent of a job: which hosts and procs there are, which live, and what to do when one ends.
//!
//! A state machine without I/O or clock: [`Agent::handle`] takes what happened and the time, [`Agent::next_output`]
//! gives what is to be done, [`Agent::next_wakeup_ns`] says when it wants to be called again. The layer above starts
//! processes, moves bytes and descriptors, and watches for ends; on each host one does so for all procs there. The agent
//! itself lives with the driver, and each [`Output`] names the host that it is for.
//!
//! The life of one incarnation:
//!
//! ```text
//! queued → starting → up → dying → down → (asking) → queued, next incarnation
//!   (template)               │       └ waits for the pause and until its memory is free
//!                            └ end seen; waits a little for the exit status, then told to everybody
//! ```
//!
//! `over` is the end of all of it: stopped, or failed for good.
//!
//! | module | what it is |
//! |---|---|
//! | `event` | what comes in and goes out |
//! | `hosts` | the hosts, and what becomes of the procs of one that is gone; `places` where procs start |
//! | `telling` | who hears of what |
//! | `proc` | one proc, in all its incarnations; `recorded` what makes its actors again; `procs` all of them |
//! | `start`, `launch`, `template` | its start, by a template or cold |
//! | `connect` | who has a data lane with whom, and what passes through the agent; `linking` who reaches whose memory |
//! | `death`, `stop` | its end, and whether that is mended; `words` say how it was |
//! | `spare` | procs in reserve, which take the place of a rank that died; `need` how many are wanted |

mod connect;
mod death;
mod event;
mod hosts;
mod launch;
mod linking;
mod need;
mod places;
mod proc;
mod procs;
mod recorded;
mod spare;
mod start;
mod stop;
mod telling;
mod template;
#[cfg(test)]
mod tests;
mod words;

use std::collections::{BTreeMap, VecDeque};

use self::connect::Lanes;
pub use self::event::{Input, LaneEnd, Life, Order, Output, Place, Seen, Signal, Source, Token};
use self::hosts::Hosts;
use self::proc::Phase;
use self::procs::Procs;
use self::spare::Spares;
pub use self::template::TemplateId;
use self::template::Templates;
use crate::control::{Patience, Status, ToAgent, ToClient};
use crate::id::{HostId, MeshId, ProcId};

/// The agent of a job. See the module.
#[derive(Debug)]
pub struct Agent {
    driver: ProcId,
    /// For procs whose owner ended.
    patience: Patience,
    /// How long a proc may take to be up.
    start_timeout_ns: u64,
    random: Random,
    epoch: u32,
    hosts: Hosts,
    procs: Procs,
    /// Of the meshes that have any.
    spares: BTreeMap<MeshId, Spares>,
    /// Those that ended for good, in that order.
    ended: VecDeque<ProcId>,
    templates: Templates,
    lanes: Lanes,
    /// The number of the last link.
    links: u32,
    outputs: VecDeque<(HostId, Output)>,
    /// Procs spawned so far.
    spawned: u64,
    closed: bool,
}

impl Agent {
    /// The agent inside `driver`, on `host`. `seed` spreads the pauses before restarts and numbers sessions; `patience` is for procs whose owner
    /// ended; a proc that is not up `start_timeout_ns` after its start has failed to start.
    pub fn new(driver: ProcId, host: HostId, patience: Patience, start_timeout_ns: u64, seed: u64) -> Self {
        Self {
            driver,
            patience,
            start_timeout_ns,
            random: Random(seed),
            epoch: 0,
            hosts: Hosts::new(host),
            procs: Procs::default(),
            spares: BTreeMap::new(),
            ended: VecDeque::new(),
            templates: Templates::default(),
            lanes: Lanes::default(),
            links: 0,
            outputs: VecDeque::new(),
            spawned: 0,
            closed: false,
        }
    }

    /// Take in what happened at `now_ns`, which never goes back: on the driver's host, or to hosts. What another host says is
    /// for [`Agent::handle_from`].
    pub fn handle(&mut self, now_ns: u64, input: Input) {
        match input {
            Input::Message {
                from,
                message,
                descriptor,
            } => self.message(now_ns, from, message, descriptor),
            Input::TemplateReady(template) => self.template_ready(template),
            Input::TemplateRefused { template, reason } => self.template_refused(template, &reason),
            Input::TemplateFailed {
                template,
                reason,
                stderr,
            } => {
                self.template_failed(now_ns, template, &reason, &stderr);
            }
            Input::TemplateEnded {
                template,
                killed,
                reason,
                stderr,
            } => {
                self.template_ended(now_ns, template, killed, (&reason, &stderr));
            }
            Input::Launched {
                proc,
                incarnation,
                pid,
            } => self.launched(now_ns, proc, incarnation, pid),
            Input::LaunchFailed {
                proc,
                incarnation,
                reason,
            } => {
                self.launch_failed(now_ns, proc, incarnation, reason, String::new());
            }
            Input::LaunchLost { proc, incarnation } => self.launch_lost(now_ns, proc, incarnation),
            Input::Died {
                proc,
                incarnation,
                seen,
            } => self.died(now_ns, proc, incarnation, seen),
            Input::Exited {
                proc,
                incarnation,
                exit,
            } => self.exited(now_ns, proc, incarnation, exit),
            Input::Gone { proc, incarnation } => self.gone(now_ns, proc, incarnation),
            Input::PairFailed {
                first,
                second,
                reason,
            } => self.pair_failed(first, second, &reason),
            Input::LinkFailed { asks, serves, reason } => self.link_failed(asks, serves, &reason),
            Input::HostJoined { host, name } => self.host_joined(host, &name),
            Input::HostLost { host, reason } => self.host_lost(now_ns, host, reason),
            Input::HostLeft { host } => self.host_left(now_ns, host),
            Input::Close => self.close(now_ns),
            Input::Tick => {}
        }
        self.due(now_ns);
    }

    /// The next thing to be done, in order, and by which host. What is for the driver is for its host.
    pub fn next_output(&mut self) -> Option<(HostId, Output)> {
        self.outputs.pop_front()
    }

    /// When to call [`Agent::handle`] with [`Input::Tick`] at the latest.
    pub fn next_wakeup_ns(&self) -> Option<u64> {
        self.procs.next_wakeup_ns()
    }

    /// The driver's proc.
    pub fn driver(&self) -> ProcId {
        self.driver
    }

    /// The membership epoch.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether no process of any proc is left.
    pub fn is_empty(&self) -> bool {
        self.procs
            .values()
            .all(|proc| matches!(proc.phase, Phase::Over { gone: true, .. }))
    }

    /// The name of a proc as people read it.
    pub fn label(&self, id: ProcId) -> String {
        if id == self.driver {
            return "driver".to_owned();
        }
        self.procs
            .get(&id)
            .map_or_else(|| id.to_string(), |proc| proc.label.clone())
    }

    fn message(&mut self, now_ns: u64, from: ProcId, message: ToAgent, descriptor: Option<Token>) {
        match message {
            ToAgent::Up => self.up(now_ns, from),
            ToAgent::StartFailed { reason } => {
                if let Some(proc) = self.procs.get_mut(from) {
                    proc.start_failure = Some(reason);
                }
            }
            ToAgent::Stalled { reason, stack } => self.progress(from, Status::Stalled { reason, stack }),
            ToAgent::Resumed => self.progress(from, Status::Resumed),
            ToAgent::Connect { proc } => self.connect(from, proc),
            ToAgent::Link { proc, incarnation } => self.link(from, (proc, incarnation)),
            ToAgent::ConnectLost { proc, reason } => self.connect_lost(from, proc, &reason),
            ToAgent::Redial { proc } => self.redial(from, proc),
            ToAgent::SegmentOffer {
                to,
                segment,
                size_bytes,
            } => self.segment_offer(from, to, (segment, size_bytes), descriptor),
            ToAgent::SegmentAck { to, segment, ok } => {
                self.send(to, ToClient::SegmentAck { from, segment, ok });
            }
            ToAgent::Look { to, mesh } => self.look(from, to, mesh),
            ToAgent::Seen { to, mesh, activities } => self.seen(from, to, mesh, activities),
            ToAgent::Spawn(spawn) => self.spawn(now_ns, from, *spawn),
            // For the agent of another host, which sees to it.
            ToAgent::Greeted | ToAgent::Answered { .. } => {}
            ToAgent::Prepare { template, environ } => self.prepare(from, &template, &environ),
            ToAgent::Respawn {
                proc,
                incarnation,
                launch,
            } => self.respawn(now_ns, proc, incarnation, launch),
            ToAgent::RecordActor {
                procs,
                mesh,
                start,
                rest,
            } => self.record_actor(from, &procs, mesh, (&start, &rest)),
            ToAgent::ForgetActor { procs, mesh } => {
                for id in procs {
                    if let Some(proc) = self.procs.get_mut(id) {
                        proc.recorded.forget(mesh);
                    }
                }
            }
            ToAgent::Stop {
                procs,
                reason,
                patience,
            } => {
                for &id in &procs {
                    self.stop(now_ns, id, &reason, patience);
                }
                self.end_useless_spares(now_ns, &procs, patience);
            }
            ToAgent::Restart {
                procs,
                reason,
                patience,
            } => {
                for id in procs {
                    self.restart(now_ns, id, &reason, patience);
                }
            }
            ToAgent::Kill { procs, reason } => {
                for id in procs {
                    self.kill(id, reason.as_deref());
                }
            }
        }
    }

    /// Do what its time has come for.
    fn due(&mut self, now_ns: u64) {
        for id in self.procs.due(now_ns) {
            self.escalate(now_ns, id);
            match self.procs.get(&id).map(|proc| &proc.phase) {
                Some(Phase::Dying { .. }) => self.tell_death(now_ns, id),
                Some(Phase::Down { .. }) => self.start_next(now_ns, id),
                Some(Phase::Asking { .. }) => self.warn_unanswered(id),
                Some(Phase::Queued | Phase::Starting { .. }) => self.end_overdue_start(now_ns, id),
                _ => {}
            }
        }
        self.procs.settle();
    }
}

/// Spreads pauses and numbers sessions; nothing depends on its quality. (`SplitMix64`.)
#[derive(Debug)]
struct Random(u64);

impl Random {
    /// Any number.
    fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Uniform in [0, 1).
    #[expect(clippy::cast_precision_loss, reason = "53 bits are what an f64 holds")]
    fn fraction(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
