//! `Node`: the data lane of one process. Everything here runs on the event loop's own thread.
//!
//! The state sits behind one lock, which is never held while Python code may run: what is to be done in Python is
//! collected as [`Action`]s and done after the lock is released.
//!
//! | module | what it does |
//! |---|---|
//! | `class` | what Python calls |
//! | `action` | what is done in Python once the lock is released |
//! | `connecting` | other procs: how they stand, their connections, epochs |
//! | `far` | connections to other hosts: replaced ones, their timer, large parts that go ahead |
//! | `posting` | frames along the tree of hosts |
//! | `sending` | captured messages: into the session, or held back until there is credit, room or a connection |
//! | `receiving` | frames that came in: each goes to a mailbox, a reply or a port |
//! | `answering` | replies, both ways; credit; messages that go back |
//! | `cancelling` | calls that are given up |
//! | `losing` | what a proc's death leaves |
//! | `hosting` | the actors of this process |
//! | `looking` | what they do, for the control thread |
//! | `working` | which of them have something to do, and the workers that do it |
//! | `ports` | values outside calls |
//! | `unsendable` | what is too large for a frame and cannot travel by shared memory |

mod action;
mod answering;
mod cancelling;
mod class;
mod connecting;
mod far;
mod hosting;
mod looking;
mod losing;
mod ports;
mod posting;
mod receiving;
mod sending;
mod unsendable;
mod working;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::ThreadId;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use roost_core::credit::Amount;
use roost_core::limits::INLINE_BYTES_MAX;
use roost_core::wire::Hello;

pub(crate) use self::action::Action;
use self::hosting::{Early, Hosted};
pub(crate) use self::looking::{Board, plain};
pub(crate) use self::working::Workplace;
use crate::endpoints::Endpoints;
use crate::hooks::Hooks;
use crate::ids::IdMap;
use crate::page::StartedPage;
use crate::payload::Payload;
use crate::peer::Peer;
use crate::pending::Pending;
use crate::segment::SegmentMap;

/// The data lane of this process.
#[pyclass(frozen, module = "roost._roost")]
pub struct Node {
    pub(crate) state: Arc<Mutex<State>>,
    hooks: OnceLock<Hooks>,
    thread: OnceLock<ThreadId>,
    /// Set in a forked child: the sockets belong to the parent.
    forked: AtomicBool,
    /// Python has news of actors that it has not sent.
    owes_news: AtomicBool,
    /// Actors in this process; while there are none, no endpoint runs whose deadline could bound a call.
    pub(crate) hosted: AtomicUsize,
    pub(crate) message_bytes_max: u64,
}

/// What the lock protects.
pub(crate) struct State {
    pub(crate) own: u64,
    pub(crate) hello: Hello,
    pub(crate) epoch: u32,
    pub(crate) peers: IdMap<Peer>,
    pub(crate) meshes: IdMap<Hosted>,
    pub(crate) pending: IdMap<Pending>,
    pub(crate) next_call: u64,
    /// Meshes of this process's own that were stopped: their verbs raise.
    pub(crate) stopped: std::collections::HashSet<u64>,
    /// Procs with something to write.
    pub(crate) dirty: Vec<u64>,
    /// Counts turns of the loop, as far as they are seen here.
    pub(crate) turn: u64,
    pub(crate) flush_scheduled: bool,
    pub(crate) page: Option<Arc<StartedPage>>,
    /// Messages for meshes that are not here yet.
    pub(crate) early: HashMap<u64, Early>,
    pub(crate) queue: Amount,
    /// Tables of endpoints by the address of the class's dict.
    tables: HashMap<usize, (Py<PyDict>, Arc<Endpoints>)>,
    /// Shared memory that others sent.
    pub(crate) map: Option<Py<SegmentMap>>,
    /// Why the frame that was read last cannot be right.
    pub(crate) refusal: Option<String>,
    /// Actors that have taken broadcasts and not told their senders yet: (mesh, slot).
    pub(crate) owing: Vec<(u64, u32)>,
    /// Futures of broadcasts that wait for room.
    pub(crate) room: Vec<Py<PyAny>>,
    /// Names and sizes seen on messages, shared between them.
    pub(crate) last_sizes: Arc<[u8]>,
    /// How far the job's clock is ahead of ours.
    pub(crate) clock_ns: i64,
    /// When the loop calls [`Node::tick`] next, as far as that was asked for here.
    pub(crate) ticks_at_ns: Option<u64>,
    /// From so many procs of other hosts on the tree of hosts is worth it, for the driver, which is its root; and how many
    /// connections to other hosts there are, about.
    pub(crate) tree_procs_min: usize,
    pub(crate) far_links: usize,
    /// What is for procs of other hosts waits for the next flush.
    pub(crate) holds: bool,
    /// When connections to other hosts are looked at next: whether what was sent is acknowledged.
    pub(crate) watch_ns: Option<u64>,
    /// How long such a connection is kept that nobody uses, and when it is looked at next which those are.
    pub(crate) idle_ns: u64,
    pub(crate) idle_look_ns: Option<u64>,
    /// The actors of this process with something to do, and who does it.
    pub(crate) work: Workplace,
}

impl Node {
    pub(crate) fn hooks(&self) -> PyResult<&Hooks> {
        self.hooks
            .get()
            .ok_or_else(|| PyRuntimeError::new_err("roost is not running in this process"))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whether this is the loop's thread.
    pub(crate) fn on_loop(&self) -> bool {
        self.thread
            .get()
            .is_some_and(|thread| *thread == std::thread::current().id())
    }

    /// Refuse to work in a forked child.
    pub(crate) fn check_process(&self) -> PyResult<()> {
        if self.forked.load(Ordering::Relaxed) {
            return Err(PyRuntimeError::new_err(
                "this process was forked from one that uses roost; roost works only in the parent. \
                 Spawn procs with roost, or start the process anew (spawn, not fork) and attach from there",
            ));
        }
        Ok(())
    }

    /// Refuse what is too large: for a message, or for a frame, where what goes to these procs has to fit one. To other hosts
    /// it goes in pieces; and of a proc without a connection it is not known yet.
    pub(crate) fn check_size(
        &self,
        py: Python<'_>,
        payload: &Payload,
        mut procs: impl Iterator<Item = u64>,
    ) -> PyResult<()> {
        let size = payload.size(py) as u64;
        let least = self.message_bytes_max.min(INLINE_BYTES_MAX as u64);
        if size > least {
            let is_near = procs.any(|proc| self.lock().is_near(proc));
            let inline = if is_near { payload.inline_size(py) } else { 0 };
            if size > self.message_bytes_max || inline > INLINE_BYTES_MAX {
                self.hooks()?.too_large.call1(py, (size, inline))?;
            }
        }
        Ok(())
    }

    /// Parts of received segments may have been let go: have their senders told.
    pub(crate) fn note_releases(&self, py: Python<'_>) -> PyResult<()> {
        let hooks = self.hooks()?;
        if hooks.map.get().has_released() {
            hooks.released.call0(py)?;
        }
        Ok(())
    }
}
