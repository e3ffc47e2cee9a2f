//! The way to one peer's memory: queue pairs over one or several NICs, work striped over them.
//!
//! Who asks calls [`Path::ask`] with the owner's card, sends the offer over the link, gives the answer to [`Path::connect`], and
//! may post. The owner only holds what [`Path::serve`] gave. Nothing here blocks or waits: [`Path::poll`] says what happened,
//! after work was handed in or taken back, and when [`Path::completion_fd`] has become readable.
//!
//! One error ends the whole path, and only this path: all that is out is flushed, each operation is told, and its peer is asked
//! for a new one. Operations that were not the error's cause are [`Failure::Flushed`] and may be done again.

mod flow;
mod setup;

use super::device::{Device, Port};
use super::offer::{Address, RemoteRegion};
use super::operation::{Operation, Reach, runs_of};
use super::queue_pair::{Completions, QueuePair};
use super::registry::Cover;
use super::result::Error;
use super::{Access, Verbs, sys};
use crate::plan::{Direction, Run};
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
    verbs: Verbs,
}

impl Path {
    /// Readable when NICs have done something since [`Path::poll`]. Level-triggered.
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
        }
    }

    /// Flushes all that is out. Each operation is told, then [`Event::Broken`] comes.
    pub fn close(&mut self) {
        self.give_up("it was closed", None);
    }

    /// What has happened since the last time; hands over more work. To be called before the descriptor is waited for.
    pub fn poll(&mut self) -> Vec<Event> {
        for completions in &self.completions {
            completions.take_event();
        }
        self.collect();
        // What is quick is there already. An event for it would cost some calls of the kernel, and waking this thread.
        if self.lanes.iter().any(|lane| lane.requests_out > 0) {
            self.await_more();
            self.collect();
        }
        self.end_if_broken();
        std::mem::take(&mut self.events)
    }

    fn collect(&mut self) {
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
    }

    /// The next completions make the descriptor readable. Those that came since the last look may not: look once more.
    fn await_more(&mut self) {
        let armed = self
            .completions
            .iter()
            .try_for_each(|completions| completions.arm());
        if let Err(error) = armed {
            self.give_up(&error.to_string(), None);
        }
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
