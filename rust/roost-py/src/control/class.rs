//! What Python calls on a control thread.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyDict, PyList};
use roost_core::control::{Bytes, Environ, Launch, Rank, Spawn, TemplateKey, ToAgent};
use roost_core::id::{Incarnation, JobId};

use super::beginning::wanted_host;
use super::clock::now_ns;
use super::convert::{
    PolicyTuple, RankTuple, TemplateTuple, environ, mesh_id, nanoseconds, patience, proc_id, proc_ids, rank,
    system_error,
};
use super::handle::{Control, full};
use super::shared::Command;
use super::{notice, socket};
use crate::node::Node;
use crate::peer::Letters;

/// How long a proc waits at most for its control thread to tell that it is up.
const UP_WAIT: Duration = Duration::from_secs(10);

#[expect(clippy::needless_pass_by_value, reason = "Python's lists arrive as vectors")]
#[pymethods]
impl Control {
    /// Start the agent of this host in this process, the driver.
    #[staticmethod]
    fn start_agent(py: Python<'_>, job: [u8; 16], proc: u64, config: &Bound<'_, PyDict>) -> PyResult<Self> {
        Self::agent(py, JobId(job), proc_id(proc)?, config)
    }

    /// Start the agent of this host, which other hosts' drivers call; "listening" tells where.
    #[staticmethod]
    fn start_station(py: Python<'_>, config: &Bound<'_, PyDict>) -> PyResult<Self> {
        Self::station(py, config)
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

    /// A host is not there any more, as somebody knows: it is lost at once, and should it yet be there it is let in no more.
    fn lose(&self, number: u64, reason: String) -> PyResult<()> {
        self.check_process()?;
        self.command(Command::Lose { number, reason })
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

    /// Have frames go along the tree of hosts.
    fn post(&self, letters: &Bound<'_, Letters>) -> PyResult<()> {
        self.check_process()?;
        self.command(Command::Post(letters.get().take()))
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
        Self::client(py, (JobId(job), proc_id(proc)?, Incarnation(incarnation)), fds)
    }

    /// An eventfd, readable when `drain` has something.
    #[getter]
    fn fd(&self) -> i32 {
        self.ends.event.as_raw_fd()
    }

    /// All notices so far, in order.
    fn drain<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for (what, descriptor) in self.notices()? {
            list.append(notice::tuple(py, what, descriptor)?)?;
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

    /// After so much silence the driver gives another host up: how long this proc tries to reach one follows from that.
    fn expect_silence(&self, verdict_s: f64) -> PyResult<()> {
        self.check_process()?;
        self.command(Command::Silence(nanoseconds(verdict_s)?))
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
        py.detach(|| self.wait_ended(Duration::from_secs_f64(timeout_s)));
        Ok(())
    }
}
