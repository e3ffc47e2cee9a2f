//! The way to one peer's memory: queue pairs over one or several NICs, work striped over them.
//!
//! Who asks calls [`Path::ask`] with the owner's card, sends the offer over the link, gives the answer to [`Path::connect`], and
//! may post. The owner only holds what [`Path::serve`] gave. Nothing here blocks or waits: [`Path::completion_fd`] becomes
//! readable, and [`Path::poll`] says what happened.
//!
//! One error ends the whole path, and only this path: all that is out is flushed, each operation is told, and its peer is asked
//! for a new one. Operations that were not the error's cause are [`Failure::Flushed`] and may be done again.

use super::device::{Device, Port};
use super::offer::{self, Address, Half, LANES_MAX, RemoteRegion};
use super::operation::{CHUNK_BYTES_MAX, Operation, Reach, runs_of};
use super::queue_pair::{CHAIN_MAX, Completions, QueuePair, Work};
use super::registry::Cover;
use super::result::Error;
use super::{Access, Verbs, sys};
use crate::plan::{Direction, Run};
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Queue pairs for each two NICs: one alone does not fill the fastest of them.
const LANES_PER_PAIR: usize = 2;
/// Bytes out on one queue pair: what 400 Gbit/s carry in 80 µs. More would only take longer to take back.
const BYTES_OUT_MAX: u64 = 4 << 20;

/// What became of something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Every queue pair has been heard by the owner.
    Ready,
    /// All bytes of the operation have arrived.
    Done {
        /// As posted.
        id: u64,
    },
    /// The operation has ended otherwise; its target's content is undefined. The NICs touch its memory no more.
    Failed {
        /// As posted.
        id: u64,
        /// Why.
        failure: Failure,
    },
    /// The path is of no more use, and all its operations have been told.
    Broken {
        /// Why.
        reason: String,
    },
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The owner's NIC refused: the key is wrong, or was revoked.
    Access(String),
    /// This side's NIC cannot use the local memory.
    Local(String),
    /// The owner's NIC does not answer.
    Unreachable(String),
    /// Something else failed, or the path was closed: this may be done again on a new one.
    Flushed,
    /// As was asked for.
    Cancelled,
}

struct Lane {
    pair: QueuePair,
    device: Arc<Device>,
    port: Port,
    first_packet: u32,
    peer: Address,
    can_read: bool,
    requests_out: u32,
    bytes_out: u64,
}

#[derive(Clone, Copy)]
struct Sent {
    /// None: asked for nothing but an answer.
    operation: Option<u64>,
    lane: usize,
    bytes: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The other halves are not known yet.
    Offered,
    /// So many queue pairs have not been answered yet.
    Proving(usize),
    Open,
    /// Waits for all that is out to come back.
    Breaking,
    Broken,
}

/// See the module. Dropping it ends the queue pairs first, after which no NIC touches any memory for it.
pub struct Path {
    // First, so that it is dropped first: what follows is memory that queue pairs may use.
    lanes: Vec<Lane>,
    completions: Vec<Arc<Completions>>,
    devices: Vec<Arc<Device>>,
    operations: HashMap<u64, Operation>,
    /// Those of which something is still to be handed over, each in its turn.
    waiting: VecDeque<u64>,
    sent: Vec<Option<Sent>>,
    free: Vec<usize>,
    next_lane: usize,
    state: State,
    reason: String,
    events: Vec<Event>,
    epoll: OwnedFd,
    /// Makes the path's descriptor readable for events that no NIC causes.
    nudge: OwnedFd,
    verbs: Verbs,
}

impl Path {
    /// Makes this side's queue pairs to the owner of this card, and the offer for it.
    ///
    /// # Errors
    /// The card is none; no port here can reach one of the owner's; a device has no queue pairs left.
    pub fn ask(verbs: &Verbs, owner_card: &[u8]) -> Result<(Self, Vec<u8>), Error> {
        let theirs = offer::decode_card(owner_card)?;
        let mine = verbs.ports();
        let addresses: Vec<Address> = mine
            .iter()
            .map(|(device, port)| Address::of(device, port))
            .collect();
        let pairs = offer::pairs(&addresses, &theirs);
        if pairs.is_empty() {
            let reason = format!(
                "{} ports here and {} there have none of the same kind ACTIVE",
                mine.len(),
                theirs.len()
            );
            return Err(Error::Path(reason));
        }
        let mut path = Self::new(verbs)?;
        let lanes = (0..LANES_PER_PAIR).flat_map(|_| &pairs).take(LANES_MAX);
        let lanes: Vec<_> = lanes
            .map(|(one, two)| (mine[*one].clone(), theirs[*two]))
            .collect();
        path.make_lanes(&lanes)?;
        let offer = offer::encode_halves(&path.halves());
        Ok((path, offer))
    }

    /// The owner's side: makes the other halves of what was offered, and connects them. Memory that is registered can be reached
    /// by whoever has its keys as soon as the answer arrives.
    ///
    /// # Errors
    /// The offer is none, or names ports that are not ACTIVE here now; a device has no queue pairs left.
    pub fn serve(verbs: &Verbs, offered: &[u8]) -> Result<(Self, Vec<u8>), Error> {
        let theirs = offer::decode_halves(offered)?;
        let mine = verbs.ports();
        let find = |half: &Half| {
            mine.iter()
                .find(|(device, port)| device.index == half.peer_device && port.number == half.peer_port)
        };
        let matched = theirs
            .iter()
            .map(|half| Some((find(half)?.clone(), half.address)))
            .collect::<Option<Vec<_>>>();
        let matched = matched.filter(|lanes| !lanes.is_empty());
        let lanes = matched
            .ok_or_else(|| Error::Path("the peer asks for a port that is not ACTIVE here any more".into()))?;
        let mut path = Self::new(verbs)?;
        path.make_lanes(&lanes)?;
        for (lane, half) in path.lanes.iter().zip(&theirs) {
            lane.pair.connect(&lane.port, lane.first_packet, half)?;
        }
        path.state = State::Open;
        let answer = offer::encode_halves(&path.halves());
        Ok((path, answer))
    }

    fn new(verbs: &Verbs) -> Result<Self, Error> {
        let failed = |errno: rustix::io::Errno| {
            super::result::failed("making a descriptor to wait on", "a path", errno.raw_os_error())
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let nudge = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?;
        epoll::add(
            &epoll,
            &nudge,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )
        .map_err(failed)?;
        Ok(Self {
            lanes: Vec::new(),
            completions: Vec::new(),
            devices: Vec::new(),
            operations: HashMap::new(),
            waiting: VecDeque::new(),
            sent: Vec::new(),
            free: Vec::new(),
            next_lane: 0,
            state: State::Offered,
            reason: String::new(),
            events: Vec::new(),
            epoll,
            nudge,
            verbs: verbs.clone(),
        })
    }

    /// One queue pair for each port and the peer's port it goes to; one completion queue for each device.
    fn make_lanes(&mut self, wanted: &[((Arc<Device>, Port), Address)]) -> Result<(), Error> {
        for ((device, port), peer) in wanted {
            let completions = match self.devices.iter().position(|known| Arc::ptr_eq(known, device)) {
                Some(at) => Arc::clone(&self.completions[at]),
                None => self.make_completions(
                    device,
                    wanted
                        .iter()
                        .filter(|((other, _), _)| Arc::ptr_eq(other, device))
                        .count(),
                )?,
            };
            let pair = QueuePair::new(device, &completions)?;
            let mut random = [0; 4];
            // Packet numbers are 24 bits; a new connection starts elsewhere, so that late packets of an old one are none of its.
            rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).map_err(|errno| {
                super::result::failed("drawing a random number for", device.name(), errno.raw_os_error())
            })?;
            let first_packet = u32::from_le_bytes(random) & 0x00ff_ffff;
            let can_read = QueuePair::can_read(device, peer);
            let (device, port) = (Arc::clone(device), port.clone());
            self.lanes.push(Lane {
                pair,
                device,
                port,
                first_packet,
                peer: *peer,
                can_read,
                requests_out: 0,
                bytes_out: 0,
            });
        }
        Ok(())
    }

    fn make_completions(&mut self, device: &Arc<Device>, pairs: usize) -> Result<Arc<Completions>, Error> {
        let entries = QueuePair::depth(device) * u32::try_from(pairs).unwrap_or(1);
        let completions = Arc::new(Completions::new(device, entries)?);
        epoll::add(
            &self.epoll,
            completions.fd(),
            epoll::EventData::new_u64(1),
            epoll::EventFlags::IN,
        )
        .map_err(|errno| {
            super::result::failed("waiting for completions", device.name(), errno.raw_os_error())
        })?;
        self.completions.push(Arc::clone(&completions));
        self.devices.push(Arc::clone(device));
        Ok(completions)
    }

    fn halves(&self) -> Vec<Half> {
        let half = |lane: &Lane| Half {
            address: Address::of(&lane.device, &lane.port),
            number: lane.pair.number(),
            first_packet: lane.first_packet,
            peer_device: lane.peer.device,
            peer_port: lane.peer.port,
        };
        self.lanes.iter().map(half).collect()
    }

    /// Connects with the owner's halves and asks each of them for an answer; [`Event::Ready`] or [`Event::Broken`] follows.
    ///
    /// # Errors
    /// The answer does not fit the offer, or a device refuses it.
    pub fn connect(&mut self, answer: &[u8]) -> Result<(), Error> {
        let theirs = offer::decode_halves(answer)?;
        if theirs.len() != self.lanes.len() || self.state != State::Offered {
            let reason = format!(
                "{} queue pairs for {} that were offered",
                theirs.len(),
                self.lanes.len()
            );
            return Err(Error::Peer {
                what: "answer",
                reason,
            });
        }
        self.state = State::Proving(self.lanes.len());
        for (at, half) in theirs.iter().enumerate() {
            self.lanes[at]
                .pair
                .connect(&self.lanes[at].port, self.lanes[at].first_packet, half)?;
            // A write of nothing needs neither memory nor key, and is answered by the owner's NIC alone.
            let number = self.note(Sent {
                operation: None,
                lane: at,
                bytes: 0,
            });
            let work = Work {
                number,
                direction: Direction::Write,
                local: 0,
                local_key: 0,
                bytes: 0,
                remote: 0,
                remote_key: 0,
            };
            // SAFETY: it names no memory.
            unsafe { self.lanes[at].pair.post(&[work])? };
            self.lanes[at].requests_out += 1;
        }
        Ok(())
    }

    /// Readable when [`Path::poll`] has something to do. Level-triggered.
    pub fn completion_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Whether reads can be posted. Some devices have no resources for them (`max_qp_init_rd_atom` 0), and only write.
    pub fn can_read(&self) -> bool {
        self.lanes.iter().any(|lane| lane.can_read)
    }

    /// The names of the devices that it uses, for the log.
    pub fn device_names(&self) -> Vec<String> {
        self.devices
            .iter()
            .map(|device| device.name().to_owned())
            .collect()
    }

    /// Copies the runs from or to one region of the owner's; see [`Path::post_all`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn post(
        &mut self,
        id: u64,
        direction: Direction,
        runs: &[Run],
        remote: &RemoteRegion,
    ) -> Result<(), Error> {
        // SAFETY: the caller's.
        unsafe { self.post_all(id, direction, &[Reach { remote, runs }]) }
    }

    /// Copies runs from or to regions of the owner's; ends with one [`Event`] of this id.
    ///
    /// # Errors
    /// Nothing was posted: a run passes the end of its region, the local memory cannot be registered, no device can do it.
    ///
    /// # Safety
    /// The local memory stays mapped, and nobody relies on what is read into it, until the id's event has come or the path has
    /// been dropped.
    pub unsafe fn post_all(
        &mut self,
        id: u64,
        direction: Direction,
        reaches: &[Reach<'_>],
    ) -> Result<(), Error> {
        if matches!(self.state, State::Breaking | State::Broken) {
            return Err(Error::Path(format!("the path is closed: {}", self.reason)));
        }
        if self.operations.contains_key(&id) {
            return Err(Error::Path(format!(
                "an operation with the number {id} is under way"
            )));
        }
        for reach in reaches {
            self.check(direction, reach)?;
        }
        let ranges: Vec<(usize, u64)> = runs_of(reaches).map(|(_, run)| (run.local, run.bytes)).collect();
        let registry = &self.verbs.inner.registry;
        let Cover { regions, of } = registry.cover(Access::of(direction), &ranges, &self.devices)?;
        self.operations
            .insert(id, Operation::new(direction, reaches, of, regions));
        self.waiting.push_back(id);
        self.settle(id);
        self.fill();
        self.nudge_if_told();
        Ok(())
    }

    fn check(&self, direction: Direction, reach: &Reach<'_>) -> Result<(), Error> {
        let whole = reach.remote.bytes;
        let fits = |run: &Run| run.remote.checked_add(run.bytes).is_some_and(|end| end <= whole);
        if let Some(run) = reach.runs.iter().find(|run| !fits(run)) {
            return Err(Error::Path(format!(
                "{} bytes at {} pass the end of the region of {whole} bytes",
                run.bytes, run.remote
            )));
        }
        if self.lanes.iter().any(|lane| lane.serves(direction, reach.remote)) {
            return Ok(());
        }
        Err(Error::Path(match direction {
            Direction::Read if !self.can_read() => format!(
                "{} cannot read: its max_rd_atomic, or the owner's, is 0",
                self.device_names().join(", ")
            ),
            _ => "the region is registered with none of the owner's devices that this path leads to".into(),
        }))
    }

    /// Hands over nothing more of the operation, which ends when what is out has come back. Quicker: [`Path::close`].
    pub fn cancel(&mut self, id: u64) {
        if let Some(operation) = self.operations.get_mut(&id) {
            operation.end(Failure::Cancelled);
            self.settle(id);
            self.nudge_if_told();
        }
    }

    /// Flushes all that is out. Each operation is told, then [`Event::Broken`] comes.
    pub fn close(&mut self) {
        self.give_up("it was closed", None);
        self.nudge_if_told();
    }

    /// What has happened since the last time; hands over more work.
    pub fn poll(&mut self) -> Vec<Event> {
        let _ = rustix::io::read(&self.nudge, &mut [0; 8]);
        let mut finished = Vec::new();
        for at in 0..self.completions.len() {
            let completions = Arc::clone(&self.completions[at]);
            if let Err(error) = completions.drain(|completion| finished.push(*completion)) {
                self.give_up(&error.to_string(), None);
            }
        }
        for completion in &finished {
            self.finish(completion);
        }
        self.fill();
        self.end_if_broken();
        std::mem::take(&mut self.events)
    }

    fn finish(&mut self, completion: &sys::WorkCompletion) {
        let slot = usize::try_from(completion.wr_id).ok();
        let Some(sent) = slot.and_then(|slot| self.sent.get_mut(slot)?.take()) else {
            return;
        };
        self.free.extend(slot);
        let lane = &mut self.lanes[sent.lane];
        lane.requests_out -= 1;
        lane.bytes_out -= u64::from(sent.bytes);
        if let Some(operation) = sent.operation.and_then(|id| self.operations.get_mut(&id)) {
            operation.returned();
        }
        match (completion.status, self.state) {
            (sys::WC_SUCCESS, State::Proving(left)) if sent.operation.is_none() => {
                self.state = if left > 1 {
                    State::Proving(left - 1)
                } else {
                    State::Open
                };
                if self.state == State::Open {
                    self.events.push(Event::Ready);
                }
            }
            (sys::WC_SUCCESS, _) | (sys::WC_WR_FLUSH_ERR, State::Breaking) => {}
            (status, _) => {
                let lane = &self.lanes[sent.lane];
                let text = format!(
                    "{} port {}: {}",
                    lane.device.name(),
                    lane.port.number,
                    lane.device.library().status(status)
                );
                self.give_up(&text, sent.operation.map(|id| (id, Failure::of(status, &text))));
            }
        }
        if let Some(id) = sent.operation {
            self.settle(id);
        }
    }

    /// Starts the end of the path, if it has not begun; `guilty` is the operation that caused it.
    fn give_up(&mut self, reason: &str, guilty: Option<(u64, Failure)>) {
        if let Some((id, failure)) = guilty
            && let Some(operation) = self.operations.get_mut(&id)
        {
            operation.end(failure);
        }
        if matches!(self.state, State::Breaking | State::Broken) {
            return;
        }
        reason.clone_into(&mut self.reason);
        self.state = State::Breaking;
        for lane in &self.lanes {
            // A device that refuses even this is gone; whoever waits too long drops the path, which needs nobody's consent.
            let _ = lane.pair.flush();
        }
        self.waiting.clear();
        let ids: Vec<u64> = self.operations.keys().copied().collect();
        for id in ids {
            if let Some(operation) = self.operations.get_mut(&id) {
                operation.end(Failure::Flushed);
            }
            self.settle(id);
        }
    }

    fn end_if_broken(&mut self) {
        if self.state == State::Breaking && self.operations.is_empty() {
            self.state = State::Broken;
            self.events.push(Event::Broken {
                reason: self.reason.clone(),
            });
        }
    }

    /// Tells how the operation ended, if it has.
    fn settle(&mut self, id: u64) {
        let Some(result) = self.operations.get(&id).and_then(Operation::result) else {
            return;
        };
        self.operations.remove(&id);
        self.events.push(match result {
            Ok(()) => Event::Done { id },
            Err(failure) => Event::Failed { id, failure },
        });
    }

    fn nudge_if_told(&mut self) {
        self.end_if_broken();
        if !self.events.is_empty() {
            // Full means that it is readable already.
            let _ = rustix::io::write(&self.nudge, &1_u64.to_ne_bytes());
        }
    }

    fn note(&mut self, sent: Sent) -> u64 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.sent.push(None);
            self.sent.len() - 1
        });
        self.sent[slot] = Some(sent);
        slot as u64
    }

    /// Gives each queue pair in turn a chunk, or several small ones, until all are busy or nothing waits.
    fn fill(&mut self) {
        let mut idle = 0;
        while self.state == State::Open && idle < self.lanes.len() && !self.waiting.is_empty() {
            let lane = self.next_lane;
            self.next_lane = (lane + 1) % self.lanes.len();
            match self.fill_lane(lane) {
                Ok(true) => idle = 0,
                Ok(false) => idle += 1,
                Err(error) => self.give_up(&error.to_string(), None),
            }
        }
    }

    /// True when the queue pair took something.
    fn fill_lane(&mut self, at: usize) -> Result<bool, Error> {
        let mut works: Vec<Work> = Vec::new();
        let mut budget = CHUNK_BYTES_MAX.min(BYTES_OUT_MAX.saturating_sub(self.lanes[at].bytes_out));
        let room = (self.lanes[at].pair.depth - self.lanes[at].requests_out)
            .min(u32::try_from(CHAIN_MAX).unwrap_or(1)) as usize;
        let Some(id) = self.turn(at) else { return Ok(false) };
        while works.len() < room && budget > 0 {
            let (lane, operation) = (
                &self.lanes[at],
                self.operations.get_mut(&id).expect("what waits is there"),
            );
            // The next run may be of a region that another device of the owner's has.
            let Some(remote_key) = operation.key(lane.peer.device) else {
                break;
            };
            let Some(chunk) = operation.next(budget.min(u64::from(lane.port.message_bytes_max))) else {
                break;
            };
            let keys = chunk.region.keys(&lane.device);
            let (local_key, _) =
                keys.expect("it was registered with each device of the path when it was posted");
            let (local, remote, bytes, direction) =
                (chunk.local, chunk.remote, chunk.bytes, operation.direction);
            operation.sent(bytes);
            budget -= u64::from(bytes);
            let number = self.note(Sent {
                operation: Some(id),
                lane: at,
                bytes,
            });
            works.push(Work {
                number,
                direction,
                local,
                local_key,
                bytes,
                remote,
                remote_key,
            });
        }
        if works.is_empty() {
            return Ok(false);
        }
        // SAFETY: who posted the operation vouches for its memory until its event, which comes after the last of these is back.
        let taken = unsafe { self.lanes[at].pair.post(&works) };
        let (count, error) = match taken {
            Ok(count) => (count, None),
            Err(error) => (0, Some(error)),
        };
        for work in &works[..count] {
            self.lanes[at].requests_out += 1;
            self.lanes[at].bytes_out += u64::from(work.bytes);
        }
        // What was not taken is on no queue: as if it had come back, and the path with it, since its bytes were counted as sent.
        for work in &works[count..] {
            let slot = usize::try_from(work.number).expect("it is a place in a table");
            self.sent[slot] = None;
            self.free.push(slot);
            if let Some(operation) = self.operations.get_mut(&id) {
                operation.returned();
            }
        }
        match error {
            Some(error) => Err(error),
            None if count < works.len() => Err(Error::Path(format!(
                "{} takes fewer requests than it says",
                self.lanes[at].device.name()
            ))),
            None => Ok(true),
        }
    }

    /// The operation whose turn it is on this queue pair. The ones behind it come first the next time.
    fn turn(&mut self, at: usize) -> Option<u64> {
        for _ in 0..self.waiting.len() {
            let id = self.waiting.pop_front()?;
            let Some(operation) = self.operations.get(&id).filter(|operation| operation.has_more()) else {
                continue;
            };
            self.waiting.push_back(id);
            if self.is_for(operation, at) {
                return Some(id);
            }
        }
        None
    }

    /// Whether this queue pair may take some of the operation: it can, and none that can is nearer to the memory.
    fn is_for(&self, operation: &Operation, at: usize) -> bool {
        let can = |lane: &Lane| {
            (lane.can_read || operation.direction == Direction::Write)
                && operation.key(lane.peer.device).is_some()
        };
        let is_near = |lane: &Lane| operation.near() >> (lane.device.index % 63) & 1 == 1;
        can(&self.lanes[at])
            && (is_near(&self.lanes[at]) || !self.lanes.iter().any(|lane| can(lane) && is_near(lane)))
    }
}

impl Lane {
    fn serves(&self, direction: Direction, remote: &RemoteRegion) -> bool {
        (self.can_read || direction == Direction::Write) && remote.key(self.peer.device).is_some()
    }
}

impl Failure {
    fn of(status: i32, text: &str) -> Self {
        match status {
            sys::WC_REM_ACCESS_ERR | sys::WC_REM_INV_REQ_ERR | sys::WC_REM_OP_ERR => {
                Self::Access(text.to_owned())
            }
            sys::WC_LOC_PROT_ERR => Self::Local(text.to_owned()),
            sys::WC_WR_FLUSH_ERR => Self::Flushed,
            _ => Self::Unreachable(text.to_owned()),
        }
    }
}
