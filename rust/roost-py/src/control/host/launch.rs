//! Making the process of one incarnation.

use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use roost_core::agent::{Input, LaneEnd, Order, Source as From, TemplateId};
use roost_core::control::{Bytes, Environ};
use roost_core::id::{Incarnation, ProcId};
use roost_core::limits::STARTED_SLOTS;
use rustix::event::epoll::EventFlags;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::pump::{Pump, Stream};
use super::templates::request;
use super::{Host, Source};
use crate::control::lane::Lane;
use crate::control::{descendants, memory, socket};

/// A process and what the agent holds of it.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) incarnation: Incarnation,
    pub(super) label: String,
    /// Its template, until that has answered.
    pub(super) ordered_from: Option<TemplateId>,
    pub(super) pid: Option<u32>,
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) control: Option<Lane>,
    pub(super) control_source: u64,
    pub(super) control_blocked: bool,
    pub(super) tombstones: [Option<OwnedFd>; 2],
    pub(super) page: OwnedFd,
    pub(super) pumps: [Pump; 2],
    /// Its end was told to the agent.
    pub(super) died: bool,
    pub(super) sources: Vec<u64>,
}

/// The ends that the process gets.
struct ProcEnds {
    control: OwnedFd,
    data: OwnedFd,
    tombstones: [OwnedFd; 2],
    stdout: OwnedFd,
    stderr: OwnedFd,
    spec: OwnedFd,
    page: OwnedFd,
    recorded: Option<OwnedFd>,
}

impl ProcEnds {
    /// In the order in which `roost._proc` names them.
    fn descriptors<'a>(&'a self, driver: &'a OwnedFd) -> Vec<BorrowedFd<'a>> {
        let [first, second] = &self.tombstones;
        [
            &self.control,
            &self.data,
            first,
            second,
            &self.stdout,
            &self.stderr,
            &self.spec,
            &self.page,
            driver,
        ]
        .into_iter()
        .chain(self.recorded.as_ref())
        .map(AsFd::as_fd)
        .collect()
    }
}

impl Host {
    /// Carry out an order.
    pub(super) fn launch(&mut self, order: &Order) {
        let (proc, incarnation) = (order.proc, order.incarnation);
        if let Err(error) = self.try_launch(order) {
            self.drop_running(proc);
            let reason = error.to_string();
            self.inputs.push_back(Input::LaunchFailed {
                proc,
                incarnation,
                reason,
            });
        }
    }

    fn try_launch(&mut self, order: &Order) -> io::Result<()> {
        let (running, ends, owner_end) = self.prepare(order)?;
        self.running.insert(order.proc, running);
        self.register_running(order.proc)?;
        match &order.source {
            From::Template(template) => {
                let request = request(order.incarnation, Some(order.proc));
                let descriptors = ends.descriptors(&self.own);
                self.templates
                    .get(template)
                    .ok_or_else(|| io::Error::other("the template has ended"))
                    .and_then(|template| Ok(socket::send(&template.socket, &request, &descriptors)?))?;
                self.order_given(*template, order.proc);
            }
            From::Cold(environ) => {
                let pid = self.execute(order, environ, &ends)?;
                self.process_known(order.proc, pid, None)?;
            }
        }
        let owner = LaneEnd {
            proc: order.owner,
            incarnation: self
                .running
                .get(&order.owner)
                .map(|owner| owner.incarnation)
                .unwrap_or_default(),
            slot: order.owner_slot,
        };
        let own = LaneEnd {
            proc: order.proc,
            incarnation: order.incarnation,
            slot: Some(0),
        };
        self.hand_out(owner, own, owner_end);
        Ok(())
    }

    /// Everything that the process and its owner get.
    fn prepare(&self, order: &Order) -> io::Result<(Running, ProcEnds, OwnedFd)> {
        let (control, proc_control) = socket::packet_pair()?;
        let (owner_data, data) = socket::stream_pair()?;
        let (first, proc_first) = socket::stream_pair()?;
        let (second, proc_second) = socket::stream_pair()?;
        let (stdout_read, stdout) = output_pipe()?;
        let (stderr_read, stderr) = output_pipe()?;
        let page = memory::page("roost-started", STARTED_SLOTS as usize * 8)?;
        let recorded = (!order.recorded.is_empty())
            .then(|| recorded_file(&order.recorded))
            .transpose()?;
        let ends = ProcEnds {
            control: proc_control,
            data,
            tombstones: [proc_first, proc_second],
            stdout,
            stderr,
            spec: memory::file("roost-spec", &order.spec)?,
            page: page.try_clone()?,
            recorded,
        };
        let log = order.logs.then(|| self.log.clone());
        let running = Running {
            incarnation: order.incarnation,
            label: order.label.clone(),
            ordered_from: None,
            pid: None,
            pidfd: None,
            control: Some(Lane::new(control)),
            control_source: 0,
            control_blocked: false,
            tombstones: [Some(first), Some(second)],
            page,
            pumps: [
                Pump::new(stdout_read, Stream::Out, &order.label, log.clone()),
                Pump::new(stderr_read, Stream::Err, &order.label, log),
            ],
            died: false,
            sources: Vec::new(),
        };
        Ok((running, ends, owner_data))
    }

    fn register_running(&mut self, id: ProcId) -> io::Result<()> {
        let Some(mut running) = self.running.remove(&id) else {
            return Ok(());
        };
        let result = self.register_ends(id, &mut running);
        self.running.insert(id, running);
        Ok(result?)
    }

    fn register_ends(&mut self, id: ProcId, running: &mut Running) -> Result<(), rustix::io::Errno> {
        let mut sources = Vec::new();
        if let Some(lane) = &running.control {
            running.control_source = self.register(lane.socket(), Source::Client(id), EventFlags::IN)?;
            sources.push(running.control_source);
        }
        for (number, tombstone) in running.tombstones.iter().enumerate() {
            if let Some(tombstone) = tombstone {
                let source = Source::Tombstone(id, number);
                sources.push(self.register(tombstone.as_fd(), source, EventFlags::RDHUP)?);
            }
        }
        for pump in &running.pumps {
            if let Some(pipe) = pump.pipe() {
                sources.push(self.register(pipe, Source::Pipe(id, pump.stream), EventFlags::IN)?);
            }
        }
        running.sources.extend(sources);
        Ok(())
    }

    /// The process of a launch exists.
    pub(super) fn process_known(&mut self, id: ProcId, pid: u32, pidfd: Option<OwnedFd>) -> io::Result<()> {
        let pidfd = pidfd.map_or_else(|| open_pidfd(pid), Ok)?;
        let source = self.register(pidfd.as_fd(), Source::End(id), EventFlags::IN)?;
        let Some(running) = self.running.get_mut(&id) else {
            return Ok(());
        };
        running.sources.push(source);
        running.pid = Some(pid);
        running.pidfd = Some(pidfd);
        running.ordered_from = None;
        let incarnation = running.incarnation;
        self.inputs.push_back(Input::Launched {
            proc: id,
            incarnation,
            pid,
        });
        Ok(())
    }

    /// A cold start: the descriptors wait in the socket that is its standard input.
    fn execute(&self, order: &Order, environ: &Environ, ends: &ProcEnds) -> io::Result<u32> {
        let command = order.command.as_ref().unwrap_or(&self.config.executable);
        let mark = descendants::mark(self.config.job, Some(order.proc), order.incarnation);
        let (outside, inside) = socket::packet_pair()?;
        socket::send(
            &outside,
            &request(order.incarnation, Some(order.proc)),
            &ends.descriptors(&self.own),
        )?;
        let outputs = [ends.stdout.try_clone()?, ends.stderr.try_clone()?];
        let program = self.bootstrap("_proc");
        start(command, &program, environ, (&mark, inside), outputs)
    }

    /// The program that every interpreter of ours is started with. The package may be known through the driver's
    /// `sys.path` alone; the working directory, which `-c` puts first, must not hide modules.
    pub(super) fn bootstrap(&self, module: &str) -> String {
        let path = python_string(&self.config.package_path);
        format!(
            "import sys; sys.path[:1] == [''] and sys.path.pop(0); sys.path.append({path}); \
             from roost.{module} import main; main()"
        )
    }

    /// Let go of everything of one process.
    pub(super) fn drop_running(&mut self, id: ProcId) -> Option<Running> {
        let running = self.running.remove(&id)?;
        self.forget(&running.sources);
        Some(running)
    }
}

/// The descriptor of a process that cannot have been reaped yet.
pub(super) fn open_pidfd(pid: u32) -> io::Result<OwnedFd> {
    let number = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(number, PidfdFlags::empty())?)
}

/// A pipe of which the agent's end does not block.
pub(super) fn output_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    Ok((read, write))
}

/// Start a process without copying this one's memory, which may be large.
pub(super) fn start(
    command: &[String],
    program: &str,
    environ: &Environ,
    (mark, stdin): (&str, OwnedFd),
    [stdout, stderr]: [OwnedFd; 2],
) -> io::Result<u32> {
    let shown = command.join(" ");
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("cannot start `{shown}`: {error}"));
    let (name, arguments) = command
        .split_first()
        .ok_or_else(|| failed(io::Error::other("the command is empty")))?;
    let path = find_program(name, environ).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let (mark_name, mark_value) = mark.split_once('=').expect("a mark is a variable");
    let child = Command::new(path)
        .arg0(name)
        .args(arguments)
        .args(["-c", program])
        .env_clear()
        .envs(
            environ
                .iter()
                .map(|(name, value)| (os_string(name), os_string(value))),
        )
        .env(mark_name, mark_value)
        .stdin(Stdio::from(stdin))
        .stdout(Stdio::from(stdout))
        .stderr(Stdio::from(stderr))
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    Ok(child.id())
}

/// Look a program up in the new process's own `PATH`, so that it can be started without a fork.
fn find_program(name: &str, environ: &Environ) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name));
    }
    let path = environ.iter().find(|(variable, _)| &**variable == b"PATH");
    let path = path.map_or_else(
        || "/usr/local/bin:/usr/bin:/bin".into(),
        |(_, value)| os_string(value),
    );
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(|program| is_executable(program))
}

fn is_executable(program: &Path) -> bool {
    program.is_file() && rustix::fs::access(program, rustix::fs::Access::EXEC_OK).is_ok()
}

fn os_string(bytes: &Bytes) -> std::ffi::OsString {
    std::ffi::OsString::from_vec(bytes.to_vec())
}

/// Constructors one after the other, each behind its length.
fn recorded_file(recorded: &[Bytes]) -> io::Result<OwnedFd> {
    let mut bytes = Vec::with_capacity(recorded.iter().map(|payload| payload.len() + 8).sum());
    for payload in recorded {
        bytes.extend_from_slice(&(payload.len() as u64).to_le_bytes());
        bytes.extend_from_slice(payload);
    }
    Ok(memory::file("roost-actors", &bytes)?)
}

/// A literal that Python reads as this text.
fn python_string(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_graphic() && letter != '\'' && letter != '\\';
    let mut literal = String::from("'");
    for letter in text.chars() {
        if plain(letter) {
            literal.push(letter);
        } else {
            // Writing to a string cannot fail.
            let _ = write!(literal, "\\U{:08x}", u32::from(letter));
        }
    }
    literal.push('\'');
    literal
}
