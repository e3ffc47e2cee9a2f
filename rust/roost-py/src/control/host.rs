//! The control thread in the driver: what happens on this host goes into `roost_core::agent`, and what that says is
//! done here.
//!
//! | module | what it does |
//! |---|---|
//! | `brain` | who decides: the agent, here or over the trunk in the driver of another host |
//! | `lanes` | hears what procs say, and looks for room for what they are told |
//! | `links` | this host's part of links to memory |
//! | `launch` | makes a proc: sockets, pipes, memory files; by the template or cold |
//! | `templates` | the template processes and their protocol |
//! | `watch` | sees procs end; `halted` those that a signal has stopped |
//! | `outputs` | does what the agent says |
//! | `pump` | reads the procs' output |
//! | `sweeper` | ends what they leave behind, on a thread of its own |

mod brain;
mod halted;
mod lanes;
mod launch;
mod links;
mod outputs;
mod pump;
mod sweeper;
mod templates;
mod watch;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::Arc;

use roost_core::agent::{Agent, Input, Life, TemplateId, Token};
use roost_core::control::{Patience, ToClient};
use roost_core::id::{HostId, Incarnation, JobId, ProcId};
use roost_core::trunk::Begin;
use roost_core::wire::Hello;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use self::brain::{Brain, Leaf, Root};
use self::launch::Running;
use self::pump::Stream;
use self::sweeper::Sweeper;
use self::templates::TemplateProcess;
use self::watch::{Closing, Unreaped};
use super::clock::{now_ns, remaining};
use super::door::Door;
use super::links::LinkDoor;
use super::log::Log;
use super::net::{Claimed, Station, Terms, Uplink};
use super::procfs;
use super::shared::Command;

/// What Python sets.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) job: JobId,
    pub(super) driver: ProcId,
    /// This one.
    pub(super) host: HostId,
    /// The interpreter and its flags.
    pub(super) executable: Vec<String>,
    /// The folder that holds the package.
    pub(super) package_path: String,
    /// For procs whose owner ended.
    pub(super) patience: Patience,
    pub(super) start_timeout_ns: u64,
    pub(super) stall_ns: u64,
    pub(super) seed: u64,
    /// How long another host works without a sign of the driver.
    pub(super) lease_ns: u64,
    /// From one sign of life to the next, and the silence after which another host is lost.
    pub(super) pulse: (u64, u64),
}

/// Where an event comes from. The order is the order of handling: what a proc said last, and what a template knows of
/// it, is heard before its death.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Template(TemplateId),
    Client(ProcId),
    Wake,
    Handover,
    Network,
    Pipe(ProcId, Stream),
    TemplatePipe(TemplateId, Stream),
    TemplateEnd(TemplateId),
    Tombstone(ProcId, usize),
    End(ProcId),
}

impl Source {
    /// What came from a spare comes from the proc whose place it has taken.
    fn follow(&mut self, spare: ProcId, to: ProcId) {
        if let Self::Client(id) | Self::Pipe(id, _) | Self::Tombstone(id, _) | Self::End(id) = self
            && *id == spare
        {
            *id = to;
        }
    }
}

#[derive(Debug)]
pub(super) struct Host {
    config: Config,
    brain: Brain,
    epoll: OwnedFd,
    sources: HashMap<u64, Source>,
    next_source: u64,
    door: Door,
    log: Arc<Log>,
    sweeper: Sweeper,
    /// Of this process: procs and templates watch it.
    own: OwnedFd,
    inputs: VecDeque<Input>,
    tokens: HashMap<Token, OwnedFd>,
    next_token: u64,
    running: HashMap<ProcId, Running>,
    /// Procs whose tombstone fell while their process seemed to run on.
    closing: Vec<Closing>,
    /// Procs that ended while their parent, the template, was ending too.
    unreaped: Vec<Unreaped>,
    templates: HashMap<TemplateId, TemplateProcess>,
    oom_kills: Option<procfs::OomKills>,
    close_until_ns: Option<u64>,
    /// When to send again what found too many descriptors on their way.
    retry_at_ns: Option<u64>,
    /// When to look for procs that are stopped.
    halted_look_ns: u64,
    /// Where the driver's links to memory go, once it has to do with any.
    links: Option<LinkDoor>,
    /// Why the work for this job ends, and whether the agent ends with it; only in another host's agent.
    ending: Option<(String, bool)>,
}

/// What the agent needs of the system before anything else.
#[derive(Debug)]
pub(super) struct Basis {
    epoll: OwnedFd,
    sweeper: Sweeper,
    own: OwnedFd,
}

/// The first two sources, which are always there.
const WAKE: u64 = 0;
const HANDOVER: u64 = 1;
/// Connections to other hosts, which every turn looks at.
const REMOTES: u64 = 2;
const FAR: u64 = 3;
const STATION: u64 = 4;
const EDGES: u64 = 5;

impl Basis {
    pub(super) fn open(door: &Door) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, door.wake(), EventData::new_u64(WAKE), EventFlags::IN)?;
        epoll::add(
            &epoll,
            door.handover(),
            EventData::new_u64(HANDOVER),
            EventFlags::empty(),
        )?;
        let own = Pid::from_raw(process::id().cast_signed()).expect("a process id is not zero");
        Ok(Self {
            epoll,
            sweeper: Sweeper::start()?,
            own: pidfd_open(own, PidfdFlags::empty())?,
        })
    }
}

impl Host {
    fn new(config: Config, door: Door, log: Arc<Log>, basis: Basis, brain: Brain) -> Self {
        let Basis { epoll, sweeper, own } = basis;
        Self {
            brain,
            config,
            epoll,
            sources: HashMap::from([
                (WAKE, Source::Wake),
                (HANDOVER, Source::Handover),
                (REMOTES, Source::Network),
                (FAR, Source::Network),
                (STATION, Source::Network),
                (EDGES, Source::Network),
            ]),
            next_source: EDGES + 1,
            door,
            log,
            sweeper,
            own,
            inputs: VecDeque::new(),
            tokens: HashMap::new(),
            next_token: 0,
            running: HashMap::new(),
            closing: Vec::new(),
            unreaped: Vec::new(),
            templates: HashMap::new(),
            oom_kills: None,
            close_until_ns: None,
            retry_at_ns: None,
            halted_look_ns: 0,
            links: None,
            ending: None,
        }
    }

    /// The agent of the driver's host, until Python closes it.
    pub(super) fn run_root((config, own): (Config, Hello), door: Door, log: Arc<Log>, basis: Basis) {
        let agent = Agent::new(
            config.driver,
            config.host,
            config.patience,
            config.start_timeout_ns,
            config.seed,
        );
        let terms = Terms {
            own,
            host: config.host,
            pulse: config.pulse,
            begin: Begin {
                driver: config.driver,
                patience: config.patience,
                stall_ns: config.stall_ns,
                lease_ns: config.lease_ns,
                credentials: None,
            },
        };
        let brain = Brain::Root(Box::new(Root::new(agent, config.host, terms)));
        let mut host = Self::new(config, door, log, basis, brain);
        host.run();
        host.door.close();
    }

    /// Work for the root of a job on another host. Gives back what outlives that, why it ended, and whether the agent ends
    /// with it.
    pub(super) fn work(
        config: Config,
        (station, door): (Station, Door),
        begin: &Begin,
        claimed: Claimed,
    ) -> (Station, Door, (String, bool)) {
        let opened = Basis::open(&door).and_then(|basis| {
            epoll::add(
                &basis.epoll,
                station.descriptor(),
                EventData::new_u64(STATION),
                EventFlags::IN,
            )?;
            Ok((basis, Uplink::begin(begin, claimed)?))
        });
        let (basis, uplink) = match opened {
            Ok(opened) => opened,
            Err(error) => return (station, door, (error.to_string(), false)),
        };
        let credentials = begin
            .credentials
            .clone()
            .unwrap_or_else(|| unreachable!("a claim has them"));
        let brain = Brain::Leaf(Box::new(Leaf::new(uplink, station, credentials)));
        let mut host = Self::new(config, door, Log::collect(), basis, brain);
        host.run();
        host.say_goodbye();
        let ending = host.ending.take().unwrap_or_default();
        let Brain::Leaf(leaf) = host.brain else {
            unreachable!("made above")
        };
        (leaf.station, host.door, ending)
    }

    fn run(&mut self) {
        let result = catch_unwind(AssertUnwindSafe(|| self.turns()));
        if result.is_err() {
            let text = "the control thread has failed (a bug in roost); all procs are ended".to_owned();
            self.door.push(ToClient::Warning { text }, None);
        }
        // Also after a panic: no proc may outlive the agent.
        let _ = catch_unwind(AssertUnwindSafe(|| self.end_everything()));
    }

    fn turns(&mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(256);
        // What came with the claim is here already, and what follows has to be watched.
        self.network();
        self.write_out();
        while !self.is_done() {
            let timeout = self.next_wakeup_ns().map(remaining);
            self.wait(&mut events, timeout.as_ref());
            let mut due: Vec<(Source, EventFlags)> = events
                .drain(..)
                .filter_map(|event| Some((*self.sources.get(&event.data.u64())?, event.flags)))
                .collect();
            due.sort_unstable_by_key(|(source, _)| *source);
            for (source, flags) in due {
                self.event(source, flags);
            }
            self.look_again();
            self.look_at_halted();
            self.network();
            if let Brain::Root(root) = &mut self.brain {
                root.agent.handle(now_ns(), Input::Tick);
            }
            self.settle();
            self.write_out();
            self.watch_room();
        }
    }

    fn wait(&self, events: &mut Vec<Event>, timeout: Option<&Timespec>) {
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("waiting for events fails only with a broken descriptor: {error}"),
        }
    }

    fn is_done(&self) -> bool {
        self.close_until_ns.is_some_and(|until_ns| {
            let is_empty = match &self.brain {
                Brain::Root(root) => root.is_empty(),
                Brain::Leaf(_) => true,
            };
            (is_empty && self.running.is_empty()) || until_ns <= now_ns()
        })
    }

    fn next_wakeup_ns(&self) -> Option<u64> {
        [
            self.agent_wakeup_ns(),
            self.network_wakeup_ns(),
            self.next_look_ns(),
            self.close_until_ns,
            self.retry_at_ns,
            self.next_halted_look_ns(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn event(&mut self, source: Source, flags: EventFlags) {
        match source {
            Source::Template(id) => self.template_readable(id),
            Source::Client(id) => self.client_readable(id, flags),
            Source::Wake => self.commands(),
            Source::Handover => self.door.flush(),
            // Looked at in every turn.
            Source::Network => {}
            Source::Pipe(id, stream) => self.pump(id, stream),
            Source::TemplatePipe(id, stream) => self.pump_template(id, stream),
            Source::TemplateEnd(id) => self.template_ended(id),
            Source::Tombstone(id, number) => self.tombstone(id, number),
            Source::End(id) => self.process_ended(id),
        }
        self.settle();
    }

    /// Give the agent what has come up, and do what it says, until both are at rest.
    fn settle(&mut self) {
        loop {
            while let Some(output) = self.next_output() {
                self.perform(output);
            }
            let Some(input) = self.inputs.pop_front() else {
                return;
            };
            let descriptor = match &input {
                Input::Message { descriptor, .. } => *descriptor,
                _ => None,
            };
            self.decide(input);
            while let Some(output) = self.next_output() {
                self.perform(output);
            }
            // A descriptor that nothing was done with is closed.
            descriptor.and_then(|token| self.tokens.remove(&token));
        }
    }

    fn commands(&mut self) {
        for (command, descriptor) in self.door.commands() {
            match command {
                Command::Message(message, _) => {
                    let descriptor = descriptor.map(|descriptor| self.keep(descriptor));
                    self.inputs.push_back(Input::Message {
                        from: self.config.driver,
                        message,
                        descriptor,
                    });
                }
                // The driver is nobody's proc: whoever asks it something sees by itself that it does not answer.
                Command::Watch { .. } | Command::Silence(_) | Command::Show(_) => {}
                Command::Links(end) => self.links = descriptor.map(|socket| LinkDoor::new(end, socket)),
                Command::Redial(proc) => self.redial(proc),
                Command::Post(letters) => self.begin_carriers(letters),
                Command::Attach { number, wanted } => self.attach(number, *wanted),
                Command::Detach {
                    number,
                    reason,
                    shutdown,
                } => self.detach(number, &reason, shutdown),
                Command::Lose { number, reason } => self.lose(number, &reason),
                Command::Close { until_ns } => self.close(until_ns),
            }
        }
    }

    fn close(&mut self, until_ns: u64) {
        match &mut self.brain {
            Brain::Root(root) => {
                root.let_go_all("its job has ended");
                self.close_until_ns = Some(until_ns);
                self.inputs.push_back(Input::Close);
            }
            Brain::Leaf(_) => self.finish(now_ns(), "the host's agent was told to end".to_owned(), true),
        }
    }

    /// A proc's incarnation, while it has a process.
    fn running(&mut self, id: ProcId, incarnation: Incarnation) -> Option<&mut Running> {
        self.running
            .get_mut(&id)
            .filter(|running| running.incarnation == incarnation)
    }

    /// Whether this life of a proc, or of the driver, is here.
    fn is_here(&self, (id, incarnation): Life) -> bool {
        match self.running.get(&id) {
            Some(running) => running.incarnation == incarnation,
            None => id == self.config.driver && matches!(self.brain, Brain::Root(_)),
        }
    }

    fn warn(&mut self, text: String) {
        self.door.push(ToClient::Warning { text }, None);
    }

    fn keep(&mut self, descriptor: OwnedFd) -> Token {
        let token = Token(self.next_token);
        self.next_token += 1;
        self.tokens.insert(token, descriptor);
        token
    }

    fn register(
        &mut self,
        descriptor: BorrowedFd<'_>,
        source: Source,
        flags: EventFlags,
    ) -> Result<u64, Errno> {
        let number = self.next_source;
        self.next_source += 1;
        epoll::add(&self.epoll, descriptor, EventData::new_u64(number), flags)?;
        self.sources.insert(number, source);
        Ok(number)
    }

    fn forget(&mut self, sources: &[u64]) {
        for source in sources {
            self.sources.remove(source);
        }
    }

    fn end_everything(&mut self) {
        self.kill_rest();
        self.end_templates();
        self.sweeper.finish();
    }
}

/// Whether a descriptor has something to read, or has ended.
fn is_readable(descriptor: impl AsFd) -> bool {
    let mut set = [rustix::event::PollFd::new(
        &descriptor,
        rustix::event::PollFlags::IN,
    )];
    matches!(
        rustix::event::poll(
            &mut set,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0
            })
        ),
        Ok(1..)
    )
}
