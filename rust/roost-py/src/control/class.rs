//! The Python class `Control`.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyDict, PyList};
use roost_core::control::{Bytes, Environ, Launch, Rank, Spawn, TemplateKey, ToAgent, ToClient};
use roost_core::id::{Incarnation, JobId, ProcId};
use rustix::process::{child_subreaper, getpid, set_child_subreaper};

use super::beginning::{
    agent_config, fail, item, own_hello, standing_config, start_thread, take_descriptor, wanted_host,
};
use super::client::{Client, NO_DESCRIPTORS};
use super::clock::now_ns;
use super::convert::{
    PolicyTuple, RankTuple, TemplateTuple, environ, mesh_id, nanoseconds, patience, proc_id, proc_ids, rank,
    system_error,
};
use super::host::{Basis, Host};
use super::links::{self, LinkCaller, LinkReader};
use super::log::Log;
use super::shared::{Command, Ends, Notice, Shared, What};
use super::standing::Standing;
use super::{descendants, memory, notice, socket, tombstone};
use crate::node::Node;

/// How long a proc waits at most for its control thread to tell that it is up.
const UP_WAIT: Duration = Duration::from_secs(10);

/// How long procs may take to end when a `Control` is dropped.
const DROP_WAIT_NS: u64 = 5_000_000_000;

/// The control thread of this process: the host's agent in the driver, its client in a proc.
///
/// Every method returns at once; what comes of it is told by `drain`.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct Control {
    shared: Arc<Shared>,
    ends: Ends,
    /// The process that it works in; a fork of that has no thread.
    pid: u32,
    agent: Option<AgentSide>,
    /// Where a proc's interpreter writes its stacks: the same file, under the same number, as in the thread's table.
    stacks: Option<OwnedFd>,
    is_closed: AtomicBool,
}

/// What only the driver has.
struct AgentSide {
    log: Arc<Log>,
    drain_logs: Duration,
    was_subreaper: bool,
}

#[expect(clippy::needless_pass_by_value, reason = "Python's lists arrive as vectors")]
#[pymethods]
impl Control {
    /// Start the agent of this host in this process, the driver.
    #[staticmethod]
    fn start_agent(py: Python<'_>, job: [u8; 16], proc: u64, config: &Bound<'_, PyDict>) -> PyResult<Self> {
        let (job, proc) = (JobId(job), proc_id(proc)?);
        let own = own_hello(py, job, proc, Incarnation::default());
        let config_value = agent_config(py, job, proc, config)?;
        let drain_logs = Duration::from_secs_f64(item(config, "drain_logs_s")?.unwrap_or(1.0));
        let was_subreaper = child_subreaper().is_ok_and(|reaper| reaper.is_some());
        set_child_subreaper(Some(getpid())).map_err(system_error)?;
        let log = Log::start()?;
        let log_for_thread = log.clone();
        let link = start_thread(&[], move |door, _| {
            // Started in the thread, so that everything it opens is in its own table.
            match Basis::open(&door) {
                Ok(basis) => Host::run_root((config_value, own), door, log_for_thread, basis),
                Err(error) => fail(door, &error),
            }
        })?;
        let agent = Some(AgentSide {
            log,
            drain_logs,
            was_subreaper,
        });
        Ok(Self::new(link, agent, None))
    }

    /// Start the agent of this host, which other hosts' drivers call; "listening" tells where.
    #[staticmethod]
    fn start_station(py: Python<'_>, config: &Bound<'_, PyDict>) -> PyResult<Self> {
        let (standing, proofs) = standing_config(py, config)?;
        let was_subreaper = child_subreaper().is_ok_and(|reaper| reaper.is_some());
        set_child_subreaper(Some(getpid())).map_err(system_error)?;
        let (opened, is_open) = sync_channel(1);
        let link = start_thread(&[], move |door, _| {
            // Opened in the thread, so that the listener is in its own table.
            match Standing::open(standing, proofs, door) {
                Ok(standing) => {
                    let _ = opened.send(Ok(()));
                    standing.run();
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        })?;
        let opened = py.detach(move || is_open.recv());
        opened.map_err(|_| PyRuntimeError::new_err("the control thread ended at once"))??;
        let log = Log::start()?;
        let agent = Some(AgentSide {
            log,
            drain_logs: Duration::ZERO,
            was_subreaper,
        });
        Ok(Self::new(link, agent, None))
    }

    /// Call a host at the first of its addresses that answers; "host" notices with this number tell what comes of it.
    fn attach(&self, number: u64, addresses: Vec<String>, config: &Bound<'_, PyDict>) -> PyResult<()> {
        self.check_process()?;
        let wanted = Box::new(wanted_host(&addresses, config)?);
        self.command(Command::Attach { number, wanted })
    }

    /// Let a host end its work for this job; with `shutdown` its agent ends too.
    #[pyo3(signature = (number, shutdown = false, reason = String::from("detached")))]
    fn detach(&self, number: u64, shutdown: bool, reason: String) -> PyResult<()> {
        self.check_process()?;
        self.command(Command::Detach {
            number,
            reason,
            shutdown,
        })
    }

    /// The data lane to this proc is of no use any more: who waits at its other end is told so, and it may be asked for anew.
    fn connect_lost(&self, proc: u64, reason: String) -> PyResult<()> {
        let proc = proc_id(proc)?;
        self.say(ToAgent::ConnectLost { proc, reason })
    }

    /// The data lane to this proc of another host has no connection, and needs one.
    fn redial(&self, proc: u64) -> PyResult<()> {
        self.check_process()?;
        self.command(Command::Redial(proc_id(proc)?))
    }

    /// Start the client of the host's agent in this process, a proc. Takes the descriptors over.
    #[staticmethod]
    fn start_client(
        py: Python<'_>,
        job: [u8; 16],
        proc: u64,
        incarnation: u32,
        fds: HashMap<String, i32>,
    ) -> PyResult<Self> {
        let own = own_hello(py, JobId(job), proc_id(proc)?, Incarnation(incarnation));
        let mut fds = fds;
        for name in ["tombstone_a", "tombstone_b"] {
            tombstone::hold(take_descriptor(&mut fds, name)?)?;
        }
        let control = take_descriptor(&mut fds, "control")?;
        let driver = take_descriptor(&mut fds, "driver")?;
        let mark = descendants::mark(JobId(job), Some(proc_id(proc)?), Incarnation(incarnation));
        let stacks = memory::file("roost-stacks", &[]).map_err(system_error)?;
        let kept = [control.as_fd(), driver.as_fd(), stacks.as_fd()];
        let link = start_thread(&kept, move |door, mut given| {
            let (Some(stacks), Some(driver), Some(control)) = (given.pop(), given.pop(), given.pop()) else {
                return;
            };
            match Client::watch_all(&control, &driver, &door) {
                Ok(epoll) => Client::new(epoll, (control, driver, stacks), door, (mark, own)).run(),
                Err(error) => fail(door, &error.into()),
            }
        })?;
        Ok(Self::new(link, None, Some(stacks)))
    }

    /// An eventfd, readable when `drain` has something.
    #[getter]
    fn fd(&self) -> i32 {
        self.ends.event.as_raw_fd()
    }

    /// All notices so far, in order.
    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        self.check_process()?;
        let list = PyList::empty(py);
        for Notice { what, has_descriptor } in self.shared.take_notices(&self.ends) {
            let descriptor = if has_descriptor {
                self.take_descriptor()
            } else {
                None
            };
            let what = if has_descriptor && descriptor.is_none() {
                self.lost(what)?
            } else {
                Some(what)
            };
            if let Some(what) = what {
                list.append(notice::tuple(py, what, descriptor)?)?;
            }
        }
        Ok(list)
    }

    /// Have a template import what procs will need, while this process still makes up its mind.
    fn prepare(&self, template: TemplateTuple<'_>) -> PyResult<()> {
        let (preload, sys_path, variables) = template;
        self.say(ToAgent::Prepare {
            template: TemplateKey { preload, sys_path },
            environ: environ(&variables)?,
        })
    }

    /// Start the procs of one mesh.
    #[expect(clippy::too_many_arguments, reason = "Python gives the last ones by name")]
    #[pyo3(signature = (mesh, name, ranks, template, policy, owner, logs, ask = false, spares = Vec::new()))]
    fn spawn_procs(
        &self,
        mesh: u64,
        name: String,
        ranks: Vec<RankTuple<'_>>,
        template: Option<TemplateTuple<'_>>,
        policy: Option<PolicyTuple>,
        owner: u64,
        logs: bool,
        ask: bool,
        spares: Vec<RankTuple<'_>>,
    ) -> PyResult<()> {
        let ranks = ranks.into_iter().map(rank).collect::<PyResult<Vec<Rank>>>()?;
        let spares = spares.into_iter().map(rank).collect::<PyResult<Vec<Rank>>>()?;
        let cold_without_environ = |rank: &Rank| rank.launch.environ.is_none();
        if template.is_none() && ranks.iter().chain(&spares).any(cold_without_environ) {
            return Err(PyValueError::new_err(
                "without a template every rank needs env_start",
            ));
        }
        let (template, template_environ) = match template {
            None => (None, Environ::new()),
            Some((preload, sys_path, environ)) => (
                Some(TemplateKey { preload, sys_path }),
                super::convert::environ(&environ)?,
            ),
        };
        let policy = policy.map(super::convert::policy).transpose()?;
        let (mesh, owner) = (mesh_id(mesh)?, proc_id(owner)?);
        let spawn = Spawn {
            mesh,
            name,
            owner,
            template,
            template_environ,
            policy,
            logs,
            ask,
            ranks,
            spares,
        };
        self.say(ToAgent::Spawn(Box::new(spawn)))
    }

    /// Answer "ask": start this incarnation with this.
    fn respawn(
        &self,
        proc: u64,
        incarnation: u32,
        spec: &[u8],
        env_start: Option<&Bound<'_, PyDict>>,
        command: Option<Vec<String>>,
    ) -> PyResult<()> {
        let environ = env_start.map(environ).transpose()?;
        let launch = Ok(Launch {
            spec: spec.into(),
            environ,
            command,
        });
        self.say(ToAgent::Respawn {
            proc: proc_id(proc)?,
            incarnation: Incarnation(incarnation),
            launch,
        })
    }

    /// Answer "ask": there is nothing to start it with.
    fn respawn_failed(&self, proc: u64, incarnation: u32, text: String) -> PyResult<()> {
        let incarnation = Incarnation(incarnation);
        self.say(ToAgent::Respawn {
            proc: proc_id(proc)?,
            incarnation,
            launch: Err(text),
        })
    }

    /// Keep constructors' messages for later incarnations: [(proc, mesh, plan, the rest of the message)]. All at once, since
    /// the control thread wakes up for each request.
    fn record_actors(&self, records: Vec<(u64, u64, PyBackedBytes, PyBackedBytes)>) -> PyResult<()> {
        self.check_process()?;
        let mut last = Bytes::from(Vec::new());
        let record =
            |(proc, mesh, plan, rest): (u64, u64, PyBackedBytes, PyBackedBytes)| -> PyResult<Command> {
                let (procs, mesh) = (proc_ids(&[proc])?, mesh_id(mesh)?);
                if *last != *plan {
                    last = Bytes::from(&*plan);
                }
                Ok(Command::Message(
                    ToAgent::RecordActor {
                        procs,
                        mesh,
                        start: last.clone(),
                        rest: Bytes::from(&*rest),
                    },
                    false,
                ))
            };
        let commands = records.into_iter().map(record).collect::<PyResult<Vec<_>>>()?;
        self.shared.commands(&self.ends, commands).map_err(|_| full())
    }

    /// Forget the constructors of this actor mesh.
    fn forget_actor(&self, procs: Vec<u64>, mesh: u64) -> PyResult<()> {
        self.say(ToAgent::ForgetActor {
            procs: proc_ids(&procs)?,
            mesh: mesh_id(mesh)?,
        })
    }

    /// Ask for a data lane.
    fn connect(&self, proc: u64) -> PyResult<()> {
        self.say(ToAgent::Connect { proc: proc_id(proc)? })
    }

    /// This proc is ready. Returns when that is on its way: who gets a reply from this proc and then sees it killed must not
    /// hear that it never started.
    fn up(&self, py: Python<'_>) -> PyResult<()> {
        let times = self.shared.count_up();
        self.say(ToAgent::Up)?;
        // When the thread has ended, so has the lane, and this process is about to.
        py.detach(|| self.shared.wait_up_told(times, UP_WAIT));
        Ok(())
    }

    /// Where the handler of `watch_loop`'s signal is to write the stacks of all threads; in a proc only.
    #[getter]
    fn stack_fd(&self) -> Option<i32> {
        self.stacks.as_ref().map(AsRawFd::as_raw_fd)
    }

    /// Tell the owner when this proc's loop, which watches `fd`, has not moved for so long.
    fn watch_loop(&self, after_s: f64, signal: i32) -> PyResult<()> {
        self.check_process()?;
        let after_ns = nanoseconds(after_s)?;
        self.command(Command::Watch { after_ns, signal })
    }

    /// This proc cannot start, and ends now.
    fn start_failed(&self, text: String) -> PyResult<()> {
        self.say(ToAgent::StartFailed { reason: text })
    }

    /// End procs for good.
    fn stop(&self, procs: Vec<u64>, reason: String, grace_s: f64, sigterm_s: f64) -> PyResult<()> {
        let patience = patience(grace_s, sigterm_s)?;
        self.say(ToAgent::Stop {
            procs: proc_ids(&procs)?,
            reason,
            patience,
        })
    }

    /// End procs, then start their next incarnation.
    fn restart(&self, procs: Vec<u64>, reason: String, grace_s: f64, sigterm_s: f64) -> PyResult<()> {
        let patience = patience(grace_s, sigterm_s)?;
        self.say(ToAgent::Restart {
            procs: proc_ids(&procs)?,
            reason,
            patience,
        })
    }

    /// SIGKILL procs at once.
    #[pyo3(signature = (procs, reason = None))]
    fn kill(&self, procs: Vec<u64>, reason: Option<String>) -> PyResult<()> {
        self.say(ToAgent::Kill {
            procs: proc_ids(&procs)?,
            reason,
        })
    }

    /// Offer a shared segment to another proc. The descriptor stays the caller's.
    fn segment_offer(&self, to_proc: u64, segment_id: u64, size: u64, fd: i32) -> PyResult<()> {
        self.check_process()?;
        let to = proc_id(to_proc)?;
        if fd < 0 {
            return Err(PyValueError::new_err("the descriptor is closed"));
        }
        // SAFETY: the caller keeps it open during this call, as for every function that takes a number.
        let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
        socket::send(&self.ends.handover, &[0], &[descriptor]).map_err(system_error)?;
        let message = ToAgent::SegmentOffer {
            to,
            segment: segment_id,
            size_bytes: size,
        };
        self.command(Command::Message(message, true))
    }

    /// Answer "segment".
    fn segment_ack(&self, to_proc: u64, segment_id: u64, ok: bool) -> PyResult<()> {
        self.say(ToAgent::SegmentAck {
            to: proc_id(to_proc)?,
            segment: segment_id,
            ok,
        })
    }

    /// Have the control thread answer for the actors of this process, also while Python's loop stands still.
    fn show(&self, node: &Bound<'_, Node>) -> PyResult<()> {
        self.check_process()?;
        self.command(Command::Show(node.get().board()))
    }

    /// Ask what the actors of a mesh in a proc do: "seen" tells.
    fn look(&self, proc: u64, mesh: u64) -> PyResult<()> {
        self.say(ToAgent::Look {
            to: proc_id(proc)?,
            mesh: mesh_id(mesh)?,
        })
    }

    /// End what is left, and the control thread.
    #[pyo3(signature = (timeout_s = 5.0))]
    fn close(&self, py: Python<'_>, timeout_s: f64) -> PyResult<()> {
        self.check_process()?;
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let until_ns = now_ns().saturating_add(nanoseconds(timeout_s)?);
        self.command(Command::Close { until_ns })?;
        py.detach(|| {
            // What comes after the procs' end has bounds of its own.
            self.shared
                .wait_ended(Duration::from_secs_f64(timeout_s) + Duration::from_secs(3));
            if let Some(agent) = &self.agent {
                agent.log.flush(agent.drain_logs);
                agent.log.close();
                if !agent.was_subreaper {
                    let _ = set_child_subreaper(None);
                }
            }
        });
        Ok(())
    }
}

impl Drop for Control {
    /// Dropped without `close`: what it started is ended all the same, without waiting for it.
    fn drop(&mut self) {
        if process::id() == self.pid && !self.is_closed.swap(true, Ordering::Relaxed) {
            let until_ns = now_ns().saturating_add(DROP_WAIT_NS);
            // Where there is no room for it, the end of this process is what ends the procs.
            let _ = self.command(Command::Close { until_ns });
            if let Some(agent) = &self.agent {
                agent.log.close();
            }
        }
    }
}

impl Control {
    fn new((shared, ends): (Arc<Shared>, Ends), agent: Option<AgentSide>, stacks: Option<OwnedFd>) -> Self {
        Self {
            shared,
            ends,
            pid: process::id(),
            agent,
            stacks,
            is_closed: AtomicBool::new(false),
        }
    }

    /// Begin to tell of links to memory; once a process.
    pub(crate) fn open_links(&self) -> PyResult<(LinkCaller, LinkReader)> {
        self.check_process()?;
        let (caller, reader, end, socket) = links::pair(&self.shared, &self.ends).map_err(system_error)?;
        // The descriptor lies there before the command that takes it.
        socket::send(&self.ends.handover, &[0], &[socket.as_fd()]).map_err(system_error)?;
        self.command(Command::Links(end))?;
        Ok((caller, reader))
    }

    fn check_process(&self) -> PyResult<()> {
        if process::id() == self.pid {
            return Ok(());
        }
        let text = format!(
            "this process is a fork of process {}, in which roost was started; roost does not work in a fork",
            self.pid
        );
        Err(PyRuntimeError::new_err(text))
    }

    fn say(&self, message: ToAgent) -> PyResult<()> {
        self.check_process()?;
        self.command(Command::Message(message, false))
    }

    fn command(&self, command: Command) -> PyResult<()> {
        self.shared.commands(&self.ends, [command]).map_err(|_| full())
    }

    fn take_descriptor(&self) -> Option<OwnedFd> {
        socket::receive(&self.ends.handover, &mut [0])
            .ok()?
            .descriptors
            .pop()
    }

    /// A notice lost its descriptor, because this process has none left: say so to both sides.
    fn lost(&self, what: What) -> PyResult<Option<What>> {
        match what {
            What::Message(ToClient::Connected { proc, .. }) => self.lane_lost(proc),
            What::Lane(end) => self.lane_lost(end.proc),
            What::Message(ToClient::Segment { from, segment, .. }) => {
                self.say(ToAgent::SegmentAck {
                    to: from,
                    segment,
                    ok: false,
                })?;
                Ok(None)
            }
            what => Ok(Some(what)),
        }
    }

    fn lane_lost(&self, proc: ProcId) -> PyResult<Option<What>> {
        let reason = NO_DESCRIPTORS.to_owned();
        self.say(ToAgent::ConnectLost { proc, reason })?;
        let reason = "no file descriptors left for a data lane (EMFILE)".to_owned();
        Ok(Some(ToClient::ConnectFailed { proc, reason }.into()))
    }
}

fn full() -> PyErr {
    PyRuntimeError::new_err("the control thread takes no requests any more: too many wait")
}
