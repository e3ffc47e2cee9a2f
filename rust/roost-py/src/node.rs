//! `Node`: the data lane of one process. Everything here runs on the event loop's own thread.
//!
//! The state sits behind one lock, which is never held while Python code may run: what is to be done in Python is
//! collected as [`Action`]s and done after the lock is released.

use std::collections::HashMap;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::ThreadId;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use pyo3::{PyTraverseError, PyVisit};
use roost_core::credit::Amount;
use roost_core::id::{Incarnation, JobId};
use roost_core::wire::{Credit, CreditTarget, Hello, PortItem, ReplyHeader, ReplyStatus, Version};

use crate::cell::{Cell, Cells};
use crate::endpoints::Endpoints;
use crate::hooks::Hooks;
use crate::ids::IdMap;
use crate::lane::Lost;
use crate::message::Mail;
use crate::outgoing::Outgoing;
use crate::page::StartedPage;
use crate::payload::{Payload, from_serialize};
use crate::peer::{Link, Offer, Peer, Sent, Stalled, Standing};
use crate::pending::Pending;
use crate::segment::SegmentMap;
use crate::targets::{mesh_id, proc_id};

/// The data lane of this process.
#[pyclass(frozen, module = "roost._roost")]
pub struct Node {
    pub(crate) state: Mutex<State>,
    hooks: OnceLock<Hooks>,
    thread: OnceLock<ThreadId>,
    /// Set in a forked child: the sockets belong to the parent.
    forked: AtomicBool,
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
    /// A frame was written in this turn of the loop: the next ones are collected and written together.
    pub(crate) burst: bool,
    pub(crate) flush_scheduled: bool,
    pub(crate) page: Option<Arc<StartedPage>>,
    /// Messages for meshes that are not here yet.
    pub(crate) early: HashMap<u64, Vec<(u32, Mail)>>,
    pub(crate) queue: Amount,
    /// Tables of endpoints by the address of the class's dict.
    tables: HashMap<usize, (Py<PyDict>, Arc<Endpoints>)>,
    /// Shared memory that others sent.
    pub(crate) map: Option<Py<SegmentMap>>,
    /// Why the frame that was read last cannot be right.
    pub(crate) refusal: Option<String>,
    /// Futures of broadcasts that wait for room.
    pub(crate) room: Vec<Py<PyAny>>,
    /// Names and sizes seen on messages, shared between them.
    pub(crate) last_sizes: Arc<[u8]>,
}

/// The actors of one mesh in this process.
pub(crate) struct Hosted {
    pub(crate) cells: Vec<Option<Py<Cell>>>,
    pub(crate) endpoints: Arc<Endpoints>,
}

/// What is to be done in Python once the lock is released.
pub(crate) enum Action {
    /// Set this future: an actor has a message.
    Wake(Py<PyAny>),
    /// A value arrived.
    Value {
        sink: Py<PyAny>,
        rank: Option<u32>,
        payload: Payload,
        item: bool,
    },
    /// A stream's rank has no more values.
    End { sink: Py<PyAny>, rank: u32 },
    /// An answer that is not a value.
    Error {
        sink: Py<PyAny>,
        rank: Option<u32>,
        status: ReplyStatus,
        payload: Payload,
    },
    /// A message for Roost itself.
    System {
        name: String,
        mesh: u64,
        sender: u64,
        ranks: Vec<(u32, u32)>,
        payload: Payload,
    },
    /// A caller cancelled a message that runs.
    Cancelled {
        runner: Py<PyAny>,
        message: Py<crate::message::Message>,
    },
    /// A value for a port, or word from one: (port, sender, flags, payload).
    PortItem {
        port: u64,
        sender: u64,
        flags: u8,
        payload: Payload,
    },
    /// The receiver of a port took so many values.
    PortTaken { port: u64, sender: u64, total: u64 },
    /// Tell a sender that a message has left a mailbox without being started.
    Grant {
        to: (u64, u32),
        actor: (u64, u32),
        amount: Amount,
    },
    /// Messages that an ended actor did not take go back.
    Bounce { mail: Mail, reason: Py<PyBytes> },
    /// Hand the descriptor of a segment to a receiver.
    Offer { proc: u64, offer: Offer },
    /// Ask for a connection.
    Connect(u64),
    /// Watch this descriptor until the socket takes more.
    Watch { fd: i32, proc: u64 },
    /// Stop watching.
    Unwatch(i32),
    /// Stop reading: the other end is gone.
    Ended { fd: i32 },
    /// The other end speaks no frames of ours.
    Broken { proc: u64, text: String },
    /// Flush at the end of this turn of the loop.
    Schedule,
    /// Drop this outside the lock.
    Drop(#[expect(dead_code, reason = "held only to be dropped where Python may run")] Vec<Py<PyAny>>),
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

    pub(crate) fn check_size(&self, py: Python<'_>, payload: &Payload) -> PyResult<()> {
        let size = payload.size(py) as u64;
        if size > self.message_bytes_max {
            let hooks = self.hooks()?;
            hooks.too_large.call1(py, (size,))?;
        }
        Ok(())
    }

    /// Tell a sender that its messages were taken out of a mailbox.
    pub(crate) fn grant(
        &self,
        py: Python<'_>,
        (sender, incarnation): (u64, u32),
        (mesh, slot): (u64, u32),
        amount: Amount,
    ) -> PyResult<()> {
        let mut actions = Vec::new();
        {
            let mut state = self.lock();
            if let Some(link) = state.link(sender, incarnation) {
                let target = CreditTarget::Actor {
                    mesh: mesh_id(mesh)?,
                    slot,
                };
                let credit = Credit {
                    target,
                    messages: amount.messages,
                    bytes: amount.bytes,
                };
                // A credit is small and always fits; a session that is gone needs none.
                let _ = link.session.push(&credit, &[]);
                state.wrote(sender, &mut actions);
            }
        }
        self.act(py, actions)
    }

    /// Answer a message.
    pub(crate) fn answer(
        &self,
        py: Python<'_>,
        mail: &Mail,
        status: ReplyStatus,
        payload: &Payload,
    ) -> PyResult<()> {
        let mut actions = Vec::new();
        {
            let mut state = self.lock();
            if mail.session == u32::MAX {
                state.reply(
                    py,
                    mail.call,
                    mail.rank,
                    status,
                    payload.clone_ref(py),
                    &mut actions,
                );
            } else {
                let header = ReplyHeader {
                    call: mail.call,
                    rank: mail.rank,
                    status,
                    flags: 0,
                };
                if let Some(link) = state.link(mail.sender, mail.incarnation) {
                    if !link.stalled.is_empty() || link.push(py, mail.sender, &header, payload).is_err() {
                        link.stalled
                            .push_back(Stalled::Reply(header, payload.clone_ref(py)));
                    }
                    state.wrote(mail.sender, &mut actions);
                }
            }
        }
        self.act(py, actions)
    }

    /// Send a message back whose actor has ended: to its caller, or as a dead letter.
    pub(crate) fn bounce(&self, py: Python<'_>, mail: &Mail, reason: &Bound<'_, PyBytes>) -> PyResult<()> {
        if mail.call == 0 {
            let name = mail.name_text(py);
            self.hooks()?.undelivered.call1(py, (mail.sender, name, reason))?;
            return Ok(());
        }
        let payload = Payload::plain(reason.clone().unbind());
        self.answer(py, mail, ReplyStatus::Dropped, &payload)
    }

    /// The table of a class's endpoints; one for all meshes of the class.
    fn endpoints_of(&self, endpoints: &Bound<'_, PyDict>) -> PyResult<Arc<Endpoints>> {
        let key = endpoints.as_ptr() as usize;
        if let Some((_, table)) = self.lock().tables.get(&key) {
            return Ok(Arc::clone(table));
        }
        let table = Arc::new(Endpoints::from_dict(endpoints)?);
        // The dict is kept, so that its address stays its own.
        self.lock()
            .tables
            .insert(key, (endpoints.clone().unbind(), Arc::clone(&table)));
        Ok(table)
    }

    /// Parts of received segments may have been let go: have their senders told.
    pub(crate) fn note_releases(&self, py: Python<'_>) -> PyResult<()> {
        let hooks = self.hooks()?;
        if hooks.map.get().has_released() {
            hooks.released.call0(py)?;
        }
        Ok(())
    }

    /// Do what was collected under the lock.
    pub(crate) fn act(&self, py: Python<'_>, actions: Vec<Action>) -> PyResult<()> {
        if actions.is_empty() {
            return Ok(());
        }
        let hooks = self.hooks()?;
        for action in actions {
            if let Err(error) = self.act_once(py, hooks, action) {
                // One message's trouble must not stop the others of its batch.
                error.write_unraisable(py, None);
            }
        }
        Ok(())
    }

    #[expect(clippy::too_many_lines, reason = "one arm an action, each a line or two")]
    fn act_once(&self, py: Python<'_>, hooks: &Hooks, action: Action) -> PyResult<()> {
        match action {
            Action::Wake(waiter) => crate::cell::wake(py, &waiter)?,
            Action::Value {
                sink,
                rank,
                payload,
                item,
            } => crate::lane::deliver(py, hooks, &sink, rank, &payload, item)?,
            Action::End { sink, rank } => {
                sink.call_method1(py, "end", (rank,))?;
            }
            Action::Error {
                sink,
                rank,
                status,
                payload,
            } => {
                let rank = rank.map_or(-1, i64::from);
                hooks
                    .errored
                    .call1(py, (sink, rank, status as u8, payload.pickle))?;
            }
            Action::System {
                name,
                mesh,
                sender,
                ranks,
                payload,
            } => {
                hooks
                    .system
                    .call1(py, (name, mesh, sender, ranks, payload.pickle))?;
            }
            Action::Cancelled { runner, message } => {
                message.get().set_cancelled();
                hooks.cancelled.call1(py, (runner, message))?;
            }
            Action::PortItem {
                port,
                sender,
                flags,
                payload,
            } => {
                hooks.port_item.call1(py, (port, sender, flags, payload.pickle))?;
            }
            Action::PortTaken { port, sender, total } => {
                hooks.port_taken.call1(py, (port, sender, total))?;
            }
            Action::Grant { to, actor, amount } => self.grant(py, to, actor, amount)?,
            Action::Bounce { mail, reason } => self.bounce(py, &mail, reason.bind(py))?,
            Action::Offer { proc, offer } => {
                hooks
                    .offer
                    .call1(py, (proc, offer.segment, offer.bytes, offer.fd.into_raw_fd()))?;
            }
            Action::Connect(proc) => {
                hooks.connect.call1(py, (proc,))?;
            }
            Action::Watch { fd, proc } => {
                if let Some(writable) = hooks.own(py, |own| &own.writable) {
                    hooks.loop_.call_method1(py, "add_writer", (fd, writable, proc))?;
                }
            }
            Action::Unwatch(fd) => {
                hooks.loop_.call_method1(py, "remove_writer", (fd,))?;
            }
            Action::Ended { fd } => {
                hooks.loop_.call_method1(py, "remove_reader", (fd,))?;
                hooks.loop_.call_method1(py, "remove_writer", (fd,))?;
            }
            Action::Broken { proc, text } => {
                hooks.broken.call1(py, (proc, text))?;
            }
            Action::Schedule => {
                if let Some(flush) = hooks.own(py, |own| &own.flush) {
                    hooks.call_soon.call1(py, (flush,))?;
                }
            }
            Action::Drop(_) => {}
        }
        Ok(())
    }
}

impl State {
    /// The live connection to this very incarnation.
    pub(crate) fn link(&mut self, proc: u64, incarnation: u32) -> Option<&mut Link> {
        let peer = self.peers.get_mut(&proc)?;
        if peer.incarnation == incarnation {
            peer.link.as_mut().filter(|link| !link.closed)
        } else {
            None
        }
    }

    /// The record of another proc, made when it is new.
    pub(crate) fn peer(&mut self, proc: u64) -> &mut Peer {
        let queue = self.queue;
        self.peers.entry(proc).or_insert_with(|| Peer::new(proc, queue))
    }

    /// A frame was put into this proc's session: write it now when it is the first of this turn, else with the others.
    pub(crate) fn wrote(&mut self, proc: u64, actions: &mut Vec<Action>) {
        if let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) {
            actions.extend(link.offers.drain(..).map(|offer| Action::Offer { proc, offer }));
        }
        if self.burst {
            if !self.dirty.contains(&proc) {
                self.dirty.push(proc);
            }
            if !self.flush_scheduled {
                self.flush_scheduled = true;
                actions.push(Action::Schedule);
            }
        } else {
            self.burst = true;
            self.flush_one(proc, actions);
        }
    }

    /// Write what the socket takes.
    pub(crate) fn flush_one(&mut self, proc: u64, actions: &mut Vec<Action>) {
        let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) else {
            return;
        };
        let full = link.flush();
        if full && !link.watched {
            link.watched = true;
            actions.push(Action::Watch {
                fd: link.raw_fd(),
                proc,
            });
        } else if !full && link.watched {
            link.watched = false;
            actions.push(Action::Unwatch(link.raw_fd()));
        }
    }

    /// Somebody waits no longer: whoever waits for room looks again.
    pub(crate) fn made_room(&mut self, actions: &mut Vec<Action>) {
        actions.extend(self.room.drain(..).map(Action::Wake));
    }

    /// Put a message that waited into the session, or hold it back again.
    pub(crate) fn send_held(
        &mut self,
        py: Python<'_>,
        proc: u64,
        message: Outgoing,
        actions: &mut Vec<Action>,
    ) {
        let Some(peer) = self.peers.get_mut(&proc) else {
            return;
        };
        peer.bound.leave(message.bytes);
        self.made_room(actions);
        self.send(py, proc, message, false, actions);
    }

    /// Put a captured message on its way. `credited` says that its credit was taken already. It is never refused: whether
    /// there is room was asked before, and what came this far must not get lost.
    pub(crate) fn send(
        &mut self,
        py: Python<'_>,
        proc: u64,
        message: Outgoing,
        credited: bool,
        actions: &mut Vec<Action>,
    ) -> Sent {
        let Some(peer) = self.peers.get_mut(&proc) else {
            return Sent::Waits;
        };
        let Some(link) = peer.link.as_mut().filter(|_| peer.standing == Standing::Live) else {
            peer.bound.admit(message.bytes);
            peer.backlog.push_back(message);
            return Sent::Waits;
        };
        // Roost's own messages enter no mailbox.
        let credited = credited || message.is_system();
        if !link.stalled.is_empty() {
            peer.bound.admit(message.bytes);
            link.stalled.push_back(Stalled::Message(message, credited));
            return Sent::Waits;
        }
        if credited
            || link.take_credit(
                message.mesh.get(),
                message.slots,
                message.runs.as_runs(),
                message.bytes,
            )
        {
            let sent = self.push(py, proc, message, actions);
            self.wrote(proc, actions);
            return sent;
        }
        if let Some((slot, _)) = message.runs.as_runs().one() {
            peer.bound.admit(message.bytes);
            link.wait(slot, message);
            return Sent::Waits;
        }
        self.send_each(py, proc, message, actions)
    }

    /// Send one copy an actor, so that a slow one holds up nobody else.
    fn send_each(&mut self, py: Python<'_>, proc: u64, message: Outgoing, actions: &mut Vec<Action>) -> Sent {
        let targets: Vec<(u32, u32)> = message.runs.as_runs().targets().collect();
        for (slot, rank) in targets {
            let Some(one) = message.for_ranks(py, &[rank]) else {
                continue;
            };
            let Some(peer) = self.peers.get_mut(&proc) else {
                continue;
            };
            let Some(link) = peer.link.as_mut() else { continue };
            if link.take_credit(one.mesh.get(), one.slots, one.runs.as_runs(), one.bytes) {
                self.push(py, proc, one, actions);
            } else {
                peer.bound.admit(one.bytes);
                link.wait(slot, one);
            }
        }
        actions.push(Action::Drop(vec![message.payload.pickle.into_any()]));
        self.wrote(proc, actions);
        Sent::Waits
    }

    /// Put a message that has its credit into the session, or behind those that wait for room there.
    fn push(&mut self, py: Python<'_>, proc: u64, message: Outgoing, actions: &mut Vec<Action>) -> Sent {
        let Some(peer) = self.peers.get_mut(&proc) else {
            return Sent::Waits;
        };
        let Some(link) = peer.link.as_mut() else {
            return Sent::Waits;
        };
        let Ok(number) = link.push(py, proc, &message.header(), &message.payload) else {
            peer.bound.admit(message.bytes);
            link.stalled.push_back(Stalled::Message(message, true));
            return Sent::Waits;
        };
        if message.is_broadcast() {
            link.await_broadcast(
                message.mesh.get(),
                message.runs.as_runs(),
                &message.name,
                number,
                |rank| {
                    message
                        .wait_while_down
                        .then(|| message.for_ranks(py, &[rank]))
                        .flatten()
                },
            );
        } else {
            self.sent(message.call, proc, number);
        }
        actions.push(Action::Drop(vec![message.payload.pickle.into_any()]));
        Sent::Number
    }
}

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
        let limit = |name: &str| -> PyResult<u64> {
            limits
                .get_item(name)?
                .ok_or_else(|| PyRuntimeError::new_err(format!("limit {name} is missing")))?
                .extract()
        };
        let version = Version::ours(crate::version(), python);
        let hello = Hello {
            version,
            job: JobId(job),
            proc: proc_id(proc)?,
            incarnation: Incarnation(incarnation),
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
            burst: false,
            flush_scheduled: false,
            page: None,
            early: HashMap::new(),
            queue: Amount {
                messages: limit("queue_messages_max")?,
                bytes: limit("queue_bytes_max")?,
            },
            last_sizes: Arc::from([]),
            tables: HashMap::new(),
            map: None,
            refusal: None,
            room: Vec::new(),
        };
        Ok(Self {
            state: Mutex::new(state),
            hooks: OnceLock::new(),
            thread: OnceLock::new(),
            forked: AtomicBool::new(false),
            hosted: AtomicUsize::new(0),
            message_bytes_max: limit("message_bytes_max")?,
        })
    }

    /// Bind to the loop of this thread; `hooks` are the Python functions that the data lane calls.
    fn open(slf: &Bound<'_, Self>, hooks: &Bound<'_, PyDict>) -> PyResult<()> {
        let node = slf.get();
        hooks.set_item("flush", slf.getattr("flush")?)?;
        hooks.set_item("readable", slf.getattr("readable")?)?;
        hooks.set_item("writable", slf.getattr("writable")?)?;
        let made = Hooks::from_dict(hooks)?;
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

    /// In a forked child: every later use is an error.
    fn mark_forked(&self) {
        self.forked.store(true, Ordering::Relaxed);
    }

    /// Use a connection to a proc's incarnation; the node owns the descriptor. What waited for it is sent.
    fn adopt(&self, py: Python<'_>, proc: u64, incarnation: u32, fd: i32, slot: i64) -> PyResult<()> {
        // SAFETY: Python hands over a descriptor that it owns and does not use again.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut actions = Vec::new();
        let raw = {
            let mut state = self.lock();
            let (hello, epoch) = (state.hello, state.epoch);
            let peer = state.peer(proc);
            peer.incarnation = incarnation;
            peer.standing = Standing::Live;
            let link = Link::new(fd, &hello, u32::try_from(slot).unwrap_or(u32::MAX - 1), epoch);
            let raw = link.raw_fd();
            let old = peer.link.replace(link);
            let backlog = std::mem::take(&mut peer.backlog);
            for message in backlog {
                state.send_held(py, proc, message, &mut actions);
            }
            state.flush_one(proc, &mut actions);
            if let Some(old) = old {
                actions.push(Action::Ended { fd: old.raw_fd() });
                actions.push(Action::Drop(waiting_payloads(old)));
            }
            raw
        };
        let hooks = self.hooks()?;
        if let Some(readable) = hooks.own(py, |own| &own.readable) {
            hooks
                .loop_
                .call_method1(py, "add_reader", (raw, readable, proc))?;
        }
        self.act(py, actions)
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
        let mut actions = Vec::new();
        {
            let mut state = self.lock();
            let peer = state.peer(proc);
            if peer.standing == Standing::Live {
                return Ok(());
            }
            if comes || !peer.backlog.is_empty() {
                peer.standing = Standing::Connecting;
            } else {
                peer.standing = Standing::Unknown;
            }
            if !comes && peer.standing == Standing::Connecting {
                actions.push(Action::Connect(proc));
            }
        }
        self.act(py, actions)
    }

    /// The membership epoch that this process has applied. Messages that were held for it are handled.
    fn set_epoch(&self, py: Python<'_>, epoch: u32) -> PyResult<()> {
        let held: Vec<u64> = {
            let mut state = self.lock();
            state.epoch = epoch;
            let mut held = Vec::new();
            for peer in state.peers.values_mut() {
                if let Some(link) = &mut peer.link {
                    link.session.set_epoch(epoch);
                    held.push(peer.id);
                }
            }
            held
        };
        for proc in held {
            self.parse(py, proc)?;
        }
        Ok(())
    }

    #[expect(clippy::needless_pass_by_value, reason = "Python's list becomes a Vec")]
    /// Make the actors of a mesh known: one cell a slot. Messages that came early are put in.
    fn host(
        slf: &Bound<'_, Self>,
        mesh: u64,
        slots: Vec<u32>,
        endpoints: &Bound<'_, PyDict>,
    ) -> PyResult<Vec<Py<Cell>>> {
        let py = slf.py();
        let table = slf.get().endpoints_of(endpoints)?;
        let mut cells = Vec::with_capacity(slots.len());
        for &slot in &slots {
            cells.push(Py::new(py, Cell::new(slf.clone().unbind(), mesh, slot))?);
        }
        let node = slf.get();
        node.hosted.fetch_add(slots.len(), Ordering::Relaxed);
        let mut actions = Vec::new();
        {
            let mut state = node.lock();
            let hosted = state.meshes.entry(mesh).or_insert_with(|| Hosted {
                cells: Cells::new(),
                endpoints: table,
            });
            for (slot, cell) in slots.iter().zip(&cells) {
                let at = *slot as usize;
                if hosted.cells.len() <= at {
                    hosted.cells.resize_with(at + 1, || None);
                }
                hosted.cells[at] = Some(cell.clone_ref(py));
            }
            for (slot, mail) in state.early.remove(&mesh).unwrap_or_default() {
                state.put(py, mesh, slot, mail, &mut actions);
            }
        }
        node.act(py, actions)?;
        Ok(cells)
    }

    /// Forget the actors of a mesh; later messages for it are answered with `reason` while `close` of their cells lasts.
    fn forget(&self, py: Python<'_>, mesh: u64) {
        let gone = self.lock().meshes.remove(&mesh);
        if let Some(hosted) = gone {
            self.hosted
                .fetch_sub(hosted.cells.iter().flatten().count(), Ordering::Relaxed);
            let _ = py;
            drop(hosted);
        }
    }

    /// Messages for a mesh that never came: they go back.
    fn give_up_early(&self, py: Python<'_>, mesh: u64, reason: &Bound<'_, PyBytes>) -> PyResult<()> {
        let early = self.lock().early.remove(&mesh).unwrap_or_default();
        for (_, mail) in early {
            self.bounce(py, &mail, reason)?;
        }
        Ok(())
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
        let mut buffer = roost_core::wire::RunsBuffer::new();
        for (slot, count, slot_stride, rank, rank_stride) in runs {
            buffer
                .push(roost_core::wire::Run {
                    slot,
                    count,
                    slot_stride,
                    rank,
                    rank_stride,
                })
                .map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        }
        let payload = Payload::plain(payload);
        let message = Outgoing {
            order: 0,
            call: 0,
            mesh: mesh_id(mesh)?,
            runs: buffer,
            name: Arc::from(name),
            sizes: Arc::from([]),
            deadline: 0,
            flags: 0,
            chain: None,
            slots: 0,
            bytes: payload.size(py) as u64,
            payload,
            wait_while_down: false,
        };
        let mut actions = Vec::new();
        {
            let mut state = self.lock();
            let peer = state.peer(proc);
            if peer.standing == Standing::Unknown {
                peer.standing = Standing::Connecting;
                actions.push(Action::Connect(proc));
            }
            state.send(py, proc, message, true, &mut actions);
        }
        self.act(py, actions)
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
        let payload = from_serialize(dumped)?;
        let header = PortItem { port, flags };
        let mut actions = Vec::new();
        {
            let mut state = self.lock();
            if let Some(link) = state.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) {
                if !link.stalled.is_empty() || link.push(py, proc, &header, &payload).is_err() {
                    link.stalled.push_back(Stalled::PortItem(header, payload));
                }
                state.wrote(proc, &mut actions);
            }
        }
        self.act(py, actions)
    }

    /// Tell a port's sender how many values were taken.
    fn port_taken(&self, py: Python<'_>, proc: u64, port: u64, total: u64) -> PyResult<()> {
        let mut actions = Vec::new();
        {
            let mut state = self.lock();
            if let Some(link) = state.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) {
                let credit = Credit {
                    target: CreditTarget::Port(port),
                    messages: total,
                    bytes: 0,
                };
                // Small, and always taken.
                let _ = link.session.push(&credit, &[]);
                state.wrote(proc, &mut actions);
            }
        }
        self.act(py, actions)
    }

    /// This process stopped a mesh of its own: from now on its verbs raise.
    fn set_stopped(&self, mesh: u64) {
        self.lock().stopped.insert(mesh);
    }

    #[expect(clippy::needless_pass_by_value, reason = "Python's list becomes a Vec")]
    /// A mesh of this process's own ended long ago: forget it, and the procs that were its own.
    fn forget_owned(&self, mesh: u64, procs: Vec<u64>) {
        let gone: Vec<Peer> = {
            let mut state = self.lock();
            state.stopped.remove(&mesh);
            for peer in state.peers.values_mut() {
                if let Some(link) = &mut peer.link {
                    link.forget_mesh(mesh);
                }
            }
            procs.iter().filter_map(|proc| state.peers.remove(proc)).collect()
        };
        drop(gone);
    }

    /// Whether there is a connection to this proc.
    fn connected(&self, proc: u64) -> bool {
        self.lock()
            .peers
            .get(&proc)
            .is_some_and(|peer| peer.standing == Standing::Live)
    }

    /// Calls in flight to a proc: how loaded it is, as far as this process knows.
    fn load(&self, proc: u64) -> usize {
        self.lock()
            .pending
            .values()
            .filter(|pending| pending.on(proc).is_some())
            .count()
    }

    /// These ranks of a call were answered here, since their procs are gone.
    fn settle(&self, py: Python<'_>, call: u64, ranks: Vec<u32>) -> PyResult<()> {
        let mut actions = Vec::new();
        {
            let mut state = self.lock();
            let Some(pending) = state.pending.get_mut(&call) else {
                return Ok(());
            };
            let mut last = false;
            for rank in ranks {
                last = pending.answered(rank);
            }
            if last && let Some(pending) = state.pending.remove(&call) {
                actions.push(Action::Drop(vec![pending.sink]));
            }
        }
        self.act(py, actions)
    }

    /// The incarnation that this process last had a connection to.
    fn incarnation_of(&self, proc: u64) -> u32 {
        self.lock().peers.get(&proc).map_or(0, |peer| peer.incarnation)
    }

    /// The proc on which a rank of a call in flight lives.
    fn proc_of(&self, call: u64, rank: u32) -> Option<u64> {
        let state = self.lock();
        match &state.pending.get(&call)?.answers {
            crate::pending::Answers::One { proc, .. } => Some(*proc),
            crate::pending::Answers::Many { targets, .. } => {
                let places = &targets.get().places;
                places
                    .iter()
                    .find(|place| place.ranks().contains(&rank))
                    .map(|place| place.proc.get())
            }
        }
    }

    /// Whether anything is still to be written to a live connection.
    fn has_unsent(&self) -> bool {
        let state = self.lock();
        let mut links = state.peers.values().filter_map(|peer| peer.link.as_ref());
        links.any(|link| !link.closed && link.session.has_unsent())
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
        let mut actions = Vec::new();
        {
            let mut state = self.lock();
            state.flush_scheduled = false;
            state.burst = false;
            for proc in std::mem::take(&mut state.dirty) {
                state.flush_one(proc, &mut actions);
            }
        }
        self.act(py, actions)?;
        self.note_releases(py)
    }

    /// A receiver has mapped a segment, or cannot: what waited for that goes on.
    fn retry(&self, py: Python<'_>, proc: u64) -> PyResult<()> {
        let mut actions = Vec::new();
        self.lock().retry_stalled(py, proc, &mut actions);
        self.act(py, actions)
    }

    /// The socket of this proc can be read.
    fn readable(&self, py: Python<'_>, proc: u64) -> PyResult<()> {
        self.read_from(py, proc)
    }

    /// A proc's incarnation has ended: read the rest of what it sent, then give up on what it did not answer.
    ///
    /// Returns [(sink, ranks, whether they may have been executed)], and the broadcasts that were not delivered as
    /// [(mesh, slot, rank, endpoint, whether it may have been executed)]. With `again`, messages that wait for the next
    /// incarnation stay.
    fn lost(
        &self,
        py: Python<'_>,
        proc: u64,
        incarnation: u32,
        started: i64,
        again: bool,
        gone: bool,
    ) -> PyResult<Lost> {
        self.lose(py, proc, incarnation, started, again, gone)
    }

    /// Give up on a call: its message is taken back or its endpoint cancelled.
    fn cancel(&self, py: Python<'_>, call: u64) -> PyResult<()> {
        self.cancel_call(py, call)
    }

    /// The socket takes more.
    fn writable(&self, py: Python<'_>, proc: u64) -> PyResult<()> {
        let mut actions = Vec::new();
        self.lock().flush_one(proc, &mut actions);
        self.act(py, actions)
    }

    /// Close every connection.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut actions = Vec::new();
        let (peers, meshes, pending) = {
            let mut state = self.lock();
            let peers = std::mem::take(&mut state.peers);
            for peer in peers.values() {
                if let Some(link) = &peer.link {
                    actions.push(Action::Ended { fd: link.raw_fd() });
                }
            }
            (
                peers,
                std::mem::take(&mut state.meshes),
                std::mem::take(&mut state.pending),
            )
        };
        let done = self.act(py, actions);
        drop((peers, meshes, pending));
        if let Ok(hooks) = self.hooks() {
            hooks.close();
        }
        done
    }
}

/// What an old connection held, to be dropped where Python may run.
fn waiting_payloads(mut link: Link) -> Vec<Py<PyAny>> {
    link.take_waiting()
        .into_iter()
        .map(|message| message.payload.pickle.into_any())
        .collect()
}
