//! `Verb`: one verb of one endpoint on one handle: `mesh.step.call_one`. This is the path that every call takes.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{PyTraverseError, PyVisit};
use roost_core::wire::{Chain, MessageHeader, Runs};

use crate::endpoints::Endpoint;
use crate::hooks::Hooks;
use crate::message::{Mail, Message, flags};
use crate::node::{Action, Node, State};
use crate::outgoing::Outgoing;
use crate::payload::{Payload, all_plain, dump_plain, from_serialize};
use crate::peer::{Sent, Standing};
use crate::pending::{Answers, Pending, UNSENT};
use crate::targets::{Place, Targets};

/// What a verb gives back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    CallOne,
    Call,
    Broadcast,
    Stream,
}

/// A verb, ready to be called.
#[pyclass(frozen, module = "roost._roost")]
pub struct Verb {
    node: Py<Node>,
    targets: Py<Targets>,
    endpoint: Arc<Endpoint>,
    mesh: Py<PyAny>,
    mode: Mode,
    name: Arc<str>,
    positional_min: usize,
    positional_max: usize,
    timeout_ns: Option<i64>,
    /// Every rank lives in this very process.
    is_here: bool,
}

/// The awaitable of a broadcast that has left: done.
#[pyclass(frozen, module = "roost._roost")]
pub struct Done;

#[pymethods]
impl Done {
    #[new]
    fn new() -> Self {
        Self
    }

    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[expect(clippy::unused_self, reason = "an iterator that ends at once")]
    fn __next__(&self) -> Option<()> {
        None
    }
}

#[pymethods]
impl Verb {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.node)?;
        visit.call(&self.targets)?;
        // The handle keeps its verbs.
        visit.call(&self.mesh)
    }

    #[new]
    fn new(
        node: Py<Node>,
        targets: Py<Targets>,
        endpoint: &Bound<'_, PyAny>,
        mesh: Py<PyAny>,
        mode: u8,
        name: &str,
        positional_min: usize,
        positional_max: usize,
        timeout_s: Option<f64>,
    ) -> PyResult<Self> {
        let mode = match mode {
            0 => Mode::CallOne,
            1 => Mode::Call,
            2 => Mode::Broadcast,
            _ => Mode::Stream,
        };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "centuries of nanoseconds fit; longer saturates"
        )]
        let timeout_ns = timeout_s.map(|seconds| (seconds * 1e9) as i64);
        let own = node.get().lock().own;
        let is_here = targets.get().places.iter().all(|place| place.proc.get() == own);
        let (name, endpoint) = (Arc::from(name), Arc::new(Endpoint::new(endpoint)?));
        Ok(Self {
            node,
            targets,
            endpoint,
            mesh,
            mode,
            name,
            positional_min,
            positional_max,
            timeout_ns,
            is_here,
        })
    }

    /// Send, now.
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__(
        slf: &Bound<'_, Self>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let (py, verb) = (slf.py(), slf.get());
        let node = verb.node.get();
        node.check_process()?;
        let hooks = node.hooks()?;
        if !node.on_loop() {
            return hooks.elsewhere.call1(py, (slf, args, kwargs));
        }
        let count = args.len();
        let counted = kwargs.is_none() && (verb.positional_min..=verb.positional_max).contains(&count);
        if counted && verb.mode != Mode::Stream && all_plain(args) {
            let payload = if verb.is_here {
                Payload::ready(args.as_any())
            } else {
                dump_plain(py, hooks, args.as_any())?
            };
            return verb.send(py, node, hooks, None, &Packed::Same(payload));
        }
        let (sink, args) = if verb.mode == Mode::Stream {
            (Some(args.get_item(0)?.unbind()), args.get_slice(1, count))
        } else {
            (None, args.clone())
        };
        let packed = Packed::from_python(&hooks.pack.bind(py).call1((slf, args, kwargs))?)?;
        verb.send(py, node, hooks, sink, &packed)
    }

    #[getter]
    fn endpoint(&self, py: Python<'_>) -> Py<PyAny> {
        self.endpoint.info.clone_ref(py)
    }

    #[getter]
    fn mesh(&self, py: Python<'_>) -> Py<PyAny> {
        self.mesh.clone_ref(py)
    }

    #[getter]
    fn targets(&self, py: Python<'_>) -> Py<Targets> {
        self.targets.clone_ref(py)
    }

    #[getter]
    fn is_broadcast(&self) -> bool {
        self.mode == Mode::Broadcast
    }

    #[getter]
    fn is_stream(&self) -> bool {
        self.mode == Mode::Stream
    }

    /// The reply of a call that another thread makes.
    fn new_sink(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.make_sink(py, self.node.get().hooks()?)
    }

    /// Send what another thread packed, on the loop's thread; `sink` is None for a broadcast.
    fn send_packed(
        &self,
        py: Python<'_>,
        sink: Option<Py<PyAny>>,
        packed: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let node = self.node.get();
        self.send(py, node, node.hooks()?, sink, &Packed::from_python(packed)?)
    }

    /// The procs that the message goes to.
    #[getter]
    fn procs(&self) -> Vec<u64> {
        self.targets
            .get()
            .places
            .iter()
            .map(|place| place.proc.get())
            .collect()
    }
}

/// Pickled arguments.
enum Packed {
    /// The same for every rank.
    Same(Payload),
    /// One a rank.
    Each(Vec<Payload>),
}

impl Packed {
    fn from_python(packed: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(list) = packed.cast::<pyo3::types::PyList>() {
            return Ok(Self::Each(
                list.iter()
                    .map(|item| from_serialize(&item))
                    .collect::<PyResult<_>>()?,
            ));
        }
        Ok(Self::Same(from_serialize(packed)?))
    }
}

impl Verb {
    fn send(
        &self,
        py: Python<'_>,
        node: &Node,
        hooks: &Hooks,
        sink: Option<Py<PyAny>>,
        packed: &Packed,
    ) -> PyResult<Py<PyAny>> {
        match packed {
            Packed::Same(payload) => node.check_size(py, payload)?,
            Packed::Each(all) => all.iter().try_for_each(|payload| node.check_size(py, payload))?,
        }
        let deadline = self.deadline(py, node, hooks)?;
        let sink = match (self.mode, sink) {
            (Mode::Broadcast, _) => None,
            (_, Some(sink)) => Some(sink),
            (_, None) => Some(self.make_sink(py, hooks)?),
        };
        let mut actions = Vec::new();
        let mut outcome = Outcome::default();
        let call = {
            let mut state = node.lock();
            let state = &mut *state;
            let targets = self.targets.get();
            if !state.stopped.is_empty() && state.stopped.contains(&targets.mesh.get()) {
                Err(Refusal::Stopped)
            } else if state.has_room(targets) {
                Ok(self.send_all(
                    py,
                    state,
                    (packed, deadline),
                    sink.as_ref(),
                    &mut outcome,
                    &mut actions,
                ))
            } else {
                Err(Refusal::Full)
            }
        };
        let call = match call {
            Ok(call) => call,
            // It raises.
            Err(Refusal::Stopped) => return hooks.stopped.call1(py, (&self.mesh,)),
            Err(Refusal::Full) => return Err(crate::queue_full()),
        };
        node.act(py, actions)?;
        let Some(sink) = sink else {
            if !outcome.refused.is_empty() {
                hooks
                    .refused
                    .call1(py, (py.None(), &self.mesh, &*self.name, outcome.refused, 0))?;
            }
            return if outcome.waits {
                hooks.room.call1(py, (&self.mesh,))
            } else {
                Ok(hooks.sent.clone_ref(py))
            };
        };
        hooks.set_call(py, &sink, call)?;
        if !outcome.refused.is_empty() {
            hooks
                .refused
                .call1(py, (&sink, &self.mesh, &*self.name, outcome.refused, call))?;
        }
        if deadline != 0 {
            hooks.bounded.call1(py, (&sink, call, deadline))?;
        }
        Ok(sink)
    }

    /// Put the message on its way to every proc of the mesh. The call's number, 0 for a broadcast.
    fn send_all(
        &self,
        py: Python<'_>,
        state: &mut State,
        (packed, deadline): (&Packed, i64),
        sink: Option<&Py<PyAny>>,
        outcome: &mut Outcome,
        actions: &mut Vec<Action>,
    ) -> u64 {
        outcome.order = state.new_call();
        let call = if sink.is_some() { outcome.order } else { 0 };
        if let Some(sink) = sink {
            state.pending.insert(call, self.pending(py, sink));
        }
        for place in &self.targets.get().places {
            self.send_place(py, state, place, call, deadline, packed, outcome, actions);
        }
        call
    }

    fn flags(&self) -> u8 {
        if self.mode == Mode::Stream {
            flags::STREAM
        } else {
            0
        }
    }

    fn make_sink(&self, py: Python<'_>, hooks: &Hooks) -> PyResult<Py<PyAny>> {
        if self.mode == Mode::CallOne {
            return hooks.new_reply(py);
        }
        let reply = hooks.new_gathered_reply(py)?;
        hooks.begin.call1(py, (&reply, &self.mesh))?;
        Ok(reply)
    }

    /// When this call ends unanswered: its own time-out, or the deadline of the message that is being handled.
    fn deadline(&self, py: Python<'_>, node: &Node, hooks: &Hooks) -> PyResult<i64> {
        let mut deadline = 0;
        if node.hosted.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            let handling = hooks.handling.call0(py)?;
            if let Ok(message) = handling.bind(py).cast_exact::<Message>() {
                let message = message.get();
                if !message.is_answered() {
                    deadline = message.mail.deadline;
                }
            }
        }
        if let Some(timeout) = self.timeout_ns {
            let own = crate::monotonic_ns().saturating_add(timeout);
            deadline = if deadline == 0 { own } else { deadline.min(own) };
        }
        Ok(deadline)
    }

    fn pending(&self, py: Python<'_>, sink: &Py<PyAny>) -> Pending {
        let targets = self.targets.get();
        let answers = match (self.mode, &targets.places[..]) {
            (Mode::CallOne, [place]) => Answers::One {
                proc: place.proc.get(),
                sequence: UNSENT,
            },
            _ => Answers::Many {
                targets: self.targets.clone_ref(py),
                sequences: vec![UNSENT; targets.places.len()],
                answered: vec![false; targets.size as usize],
                remaining: targets.size,
            },
        };
        Pending {
            sink: sink.clone_ref(py),
            answers,
            again: Vec::new(),
        }
    }

    /// Send to one proc's part of the mesh.
    fn send_place(
        &self,
        py: Python<'_>,
        state: &mut State,
        place: &Place,
        call: u64,
        deadline: i64,
        packed: &Packed,
        outcome: &mut Outcome,
        actions: &mut Vec<Action>,
    ) {
        let proc = place.proc.get();
        if proc == state.own {
            self.send_here(py, state, place, call, deadline, packed, actions);
            return;
        }
        let targets = self.targets.get();
        match state.standing(proc, actions) {
            Standing::Gone => return outcome.refuse(place),
            Standing::Down if !targets.wait_while_down => return outcome.refuse(place),
            _ => {}
        }
        let Packed::Same(payload) = packed else {
            return self.send_each(py, state, place, call, deadline, packed, outcome, actions);
        };
        let bytes = payload.size(py) as u64;
        let flags = self.flags();
        if !targets.wait_while_down {
            // The quick way: straight into the session's log.
            if let Some(link) = state.live_link(proc) {
                let runs = place.runs.as_runs();
                if link.take_credit(targets.mesh.get(), targets.slots, runs, bytes) {
                    let header = self.header(call, deadline, flags, runs);
                    if let Ok(number) = link.push(py, proc, &header, payload) {
                        if call == 0 {
                            link.await_broadcast(targets.mesh.get(), runs, &self.name, number, |_| None);
                        } else {
                            state.sent(call, proc, number);
                        }
                        state.wrote(proc, actions);
                        return;
                    }
                    let message = self.outgoing(py, place, (call, outcome.order), deadline, flags, payload);
                    outcome.note(state.send(py, proc, message, true, actions));
                    return;
                }
            }
        }
        let message = self.outgoing(py, place, (call, outcome.order), deadline, flags, payload);
        state.keep_for_again(py, proc, &message);
        outcome.note(state.send(py, proc, message, false, actions));
    }

    /// Send each rank of one proc its own arguments.
    fn send_each(
        &self,
        py: Python<'_>,
        state: &mut State,
        place: &Place,
        call: u64,
        deadline: i64,
        packed: &Packed,
        outcome: &mut Outcome,
        actions: &mut Vec<Action>,
    ) {
        let Packed::Each(all) = packed else { return };
        let proc = place.proc.get();
        for (slot, rank) in place.runs.as_runs().targets() {
            let Some(payload) = all.get(rank as usize) else {
                continue;
            };
            let mut message =
                self.outgoing(py, place, (call, outcome.order), deadline, self.flags(), payload);
            message.runs = one_run(slot, rank);
            state.keep_for_again(py, proc, &message);
            outcome.note(state.send(py, proc, message, false, actions));
        }
    }

    /// Send to actors of this very process.
    fn send_here(
        &self,
        py: Python<'_>,
        state: &mut State,
        place: &Place,
        call: u64,
        deadline: i64,
        packed: &Packed,
        actions: &mut Vec<Action>,
    ) {
        let targets = self.targets.get();
        let mesh = targets.mesh.get();
        for (slot, rank) in place.runs.as_runs().targets() {
            let payload = match packed {
                Packed::Same(payload) => payload,
                Packed::Each(all) => match all.get(rank as usize) {
                    Some(payload) => payload,
                    None => continue,
                },
            };
            let mail = Mail {
                sender: state.own,
                incarnation: state.hello.incarnation.0,
                session: u32::MAX,
                sequence: 0,
                call,
                rank,
                flags: self.flags(),
                deadline,
                endpoint: Some(Arc::clone(&self.endpoint)),
                name: None,
                sizes: (!targets.sizes.is_empty()).then(|| Arc::clone(&targets.sizes)),
                chain: None,
                payload: payload.private(py),
                bytes: 0,
                page: None,
            };
            state.put(py, mesh, slot, mail, actions);
        }
    }

    fn header<'a>(&'a self, call: u64, deadline: i64, flags: u8, runs: Runs<'a>) -> MessageHeader<'a> {
        let targets = self.targets.get();
        MessageHeader {
            call,
            mesh: targets.mesh,
            deadline_ns: deadline,
            flags,
            runs,
            endpoint: &self.name,
            sizes: &targets.sizes,
            chain: Chain::EMPTY,
        }
    }

    fn outgoing(
        &self,
        py: Python<'_>,
        place: &Place,
        (call, order): (u64, u64),
        deadline: i64,
        flags: u8,
        payload: &Payload,
    ) -> Outgoing {
        let targets = self.targets.get();
        Outgoing {
            order,
            call,
            mesh: targets.mesh,
            runs: place.runs.clone(),
            name: Arc::clone(&self.name),
            sizes: Arc::clone(&targets.sizes),
            deadline,
            flags,
            chain: None,
            slots: targets.slots,
            bytes: payload.size(py) as u64,
            payload: payload.clone_ref(py),
            wait_while_down: targets.wait_while_down,
        }
    }
}

fn one_run(slot: u32, rank: u32) -> roost_core::wire::RunsBuffer {
    let mut runs = roost_core::wire::RunsBuffer::new();
    // Part of a list that was checked.
    let _ = runs.push(roost_core::wire::Run {
        slot,
        count: 1,
        slot_stride: 1,
        rank,
        rank_stride: 1,
    });
    runs
}

/// Why nothing was sent.
enum Refusal {
    /// This process stopped the mesh.
    Stopped,
    /// Too much waits already.
    Full,
}

/// What became of a message to a mesh.
#[derive(Default)]
struct Outcome {
    /// The message's place among everything that this process sent.
    order: u64,
    waits: bool,
    /// Procs that are gone or down, with the ranks there.
    refused: Vec<(u64, Vec<u32>)>,
}

impl Outcome {
    fn refuse(&mut self, place: &Place) {
        self.refused.push((place.proc.get(), place.ranks()));
    }

    fn note(&mut self, sent: Sent) {
        self.waits |= sent == Sent::Waits;
    }
}

impl State {
    fn new_call(&mut self) -> u64 {
        let call = self.next_call;
        self.next_call += 1;
        call
    }

    /// Whether every proc of the mesh could hold the message back, if it had to.
    fn has_room(&self, targets: &Targets) -> bool {
        targets
            .places
            .iter()
            .filter_map(|place| self.peers.get(&place.proc.get()))
            .all(|peer| {
                let waiting = peer.bound.waiting();
                waiting.messages < self.queue.messages && waiting.bytes < self.queue.bytes
            })
    }

    /// How a proc stands; a connection is asked for when there is none yet.
    fn standing(&mut self, proc: u64, actions: &mut Vec<Action>) -> Standing {
        let peer = self.peer(proc);
        if peer.standing == Standing::Unknown {
            peer.standing = Standing::Connecting;
            actions.push(Action::Connect(proc));
        }
        peer.standing
    }

    fn live_link(&mut self, proc: u64) -> Option<&mut crate::peer::Link> {
        let peer = self.peers.get_mut(&proc)?;
        peer.link.as_mut().filter(|_| peer.standing == Standing::Live)
    }

    pub(crate) fn sent(&mut self, call: u64, proc: u64, number: u64) {
        if let Some(pending) = self.pending.get_mut(&call) {
            pending.sent(proc, number);
        }
    }

    /// Keep a call's message for the next incarnation of its receiver, when it may be sent again.
    fn keep_for_again(&mut self, py: Python<'_>, proc: u64, message: &Outgoing) {
        if message.wait_while_down
            && let Some(pending) = self.pending.get_mut(&message.call)
        {
            pending.again.push((proc, message.clone_ref(py)));
        }
    }
}
