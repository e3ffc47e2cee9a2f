//! Making the process of one incarnation.

use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use roost_core::agent::{Input, LaneEnd, Order, Place, Source as Making, TemplateId};
use roost_core::control::{Bytes, Environ};
use roost_core::id::{Incarnation, ProcId};
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::pump::{Pump, Stream};
use super::templates::request;
use super::{Host, Source};
use crate::control::lane::Lane;
use crate::control::socket::Blocked;
use crate::control::{descendants, memory, socket};
use crate::page;

/// A process and what the agent holds of it.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) incarnation: Incarnation,
    /// What its process was made as: its mark, and how its template knows it. A spare becomes another proc.
    pub(super) made_as: (ProcId, Incarnation),
    pub(super) label: String,
    /// Its template, until that has answered.
    pub(super) ordered_from: Option<TemplateId>,
    pub(super) pid: Option<u32>,
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) control: Option<Lane>,
    pub(super) control_source: u64,
    pub(super) control_blocked: Option<Blocked>,
    pub(super) tombstones: [Option<OwnedFd>; 2],
    pub(super) page: OwnedFd,
    /// The owner's end of its first data lane, until its process is there, or a spare has a place.
    owner: Option<(LaneEnd, OwnedFd)>,
    pub(super) pumps: [Pump; 2],
    is_spare: bool,
    pub(super) network: Network,
    /// Its end was told to the agent.
    pub(super) died: bool,
    /// Its template, which reaps it, has told how it ended.
    pub(super) is_status_told: bool,
    /// Looks in a row that found it stopped by a signal.
    pub(super) halted_looks: u32,
    pub(super) sources: Vec<u64>,
}

/// Whether a proc has what its connections to other hosts need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    Untold,
    Told,
}

/// The ends that the process gets.
struct ProcEnds {
    control: OwnedFd,
    /// None when its owner is on another host, and comes over the network.
    data: Option<OwnedFd>,
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
        [Some(&self.control), self.data.as_ref(), Some(first), Some(second)]
            .into_iter()
            .chain([&self.stdout, &self.stderr, &self.spec, &self.page, driver].map(Some))
            .chain([self.recorded.as_ref()])
            .flatten()
            .map(AsFd::as_fd)
            .collect()
    }
}

impl Host {
    /// Carry out an order.
    pub(super) fn launch(&mut self, order: &Order) {
        let (proc, incarnation) = (order.proc, order.incarnation);
        let Err(error) = self.try_launch(order) else {
            return;
        };
        self.drop_running(proc);
        self.inputs
            .push_back(if error.kind() == io::ErrorKind::NotConnected {
                Input::LaunchLost { proc, incarnation }
            } else {
                Input::LaunchFailed {
                    proc,
                    incarnation,
                    reason: error.to_string(),
                }
            });
    }

    /// # Errors
    ///
    /// `NotConnected` when its template has ended.
    fn try_launch(&mut self, order: &Order) -> io::Result<()> {
        let (running, ends) = self.prepare(order)?;
        self.running.insert(order.proc, running);
        self.register_running(order.proc)?;
        match self.request(order, &ends) {
            // Its end is on its way to us, and is what will be told of this order.
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => {}
            Err(Errno::NOTCONN) => return Err(io::ErrorKind::NotConnected.into()),
            Err(error) => return Err(error.into()),
        }
        self.order_given(order.template, order.proc);
        Ok(())
    }

    /// Ask the template for the process.
    fn request(&self, order: &Order, ends: &ProcEnds) -> Result<(), Errno> {
        let template = self.templates.get(&order.template).ok_or(Errno::NOTCONN)?;
        match &order.source {
            Making::Fork => {
                let request = request(b'F', order.incarnation, order.proc);
                socket::send(&template.socket, &request, &ends.descriptors(&self.own))
            }
            Making::Cold(environ) => {
                // The descriptors wait in the socket that becomes its standard input.
                let (outside, inside) = socket::packet_pair()?;
                let request = request(b'S', order.incarnation, order.proc);
                socket::send(&outside, &request, &ends.descriptors(&self.own))?;
                let program = memory::file("roost-program", &self.program(order, environ))?;
                let given = [
                    inside.as_fd(),
                    ends.stdout.as_fd(),
                    ends.stderr.as_fd(),
                    program.as_fd(),
                ];
                socket::send(&template.socket, &request, &given)
            }
        }
    }

    /// Everything that the process and its owner get.
    fn prepare(&self, order: &Order) -> io::Result<(Running, ProcEnds)> {
        let (control, proc_control) = socket::packet_pair()?;
        let lane = order.owner_is_here.then(socket::stream_pair).transpose()?;
        let (owner_data, data) = lane.unzip();
        let (first, proc_first) = socket::stream_pair()?;
        let (second, proc_second) = socket::stream_pair()?;
        let (stdout_read, stdout) = output_pipe()?;
        let (stderr_read, stderr) = output_pipe()?;
        let page = memory::page("roost-started", page::BYTES)?;
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
        let owner = order.owner_is_here.then(|| LaneEnd {
            proc: order.owner,
            incarnation: self
                .running
                .get(&order.owner)
                .map(|owner| owner.incarnation)
                .unwrap_or_default(),
            slot: order.owner_slot,
        });
        let log = order.logs.then(|| self.log.clone());
        let running = Running {
            incarnation: order.incarnation,
            made_as: (order.proc, order.incarnation),
            label: order.label.clone(),
            ordered_from: None,
            pid: None,
            pidfd: None,
            control: Some(Lane::new(control)),
            control_source: 0,
            control_blocked: None,
            tombstones: [Some(first), Some(second)],
            page,
            owner: owner.zip(owner_data),
            pumps: [
                Pump::new(stdout_read, Stream::Out, &order.label, log.clone()),
                Pump::new(stderr_read, Stream::Err, &order.label, log),
            ],
            is_spare: order.is_spare,
            network: Network::Untold,
            died: false,
            is_status_told: false,
            halted_looks: 0,
            sources: Vec::new(),
        };
        Ok((running, ends))
    }

    fn register_running(&mut self, id: ProcId) -> io::Result<()> {
        let Some(mut running) = self.running.remove(&id) else {
            return Ok(());
        };
        let result = self.register_ends(id, &mut running);
        self.running.insert(id, running);
        Ok(result?)
    }

    fn register_ends(&mut self, id: ProcId, running: &mut Running) -> Result<(), Errno> {
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
    pub(super) fn process_known(&mut self, id: ProcId, pid: u32, pidfd: OwnedFd) -> io::Result<()> {
        let source = self.register(pidfd.as_fd(), Source::End(id), EventFlags::IN)?;
        let Some(running) = self.running.get_mut(&id) else {
            return Ok(());
        };
        running.sources.push(source);
        running.pid = Some(pid);
        running.pidfd = Some(pidfd);
        running.ordered_from = None;
        let incarnation = running.incarnation;
        if !running.is_spare {
            self.hand_out_first(id);
        }
        self.inputs.push_back(Input::Launched {
            proc: id,
            incarnation,
            pid,
        });
        Ok(())
    }

    /// Give the owner its end of a proc's first data lane.
    fn hand_out_first(&mut self, id: ProcId) {
        let Some(running) = self.running.get_mut(&id) else {
            return;
        };
        let incarnation = running.incarnation;
        if let Some((owner, end)) = running.owner.take() {
            self.hand_out(
                owner,
                LaneEnd {
                    proc: id,
                    incarnation,
                    slot: Some(0),
                },
                end,
            );
        }
    }

    /// A spare's process is that of a rank from now on. What epoll has told of it and was not looked at yet, it tells again.
    pub(super) fn take_place(&mut self, place: &Place) {
        for input in &mut self.inputs {
            input.follow(place);
        }
        let (spare, proc) = (place.spare.0, place.proc.0);
        let Some(mut running) = self.running.remove(&spare) else {
            // It has ended this moment, which is told of the rank.
            return;
        };
        running.incarnation = place.proc.1;
        running.label.clone_from(&place.label);
        running.is_spare = false;
        for pump in &mut running.pumps {
            pump.relabel(&place.label);
        }
        if let Some((owner, _)) = &mut running.owner {
            owner.slot = place.owner_slot;
        }
        for number in &running.sources {
            if let Some(source) = self.sources.get_mut(number) {
                source.follow(spare, proc);
            }
        }
        for closing in &mut self.closing {
            closing.follow(spare, proc);
        }
        self.running.insert(proc, running);
        self.hand_out_first(proc);
    }

    /// What is to be executed: the number of arguments, they, then the environment, all apart by zero bytes.
    fn program(&self, order: &Order, environ: &Environ) -> Vec<u8> {
        let command = order.command.as_ref().unwrap_or(&self.config.executable);
        let bootstrap = self.bootstrap("_proc");
        let mark = descendants::mark(self.config.job, Some(order.proc), order.incarnation);
        let arguments: Vec<&str> = command
            .iter()
            .map(String::as_str)
            .chain(["-c", &bootstrap])
            .collect();
        let mut bytes = arguments.len().to_string().into_bytes();
        for argument in arguments {
            bytes.push(0);
            bytes.extend_from_slice(argument.as_bytes());
        }
        for (name, value) in environ
            .iter()
            .filter(|(name, _)| !mark.as_bytes().starts_with(name))
        {
            bytes.push(0);
            bytes.extend_from_slice(name);
            bytes.push(b'=');
            bytes.extend_from_slice(value);
        }
        bytes.push(0);
        bytes.extend_from_slice(mark.as_bytes());
        bytes
    }

    /// The program that every interpreter of ours is started with. The package may be known through the driver's
    /// `sys.path` alone; the working directory, which `-c` puts first, must not hide modules.
    pub(super) fn bootstrap(&self, module: &str) -> String {
        let path = python_string(&self.config.package_path);
        format!(
            "import gc, sys; gc.disable(); sys.path[:1] == [''] and sys.path.pop(0); sys.path.append({path}); \
             from roost.{module} import main; main()"
        )
    }

    /// Let go of everything of one process.
    pub(super) fn drop_running(&mut self, id: ProcId) -> Option<Running> {
        let running = self.running.remove(&id)?;
        self.forget(&running.sources);
        self.forget_unproved(id);
        Some(running)
    }
}

/// A pipe of which the agent's end does not block.
pub(super) fn output_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    Ok((read, write))
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
