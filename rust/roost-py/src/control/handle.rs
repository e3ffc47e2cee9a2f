//! What a process has of its control thread: how that starts, what it is told, what comes of it, how it ends.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use roost_core::control::{ToAgent, ToClient};
use roost_core::id::{Incarnation, JobId, ProcId};
use rustix::process::{child_subreaper, getpid, set_child_subreaper};

use super::beginning::{agent_config, fail, item, own_hello, standing_config, start_thread, take_descriptor};
use super::client::{Client, NO_DESCRIPTORS};
use super::clock::now_ns;
use super::convert::system_error;
use super::host::{Basis, Host};
use super::links::{self, LinkCaller, LinkReader};
use super::log::Log;
use super::shared::{Command, Ends, Notice, Shared, What};
use super::standing::Standing;
use super::{descendants, memory, socket, tombstone};

/// How long procs may take to end when a `Control` is dropped.
const DROP_WAIT_NS: u64 = 5_000_000_000;

/// The control thread of this process: the host's agent in the driver, its client in a proc.
///
/// Every method returns at once; what comes of it is told by `drain`.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct Control {
    pub(super) shared: Arc<Shared>,
    pub(super) ends: Ends,
    /// The process that it works in; a fork of that has no thread.
    pid: u32,
    agent: Option<AgentSide>,
    /// Where a proc's interpreter writes its stacks: the same file, under the same number, as in the thread's table.
    pub(super) stacks: Option<OwnedFd>,
    pub(super) is_closed: AtomicBool,
}

/// What only the driver has.
struct AgentSide {
    log: Arc<Log>,
    drain_logs: Duration,
    was_subreaper: bool,
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

    /// The agent of this host, in the driver.
    pub(super) fn agent(
        py: Python<'_>,
        job: JobId,
        proc: ProcId,
        config: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
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

    /// The agent of this host, which other hosts' drivers call.
    pub(super) fn station(py: Python<'_>, config: &Bound<'_, PyDict>) -> PyResult<Self> {
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

    /// The client of the host's agent, in a proc.
    pub(super) fn client(
        py: Python<'_>,
        (job, proc, incarnation): (JobId, ProcId, Incarnation),
        mut fds: HashMap<String, i32>,
    ) -> PyResult<Self> {
        let own = own_hello(py, job, proc, incarnation);
        for name in ["tombstone_a", "tombstone_b"] {
            tombstone::hold(take_descriptor(&mut fds, name)?)?;
        }
        let control = take_descriptor(&mut fds, "control")?;
        let driver = take_descriptor(&mut fds, "driver")?;
        let mark = descendants::mark(job, Some(proc), incarnation);
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

    /// Begin to tell of links to memory; once a process.
    pub(crate) fn open_links(&self) -> PyResult<(LinkCaller, LinkReader)> {
        self.check_process()?;
        let (caller, reader, end, socket) = links::pair(&self.shared, &self.ends).map_err(system_error)?;
        // The descriptor lies there before the command that takes it.
        socket::send(&self.ends.handover, &[0], &[socket.as_fd()]).map_err(system_error)?;
        self.command(Command::Links(end))?;
        Ok((caller, reader))
    }

    pub(super) fn check_process(&self) -> PyResult<()> {
        if process::id() == self.pid {
            return Ok(());
        }
        let text = format!(
            "this process is a fork of process {}, in which roost was started; roost does not work in a fork",
            self.pid
        );
        Err(PyRuntimeError::new_err(text))
    }

    pub(super) fn say(&self, message: ToAgent) -> PyResult<()> {
        self.check_process()?;
        self.command(Command::Message(message, false))
    }

    pub(super) fn command(&self, command: Command) -> PyResult<()> {
        self.shared.commands(&self.ends, [command]).map_err(|_| full())
    }

    /// All notices so far, in order, with the descriptors that came with them.
    pub(super) fn notices(&self) -> PyResult<Vec<(What, Option<OwnedFd>)>> {
        self.check_process()?;
        let mut found = Vec::new();
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
            found.extend(what.map(|what| (what, descriptor)));
        }
        Ok(found)
    }

    /// Wait for the thread's end, and in a driver for what procs have written.
    pub(super) fn wait_ended(&self, timeout: Duration) {
        // What comes after the procs' end has bounds of its own.
        self.shared.wait_ended(timeout + Duration::from_secs(3));
        if let Some(agent) = &self.agent {
            agent.log.flush(agent.drain_logs);
            agent.log.close();
            if !agent.was_subreaper {
                let _ = set_child_subreaper(None);
            }
        }
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

pub(super) fn full() -> PyErr {
    PyRuntimeError::new_err("the control thread takes no requests any more: too many wait")
}
