//! The control thread in a proc: between its Python and the agent of its host.
//!
//! When the driver ends, or the agent drops the lane, the proc ends itself and what it has started, with SIGKILL and
//! without a word from Python. `far` has its connections to other hosts.

mod far;

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;

use roost_core::control::{ToAgent, ToClient};
use roost_core::limits::SILENCE_NS;
use roost_core::wire::Hello;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpgrp, kill_process, kill_process_group};

use super::clock::{now_ns, remaining};
use super::descendants::{self, Target};
use super::door::Door;
use super::lane::{Arrived, Lane, LaneError};
use super::links::{self, LinkDoor};
use super::net::FarLanes;
use super::shared::Command;
use super::socket::{Blocked, IN_FLIGHT_RETRY_NS, room};
use super::stall::Stall;
use crate::node::Board;
use crate::peer::Letter;

/// What the other end of a lane is told of one whose descriptor got lost on the way.
pub(super) const NO_DESCRIPTORS: &str = "has no file descriptors left for a data lane";

const CONTROL: u64 = 1;
const DRIVER: u64 = 2;
const WAKE: u64 = 3;
const HANDOVER: u64 = 4;
const FAR: u64 = 5;

/// Messages taken from the lane before Python's commands get their turn.
const MESSAGES_A_TURN_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Client {
    epoll: OwnedFd,
    control: Lane,
    /// Of the driver's process; only watched.
    _driver: OwnedFd,
    door: Door,
    mark: String,
    /// Where the interpreter writes its stacks, until Python has its loop watched.
    stacks: Option<OwnedFd>,
    stall: Option<Stall>,
    /// The actors of this process.
    board: Option<Board>,
    own: Hello,
    /// The silence after which the driver gives another host up.
    silence_ns: u64,
    /// Its data lanes to other hosts, once it has any.
    far: Option<FarLanes>,
    /// Where links to memory go, once this process has to do with any.
    links: Option<LinkDoor>,
}

/// Why the thread ends.
enum End {
    /// Python closed it.
    Closed,
    /// The proc has no right to live on.
    Orphaned,
}

impl Client {
    /// Watch all that it hears from.
    pub(super) fn watch_all(control: &OwnedFd, driver: &OwnedFd, door: &Door) -> Result<OwnedFd, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (source, data) in [
            (control.as_fd(), CONTROL),
            (driver.as_fd(), DRIVER),
            (door.wake(), WAKE),
        ] {
            epoll::add(&epoll, source, EventData::new_u64(data), EventFlags::IN)?;
        }
        epoll::add(
            &epoll,
            door.handover(),
            EventData::new_u64(HANDOVER),
            EventFlags::empty(),
        )?;
        Ok(epoll)
    }

    pub(super) fn new(
        epoll: OwnedFd,
        (control, driver, stacks): (OwnedFd, OwnedFd, OwnedFd),
        door: Door,
        (mark, own): (String, Hello),
    ) -> Self {
        Self {
            epoll,
            control: Lane::new(control),
            _driver: driver,
            door,
            mark,
            stacks: Some(stacks),
            stall: None,
            board: None,
            own,
            silence_ns: SILENCE_NS,
            far: None,
            links: None,
        }
    }

    /// Until Python closes it, or the proc ends.
    pub(super) fn run(mut self) {
        let end = catch_unwind(AssertUnwindSafe(|| self.turns()));
        match end {
            Ok(End::Closed) => self.door.close(),
            // After a panic nobody would hear of the driver's end: better none than an orphan.
            Ok(End::Orphaned) | Err(_) => self.end_process(),
        }
    }

    fn turns(&mut self) -> End {
        let mut events: Vec<Event> = Vec::with_capacity(8);
        loop {
            let timeout = self.next_wakeup_ns().map(remaining);
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return End::Orphaned,
            }
            for event in events.drain(..) {
                let end = match event.data.u64() {
                    CONTROL => self.messages(event.flags),
                    WAKE => self.commands(),
                    DRIVER => Some(End::Orphaned),
                    // Looked at in each turn.
                    FAR => None,
                    _ => {
                        self.door.flush();
                        None
                    }
                };
                if let Some(end) = end {
                    return end;
                }
            }
            if let Some(told) = self.stall.as_mut().and_then(|stall| stall.look(&self.door)) {
                self.send(&told, None);
            }
            self.far_lanes();
            if self.retry().is_err() || self.watch().is_err() {
                return End::Orphaned;
            }
        }
    }

    fn next_wakeup_ns(&self) -> Option<u64> {
        let look = self.stall.as_ref().map(Stall::next_ns);
        let far = self.far.as_ref().and_then(FarLanes::next_wakeup_ns);
        [self.retry_at_ns(), look, far].into_iter().flatten().min()
    }

    /// When to try again what found too many descriptors on their way.
    fn retry_at_ns(&self) -> Option<u64> {
        let blocked = [self.control.blocked(), self.door.blocked()];
        let waits = blocked.contains(&Some(Blocked::InFlight))
            || self.links.as_ref().is_some_and(LinkDoor::is_blocked);
        waits.then(|| now_ns() + IN_FLIGHT_RETRY_NS)
    }

    fn retry(&mut self) -> std::io::Result<()> {
        if self.door.blocked() == Some(Blocked::InFlight) {
            self.door.flush();
        }
        if let Some(links) = &mut self.links {
            links.flush();
        }
        if self.control.blocked() == Some(Blocked::InFlight) {
            self.control.flush()
        } else {
            Ok(())
        }
    }

    /// Ask for room only where something waits for it.
    fn watch(&self) -> Result<(), Errno> {
        let control = EventFlags::IN | room(self.control.blocked());
        epoll::modify(
            &self.epoll,
            self.control.socket(),
            EventData::new_u64(CONTROL),
            control,
        )?;
        let handover = room(self.door.blocked());
        epoll::modify(
            &self.epoll,
            self.door.handover(),
            EventData::new_u64(HANDOVER),
            handover,
        )
    }

    fn messages(&mut self, flags: EventFlags) -> Option<End> {
        if flags.contains(EventFlags::OUT) && self.control.flush().is_err() {
            return Some(End::Orphaned);
        }
        for _ in 0..MESSAGES_A_TURN_MAX {
            match self.control.receive() {
                Ok(Arrived { message, descriptor }) => self.message(message, descriptor),
                Err(LaneError::Empty) => return None,
                Err(error @ LaneError::Lost) => {
                    self.door.push(
                        ToClient::Warning {
                            text: error.to_string(),
                        },
                        None,
                    );
                }
                Err(LaneError::Closed | LaneError::Broken(_)) => return Some(End::Orphaned),
            }
        }
        None
    }

    fn message(&mut self, message: ToClient, descriptor: Option<OwnedFd>) {
        let Some((message, descriptor)) = self.far_message(message, descriptor) else {
            return;
        };
        let Some((message, descriptor)) = links::message(&mut self.links, message, descriptor) else {
            return;
        };
        match (&message, &descriptor) {
            (ToClient::Connected { proc, .. }, None) => {
                let proc = *proc;
                self.lane_lost(
                    proc,
                    "no file descriptors left for a data lane".to_owned(),
                    NO_DESCRIPTORS.to_owned(),
                );
            }
            (ToClient::Segment { from, segment, .. }, None) => {
                self.send(
                    &ToAgent::SegmentAck {
                        to: *from,
                        segment: *segment,
                        ok: false,
                    },
                    None,
                );
            }
            (ToClient::Look { from, mesh }, _) => {
                let look = |board: &Board| board.look(*mesh);
                let seen = ToAgent::Seen {
                    to: *from,
                    mesh: *mesh,
                    activities: self.board.as_ref().map(look).unwrap_or_default(),
                };
                self.send(&seen, None);
            }
            _ => self.door.push(message, descriptor),
        }
    }

    fn commands(&mut self) -> Option<End> {
        for (command, descriptor) in self.door.commands() {
            match command {
                Command::Message(message, _) => {
                    self.send(&message, descriptor);
                    if matches!(message, ToAgent::Up) {
                        self.door.up_told();
                    }
                }
                Command::Watch { after_ns, signal } => {
                    if let Some(stacks) = self.stacks.take() {
                        self.stall = Some(Stall::new(after_ns, signal, stacks));
                    }
                }
                Command::Silence(silence_ns) => {
                    self.silence_ns = silence_ns;
                    if let Some(far) = &mut self.far {
                        far.set_silence(silence_ns);
                    }
                }
                Command::Show(board) => self.board = Some(board),
                Command::Links(end) => self.links = descriptor.map(|socket| LinkDoor::new(end, socket)),
                Command::Redial(proc) => {
                    if let Some(far) = &mut self.far
                        && !far.redial(now_ns(), proc)
                    {
                        self.send(&ToAgent::Redial { proc }, None);
                    }
                }
                Command::Post(letters) => self.answer(letters),
                // Only the driver has hosts.
                Command::Attach { .. } | Command::Detach { .. } | Command::Lose { .. } => {}
                Command::Close { .. } => return Some(End::Closed),
            }
        }
        None
    }

    /// What goes back along the tree is for the agent to send on.
    fn answer(&mut self, letters: Vec<Letter>) {
        for Letter {
            session,
            carrier,
            frames,
            ..
        } in letters
        {
            if let Some(carrier) = carrier {
                self.send(
                    &ToAgent::Answered {
                        carrier,
                        session,
                        frames,
                    },
                    None,
                );
            }
        }
    }

    fn send(&mut self, message: &ToAgent, descriptor: Option<OwnedFd>) {
        // A lane that is closed is seen by the next read, which ends the proc; what else can fail is the memory file
        // of a long message.
        if let Err(error) = self.control.send(message, descriptor) {
            let text = format!("a request to the host's agent was lost: {error}");
            self.door.push(ToClient::Warning { text }, None);
        }
    }

    fn end_process(&self) {
        let own = process::id();
        let target = Target {
            mark: self.mark.clone(),
            pid: Some(own),
        };
        descendants::kill(&[target], None);
        let own = Pid::from_raw(own.cast_signed());
        if own == Some(getpgrp()) {
            let _ = kill_process_group(getpgrp(), Signal::KILL);
        }
        if let Some(own) = own {
            let _ = kill_process(own, Signal::KILL);
        }
    }
}
