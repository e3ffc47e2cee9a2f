//! What Python calls on a node.

use std::collections::HashMap;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use roost_core::credit::Amount;
use roost_core::id::{Incarnation, JobId};
use roost_core::wire::{Hello, Version};

use super::looking::{Plain, Queue, plain};
use super::losing::{Death, Lost};
use super::working::Work;
use super::{Node, State, Workplace, answering, connecting, far, hosting, ports, posting, sending, working};
use crate::cell::Cell;
use crate::hooks::Hooks;
use crate::ids::IdMap;
use crate::message::Message;
use crate::page::StartedPage;
use crate::peer::{FarLane, Letters, Link, Standing};
use crate::targets::proc_id;

// The longer ones are delegated to the module of their topic.
#[pymethods]
impl Node {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.hooks.get().map_or(Ok(()), |hooks| hooks.traverse(&visit))
    }

    /// Args: job id (16 bytes), own proc id, incarnation, (major, minor) of Python, and limits by name.
    #[new]
    fn new(
        job: [u8; 16],
        proc: u64,
        incarnation: u32,
        python: (u8, u8),
        limits: &Bound<'_, PyDict>,
    ) -> PyResult<Self> {
        let limit_of = |name: &str| {
            limits
                .get_item(name)?
                .ok_or_else(|| PyRuntimeError::new_err(format!("limit {name} is missing")))
        };
        let limit = |name: &str| -> PyResult<u64> { limit_of(name)?.extract() };
        let idle_s: f64 = limit_of("idle_s")?.extract()?;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "centuries of nanoseconds fit; longer saturates, and less than none there is not"
        )]
        let idle_ns = (idle_s * 1e9) as u64;
        let version = Version::ours(crate::version(), python);
        let hello = Hello {
            version,
            job: JobId(job),
            proc: proc_id(proc)?,
            incarnation: Incarnation(incarnation),
            to: None,
            link: None,
        };
        let state = State {
            own: proc,
            hello,
            epoch: 0,
            peers: IdMap::default(),
            meshes: IdMap::default(),
            pending: IdMap::default(),
            next_call: 1,
            stopped: std::collections::HashSet::new(),
            dirty: Vec::new(),
            turn: 0,
            flush_scheduled: false,
            page: None,
            early: HashMap::new(),
            queue: Amount {
                messages: limit("queue_messages_max")?,
                bytes: limit("queue_bytes_max")?,
            },
            last_sizes: Arc::from([]),
            work: Workplace::default(),
            tables: HashMap::new(),
            map: None,
            refusal: None,
            owing: Vec::new(),
            room: Vec::new(),
            clock_ns: 0,
            ticks_at_ns: None,
            tree_procs_min: usize::MAX,
            far_links: 0,
            holds: false,
            watch_ns: None,
            idle_ns,
            idle_look_ns: None,
        };
        Ok(Self {
            state: Arc::new(Mutex::new(state)),
            hooks: OnceLock::new(),
            thread: OnceLock::new(),
            forked: AtomicBool::new(false),
            owes_news: AtomicBool::new(false),
            hosted: AtomicUsize::new(0),
            message_bytes_max: limit("message_bytes_max")?,
        })
    }

    /// Bind to the loop of this thread; `hooks` has the Python functions that the data lane calls.
    fn open(slf: &Bound<'_, Self>, hooks: &Bound<'_, PyAny>) -> PyResult<()> {
        let node = slf.get();
        let made = Hooks::new(hooks, slf)?;
        node.lock().map = Some(made.map.clone_ref(slf.py()));
        if node.hooks.set(made).is_err() || node.thread.set(std::thread::current().id()).is_err() {
            return Err(PyRuntimeError::new_err("this node is open already"));
        }
        Ok(())
    }

    /// Map the page of started numbers that the host gave this proc; the descriptor is closed.
    fn set_started_page(&self, fd: i32) -> PyResult<()> {
        // SAFETY: Python hands over a descriptor that it owns and does not use again.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let page =
            StartedPage::map(&fd).map_err(|error| std::io::Error::from_raw_os_error(error.raw_os_error()))?;
        self.lock().page = Some(Arc::new(page));
        Ok(())
    }

    /// There are news of actors, to be said at the end of this turn or before the next answer.
    fn owe_news(&self) {
        self.owes_news.store(true, Ordering::Relaxed);
    }

    /// In a forked child: every later use is an error.
    fn mark_forked(&self) {
        self.forked.store(true, Ordering::Relaxed);
        // Nor may what the child drops or cancels write to them.
        for link in self
            .lock()
            .peers
            .values_mut()
            .filter_map(|peer| peer.link.as_mut())
        {
            link.closed = true;
        }
    }

    /// Use a connection to a proc's incarnation; the node owns the descriptor. What waited for it is sent.
    fn adopt(&self, py: Python<'_>, proc: u64, incarnation: u32, fd: i32, slot: Option<u32>) -> PyResult<()> {
        connecting::adopt(self, py, proc, incarnation, fd, slot)
    }

    /// Use a connection to a proc's incarnation on another host: the first of its session, or one in place of another. What
    /// was not acknowledged is sent again.
    fn adopt_far(
        &self,
        py: Python<'_>,
        proc: u64,
        incarnation: u32,
        lane: &Bound<'_, FarLane>,
        slot: Option<u32>,
    ) -> PyResult<()> {
        far::adopt_far(self, py, proc, incarnation, lane.get(), slot)
    }

    /// The job's clock is so far ahead of this host's, in ns: deadlines of messages between hosts are in the job's.
    fn set_clock(&self, offset_ns: i64) {
        far::set_clock(self, offset_ns);
    }

    /// This process is the driver: what it has for so many procs of other hosts at once goes along the tree of these.
    fn be_root(&self, tree_procs_min: usize) {
        self.lock().tree_procs_min = tree_procs_min;
    }

    /// What this turn of the loop has for procs of other hosts is written together at its end, along the tree where they are
    /// many.
    fn hold(&self, py: Python<'_>) -> PyResult<()> {
        posting::hold(self, py)
    }

    /// Frames have come along the tree of hosts.
    fn take_letters(&self, py: Python<'_>, letters: &Bound<'_, Letters>) -> PyResult<()> {
        posting::take_letters(self, py, letters.get())
    }

    /// The time of acknowledgements to other hosts has come.
    fn tick(&self, py: Python<'_>) -> PyResult<()> {
        far::tick(self, py)
    }

    /// A connection to this proc will come by itself.
    fn expect(&self, proc: u64) {
        let mut state = self.lock();
        let peer = state.peer(proc);
        if peer.standing != Standing::Live {
            peer.standing = Standing::Connecting;
        }
    }

    /// The next incarnation of a proc starts: its connection comes by itself, or is asked for when there is something to send.
    fn revive(&self, py: Python<'_>, proc: u64, comes: bool) -> PyResult<()> {
        connecting::revive(self, py, proc, comes)
    }

    /// The membership epoch that this process has applied.
    #[getter]
    fn epoch(&self) -> u32 {
        self.lock().epoch
    }

    /// The membership epoch that this process has applied. Messages that were held for it are handled.
    fn set_epoch(&self, py: Python<'_>, epoch: u32) -> PyResult<()> {
        connecting::set_epoch(self, py, epoch)
    }

    /// Make the actors of a mesh known: one cell a slot. Messages that came early are put in.
    fn host<'py>(
        slf: &Bound<'py, Self>,
        mesh: u64,
        count: u32,
        endpoints: &Bound<'py, PyDict>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        hosting::host(slf, mesh, count, endpoints)
    }

    /// From now on messages for a mesh of this process are for these endpoints instead of its class's, by name. False where
    /// there is no such mesh.
    fn set_endpoints(&self, py: Python<'_>, mesh: u64, endpoints: &Bound<'_, PyDict>) -> PyResult<bool> {
        hosting::set_endpoints(self, py, mesh, endpoints)
    }

    /// Forget the actors of a mesh; later messages for it are answered with `reason` while `close` of their cells lasts.
    fn forget(&self, py: Python<'_>, mesh: u64) {
        hosting::forget(self, py, mesh);
    }

    /// Messages for a mesh that never came: they go back.
    fn give_up_early(&self, py: Python<'_>, mesh: u64, reason: &Bound<'_, PyBytes>) -> PyResult<()> {
        hosting::give_up_early(self, py, mesh, reason)
    }

    /// Send one of Roost's own messages: no reply, no credit, in order with the others to that proc. `ranks` is (slot, rank).
    fn send_system(
        &self,
        py: Python<'_>,
        proc: u64,
        mesh: u64,
        name: &str,
        payload: Py<PyBytes>,
        runs: Vec<(u32, u32, u32, u32, u32)>,
    ) -> PyResult<()> {
        sending::send_system(self, py, proc, mesh, name, payload, runs)
    }

    /// Have a proc make the actors of a mesh, together with others of this turn of the loop: `plan` with its length, and the
    /// rest of the message (see spawns.rs). In order with everything else to that proc.
    fn send_spawn(&self, py: Python<'_>, proc: u64, mesh: u64, plan: &[u8], rest: &[u8]) -> PyResult<()> {
        sending::send_spawn(self, py, proc, mesh, plan, rest)
    }

    /// Send a value to a port of another proc.
    fn send_port_item(
        &self,
        py: Python<'_>,
        proc: u64,
        port: u64,
        flags: u8,
        dumped: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        ports::send_port_item(self, py, proc, port, flags, dumped)
    }

    /// Tell a port's sender how many values were taken.
    fn port_taken(&self, py: Python<'_>, proc: u64, port: u64, total: u64) -> PyResult<()> {
        ports::port_taken(self, py, proc, port, total)
    }

    /// Tell a port's sender that its receiver takes no more.
    fn port_closed(&self, py: Python<'_>, proc: u64, port: u64) -> PyResult<()> {
        ports::port_closed(self, py, proc, port)
    }

    /// This process stopped a mesh of its own: from now on its verbs raise.
    fn set_stopped(&self, mesh: u64) {
        self.lock().stopped.insert(mesh);
    }

    /// A mesh of this process's own ended long ago: forget it, and the procs that were its own.
    #[expect(clippy::needless_pass_by_value, reason = "Python's list becomes a Vec")]
    fn forget_owned(&self, mesh: u64, procs: Vec<u64>) {
        connecting::forget_owned(self, mesh, &procs);
    }

    /// Calls in flight to a proc: how loaded it is, as far as this process knows.
    fn load(&self, proc: u64) -> usize {
        self.lock()
            .pending
            .values()
            .filter(|pending| pending.on(proc).is_some())
            .count()
    }

    /// The mailboxes in which something waits.
    fn queues(&self) -> Vec<Queue> {
        self.lock().queues()
    }

    /// What the actors of a mesh do, those that do something.
    fn look(&self, mesh: u64) -> Vec<Plain> {
        plain(self.lock().activities(mesh))
    }

    /// These ranks of a call were answered here, since their procs are gone.
    fn settle(&self, py: Python<'_>, call: u64, ranks: Vec<u32>) -> PyResult<()> {
        answering::settle(self, py, call, ranks)
    }

    /// The incarnation that this process last had a connection to.
    fn incarnation_of(&self, proc: u64) -> u32 {
        self.lock().peers.get(&proc).map_or(0, |peer| peer.incarnation)
    }

    /// The proc on which a rank of a call in flight lives.
    fn proc_of(&self, call: u64, rank: u32) -> Option<u64> {
        answering::proc_of(self, call, rank)
    }

    /// Whether anything is still to be written to a live connection.
    fn has_unsent(&self, py: Python<'_>) -> PyResult<bool> {
        sending::has_unsent(self, py)
    }

    /// Whether there is a connection to a proc of this host other than this one.
    fn is_near(&self, proc: u64) -> bool {
        self.lock().is_near(proc)
    }

    /// Whether there is a connection to a proc of another host.
    fn is_far(&self, proc: u64) -> bool {
        self.lock().is_far(proc)
    }

    /// Whether messages wait here on their way to a proc.
    fn waits(&self, proc: u64) -> bool {
        let state = self.lock();
        state
            .peers
            .get(&proc)
            .is_some_and(|peer| !peer.backlog.is_empty() || peer.link.as_ref().is_some_and(Link::waits))
    }

    /// Set this future the next time that a message which waited has left.
    fn when_room(&self, future: Py<PyAny>) {
        self.lock().room.push(future);
    }

    /// Write what was collected in this turn of the loop.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        sending::flush(self, py)
    }

    /// A receiver has mapped a segment, or cannot: what waited for that goes on.
    fn retry(&self, py: Python<'_>, proc: u64) -> PyResult<()> {
        sending::retry(self, py, proc)
    }

    /// The socket of this proc can be read.
    fn readable(&self, py: Python<'_>, proc: u64) -> PyResult<()> {
        self.read_from(py, proc)
    }

    /// The next thing to do for a worker of this process; `last` is the actor that it was at, None for one that just woke up.
    fn take<'py>(&self, py: Python<'py>, last: Option<&Bound<'py, Cell>>) -> PyResult<Option<Work<'py>>> {
        self.next_work(py, last)
    }

    /// A worker ends; `last` is the actor that it was at.
    fn leave(&self, py: Python<'_>, last: Option<&Bound<'_, Cell>>) -> PyResult<()> {
        working::leave(self, py, last)
    }

    /// A future that is done when there is something to do for the worker that asks.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        working::wait(self, py)
    }

    /// A worker that waited with this future was cancelled.
    fn quit(&self, py: Python<'_>, future: &Bound<'_, PyAny>) -> PyResult<()> {
        working::quit(self, py, future)
    }

    /// Workers that wait look once more, and end: this process does.
    fn end_workers(&self, py: Python<'_>) -> PyResult<()> {
        working::end_workers(self, py)
    }

    /// Somebody goes on with what a worker left undone that waits now.
    fn relay(&self, py: Python<'_>) -> PyResult<()> {
        working::relay(self, py)
    }

    /// A proc's incarnation has ended: read the rest of what it sent, then give up on what it did not answer.
    ///
    /// Returns [(sink, ranks, whether they may have been executed)], and the broadcasts that were not delivered as
    /// [(mesh, slot, rank, endpoint, whether it may have been executed)]. `started` is the last message that it had started,
    /// where that is known; with `again`, messages that wait for the next incarnation stay; with `gone` there is none.
    fn lost(
        &self,
        py: Python<'_>,
        proc: u64,
        incarnation: u32,
        started: Option<u64>,
        again: bool,
        gone: bool,
    ) -> PyResult<Lost> {
        let death = Death {
            proc,
            incarnation,
            started,
            again,
            gone,
        };
        self.lose(py, &death)
    }

    /// Whether something that a dead incarnation had said may still come: `said` is the last frame that it was about to write.
    fn is_unheard(&self, py: Python<'_>, proc: u64, incarnation: u32, said: u64) -> PyResult<bool> {
        self.may_hear(py, proc, incarnation, said)
    }

    /// Give up on a call: its message is taken back or its endpoint cancelled.
    fn cancel(&self, py: Python<'_>, call: u64) -> PyResult<()> {
        self.cancel_call(py, call)
    }

    /// Take one rank of a call back: it has its answer here.
    fn take_back(&self, py: Python<'_>, call: u64, rank: u32) -> PyResult<()> {
        self.take_rank_back(py, call, rank)
    }

    /// Where the answer to a call goes, while one is to come.
    fn sink(&self, py: Python<'_>, call: u64) -> Option<Py<PyAny>> {
        let state = self.lock();
        state.pending.get(&call).map(|pending| pending.sink.clone_ref(py))
    }

    /// The message that an actor handles and that has this number in the chains of what it calls.
    fn running(&self, py: Python<'_>, mesh: u64, slot: usize, number: u64) -> Option<Py<Message>> {
        let state = self.lock();
        let cell = state.meshes.get(&mesh)?.cells.get(slot)?;
        cell.get().before(py, number).map(|(message, _)| message)
    }

    /// Tell senders of the broadcasts that were taken meanwhile.
    fn grant_owed(&self, py: Python<'_>) -> PyResult<()> {
        answering::grant_owed(self, py)
    }

    /// The socket takes more.
    fn writable(&self, py: Python<'_>, proc: u64) -> PyResult<()> {
        sending::writable(self, py, proc)
    }

    /// Close every connection.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        connecting::close(self, py)
    }
}
