//! What comes in on the data lane: frames are taken where they lie, and each becomes an [`Action`] or goes to a mailbox.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use roost_core::credit::Amount;
use roost_core::wire::{
    Cancel, Content, CreditTarget, Frame, MessageHeader, Part as WirePart, Parts, ReplyStatus,
};

use crate::cell::{Cancelled, Put};
use crate::hooks::Hooks;
use crate::message::Mail;
use crate::node::{Action, Node, State};
use crate::outgoing::Outgoing;
use crate::payload::{Part, Payload};
use crate::peer::{Stalled, Standing};
use crate::pending::{Answers, Letter, Orphans, UNSENT};

/// What `lost` gives to Python.
pub(crate) type Lost = (
    Vec<(Py<PyAny>, Vec<u32>, bool)>,
    Vec<(u64, u32, u32, String, bool)>,
);

/// What a death leaves.
pub(crate) struct Losses {
    orphans: Vec<Orphans>,
    letters: Vec<Letter>,
}

impl Node {
    /// The socket of this proc can be read.
    pub(crate) fn read_from(&self, py: Python<'_>, proc: u64) -> PyResult<()> {
        let read = {
            let mut state = self.lock();
            // New bytes: the loop has turned, so the next frame is the first of a burst.
            state.burst = !state.dirty.is_empty();
            let Some(link) = state.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) else {
                return Ok(());
            };
            let fd = link.raw_fd();
            link.read().map(|count| (count, fd))
        };
        match read {
            None => Ok(()),
            Some((0, fd)) => self.act(py, vec![Action::Ended { fd }]),
            Some(_) => {
                self.parse(py, proc)?;
                self.note_releases(py)
            }
        }
    }

    /// Read everything that this proc's incarnation sent before it ended, then give up on what it did not answer.
    ///
    /// What it returns is said at `Node::lost`.
    pub(crate) fn lose(
        &self,
        py: Python<'_>,
        proc: u64,
        incarnation: u32,
        started: i64,
        again: bool,
        gone: bool,
    ) -> PyResult<Lost> {
        self.drain(py, proc, incarnation)?;
        let mut actions = Vec::new();
        let lost = {
            let mut state = self.lock();
            state.give_up(py, proc, incarnation, started, again, gone, &mut actions)
        };
        self.act(py, actions)?;
        Ok((
            lost.orphans
                .into_iter()
                .map(|one| (one.sink, one.ranks, one.maybe_executed))
                .collect(),
            lost.letters
                .into_iter()
                .map(|one| (one.mesh, one.slot, one.rank, one.name, one.maybe_executed))
                .collect(),
        ))
    }

    /// Give up on a call: its message is taken back or its endpoint cancelled.
    pub(crate) fn cancel_call(&self, py: Python<'_>, call: u64) -> PyResult<()> {
        let mut actions = Vec::new();
        {
            let mut state = self.lock();
            let Some(pending) = state.pending.remove(&call) else {
                return Ok(());
            };
            for proc in pending.procs() {
                state.cancel_at(py, proc, call, &mut actions);
            }
            actions.push(Action::Drop(pending.into_python()));
        }
        self.act(py, actions)
    }

    /// Handle the whole frames that were read.
    pub(crate) fn parse(&self, py: Python<'_>, proc: u64) -> PyResult<()> {
        let mut actions = Vec::new();
        self.lock().parse(py, proc, &mut actions);
        self.act(py, actions)
    }

    /// Read to the end what a dead proc had sent.
    fn drain(&self, py: Python<'_>, proc: u64, incarnation: u32) -> PyResult<()> {
        loop {
            let read = {
                let mut state = self.lock();
                let Some(link) = state.link(proc, incarnation) else {
                    return Ok(());
                };
                link.read()
            };
            match read {
                None | Some(0) => return Ok(()),
                Some(_) => self.parse(py, proc)?,
            }
        }
    }
}

impl State {
    fn parse(&mut self, py: Python<'_>, proc: u64, actions: &mut Vec<Action>) {
        // Taken out so that the frames' visitor may use everything else.
        let Some(mut link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.take()) else {
            return;
        };
        let incarnation = self.peers[&proc].incarnation;
        let mut granted = Vec::new();
        let outcome = self.parse_link(py, proc, incarnation, &mut link, actions, &mut granted);
        if let Err(text) = outcome {
            link.closed = true;
            actions.push(Action::Ended { fd: link.raw_fd() });
            actions.push(Action::Broken { proc, text });
        }
        let mut free = Vec::new();
        for (mesh, slot, amount) in granted {
            free.extend(link.grant(mesh, slot, amount));
        }
        let stalled = !link.stalled.is_empty();
        let ack = link.session.ack_due();
        if let Some(peer) = self.peers.get_mut(&proc) {
            peer.link = Some(link);
        }
        for message in free {
            self.send_credited(py, proc, message, actions);
        }
        if stalled {
            self.retry_stalled(py, proc, actions);
        }
        if ack {
            self.wrote(proc, actions);
        }
    }

    fn parse_link(
        &mut self,
        py: Python<'_>,
        proc: u64,
        incarnation: u32,
        link: &mut crate::peer::Link,
        actions: &mut Vec<Action>,
        granted: &mut Vec<(u64, u32, Amount)>,
    ) -> Result<(), String> {
        let id = roost_core::id::ProcId::new(proc).ok_or("a proc with id 0")?;
        if !link.greet(&self.hello, id, incarnation)? {
            return Ok(());
        }
        let slot = link.slot;
        let from = Origin {
            proc,
            incarnation,
            slot,
        };
        let (session, bytes) = link.unread();
        let consumed = session
            .receive(0, bytes, &mut |frame: Frame<'_>| {
                self.take(py, &from, &frame, actions, granted)
            })
            .map_err(|error| error.to_string())?;
        link.consumed(consumed);
        self.refusal.take().map_or(Ok(()), Err)
    }

    /// One frame.
    fn take(
        &mut self,
        py: Python<'_>,
        from: &Origin,
        frame: &Frame<'_>,
        actions: &mut Vec<Action>,
        granted: &mut Vec<(u64, u32, Amount)>,
    ) -> ControlFlow<()> {
        if frame.head.epoch > self.epoch {
            // The sender knows of a change of members that we have not applied: its message waits for that.
            return ControlFlow::Break(());
        }
        match frame.content {
            Content::Message(header, parts) => {
                let Some(payload) = self.payload(py, &parts) else {
                    return ControlFlow::Break(());
                };
                self.take_message(
                    py,
                    from,
                    frame.head.sequence,
                    &header,
                    (payload, parts.bytes()),
                    actions,
                );
            }
            Content::Reply(header, parts) => {
                let Some(payload) = self.payload(py, &parts) else {
                    return ControlFlow::Break(());
                };
                self.reply(py, header.call, header.rank, header.status, payload, actions);
            }
            Content::Cancel(cancel) => self.take_cancel(py, from.proc, cancel, actions),
            Content::Credit(credit) => match credit.target {
                CreditTarget::Actor { mesh, slot } => {
                    granted.push((
                        mesh.get(),
                        slot,
                        Amount {
                            messages: credit.messages,
                            bytes: credit.bytes,
                        },
                    ));
                }
                CreditTarget::Port(port) => {
                    actions.push(Action::PortTaken {
                        port,
                        sender: from.proc,
                        total: credit.messages,
                    });
                }
            },
            Content::PortItem(item, parts) => {
                let Some(payload) = self.payload(py, &parts) else {
                    return ControlFlow::Break(());
                };
                actions.push(Action::PortItem {
                    port: item.port,
                    sender: from.proc,
                    flags: item.flags,
                    payload,
                });
            }
            Content::PortClose(close) => {
                let payload = Payload::plain(PyBytes::new(py, b"").unbind());
                actions.push(Action::PortItem {
                    port: close.port,
                    sender: from.proc,
                    flags: u8::MAX,
                    payload,
                });
            }
            Content::Goodbye(_) | Content::Ack => {}
        }
        ControlFlow::Continue(())
    }

    fn take_message(
        &mut self,
        py: Python<'_>,
        from: &Origin,
        sequence: u64,
        header: &MessageHeader<'_>,
        (payload, bytes): (Payload, u64),
        actions: &mut Vec<Action>,
    ) {
        let mesh = header.mesh.get();
        if header.endpoint.starts_with('.') {
            let ranks = header.runs.targets().collect();
            let name = header.endpoint.to_owned();
            actions.push(Action::System {
                name,
                mesh,
                sender: from.proc,
                ranks,
                payload,
            });
            return;
        }
        let sizes = self.sizes(header.sizes);
        let endpoint = self
            .meshes
            .get(&mesh)
            .and_then(|hosted| hosted.endpoints.get(header.endpoint));
        let chain: Option<Arc<[u8]>> = None;
        let one = header.runs.one();
        let mail = Mail {
            sender: from.proc,
            incarnation: from.incarnation,
            session: from.slot,
            sequence,
            call: header.call,
            rank: one.map_or(0, |(_, rank)| rank),
            flags: header.flags,
            deadline: header.deadline_ns,
            name: endpoint.is_none().then(|| Arc::from(header.endpoint)),
            endpoint,
            sizes,
            chain,
            payload,
            bytes,
            page: self.page.clone(),
        };
        if let Some((slot, _)) = one {
            self.put(py, mesh, slot, mail, actions);
            return;
        }
        for (slot, rank) in header.runs.targets() {
            self.put(py, mesh, slot, mail.for_rank(py, rank), actions);
        }
        actions.push(Action::Drop(vec![mail.payload.pickle.into_any()]));
    }

    /// Copy a message's parts out of the read buffer, and hold those in shared memory. None for a part that cannot be.
    fn payload(&mut self, py: Python<'_>, parts: &Parts<'_>) -> Option<Payload> {
        if let Some(bytes) = parts.single_inline() {
            return Some(Payload::plain(PyBytes::new(py, bytes).unbind()));
        }
        let mut pickle = None;
        let mut rest = Vec::new();
        for part in parts {
            match part {
                WirePart::Inline(bytes) if pickle.is_none() => {
                    pickle = Some(PyBytes::new(py, bytes).unbind());
                }
                // Writable and the receiver's own.
                WirePart::Inline(bytes) => {
                    rest.push(Part::Inline(PyByteArray::new(py, bytes).into_any().unbind()));
                }
                WirePart::Segment(place) => {
                    let map = self.map.as_ref()?.get();
                    match map.accept(place.segment, place.generation, place.offset, place.length) {
                        Ok(hold) => rest.push(Part::Held(hold)),
                        Err(error) => {
                            self.refusal = Some(error.to_string());
                            return None;
                        }
                    }
                }
            }
        }
        let pickle = pickle.unwrap_or_else(|| PyBytes::new(py, b"").unbind());
        Some(Payload::with_parts(pickle, rest))
    }

    /// Names and sizes of a message's mesh; the last ones are usually the same.
    fn sizes(&mut self, sizes: &[u8]) -> Option<Arc<[u8]>> {
        if sizes.is_empty() {
            return None;
        }
        if *self.last_sizes != *sizes {
            self.last_sizes = Arc::from(sizes);
        }
        Some(Arc::clone(&self.last_sizes))
    }

    /// Put a message into a mailbox of this process, or keep it for a mesh that is on its way.
    pub(crate) fn put(
        &mut self,
        py: Python<'_>,
        mesh: u64,
        slot: u32,
        mut mail: Mail,
        actions: &mut Vec<Action>,
    ) {
        let Some(hosted) = self.meshes.get(&mesh) else {
            let early = self.early.entry(mesh).or_default();
            if early.is_empty() {
                let payload = Payload::plain(PyBytes::new(py, b"").unbind());
                actions.push(Action::System {
                    name: ".early".to_owned(),
                    mesh,
                    sender: mail.sender,
                    ranks: Vec::new(),
                    payload,
                });
            }
            early.push((slot, mail));
            return;
        };
        let Some(cell) = hosted.cells.get(slot as usize).and_then(Option::as_ref) else {
            let reason = PyBytes::new(py, b"").unbind();
            actions.push(Action::Bounce { mail, reason });
            return;
        };
        if let (None, Some(name)) = (&mail.endpoint, &mail.name) {
            // It came before the mesh did.
            mail.endpoint = hosted.endpoints.get(name);
        }
        match cell.get().put(py, mail) {
            Put::Queued => {}
            Put::Wake(waiter) => actions.push(Action::Wake(waiter)),
            Put::Ended(mail, reason, credit) => {
                if let Some(amount) = credit {
                    actions.push(Action::Grant {
                        to: (mail.sender, mail.incarnation),
                        actor: (mesh, slot),
                        amount,
                    });
                }
                actions.push(Action::Bounce { mail, reason });
            }
        }
    }

    /// An answer to one of our calls.
    pub(crate) fn reply(
        &mut self,
        py: Python<'_>,
        call: u64,
        rank: u32,
        status: ReplyStatus,
        payload: Payload,
        actions: &mut Vec<Action>,
    ) {
        // A call that was cancelled or timed out meanwhile is not there any more, and its answer is of no use.
        let Some(pending) = self.pending.get_mut(&call) else {
            return;
        };
        let many = matches!(pending.answers, Answers::Many { .. });
        let last = status != ReplyStatus::Item && pending.answered(rank);
        let sink = if last {
            let Some(mut done) = self.pending.remove(&call) else {
                return;
            };
            if !done.again.is_empty() {
                let again = std::mem::take(&mut done.again);
                let pickles = again
                    .into_iter()
                    .map(|(_, message)| message.payload.pickle.into_any());
                actions.push(Action::Drop(pickles.collect()));
            }
            done.sink
        } else {
            pending.sink.clone_ref(py)
        };
        let rank_if_many = many.then_some(rank);
        actions.push(match status {
            ReplyStatus::Value => Action::Value {
                sink,
                rank: rank_if_many,
                payload,
                item: false,
            },
            ReplyStatus::Item => Action::Value {
                sink,
                rank: rank_if_many,
                payload,
                item: true,
            },
            ReplyStatus::End => Action::End { sink, rank },
            ReplyStatus::Error | ReplyStatus::Dropped => Action::Error {
                sink,
                rank: rank_if_many,
                status,
                payload,
            },
        });
    }

    fn take_cancel(&mut self, py: Python<'_>, sender: u64, cancel: Cancel, actions: &mut Vec<Action>) {
        for hosted in self.meshes.values() {
            for cell in hosted.cells.iter().flatten() {
                match cell.get().cancel(py, sender, cancel.call, cancel.rank) {
                    Cancelled::Nothing => {}
                    Cancelled::Queued(mail, credit) => {
                        if let Some(amount) = credit {
                            let actor = (cell.get().mesh, cell.get().slot);
                            actions.push(Action::Grant {
                                to: (mail.sender, mail.incarnation),
                                actor,
                                amount,
                            });
                        }
                        actions.push(Action::Drop(vec![mail.payload.pickle.into_any()]));
                    }
                    Cancelled::Running { runner, message } => {
                        actions.push(Action::Cancelled { runner, message });
                    }
                }
            }
        }
    }

    /// Take a call back from one proc.
    fn cancel_at(&mut self, py: Python<'_>, proc: u64, call: u64, actions: &mut Vec<Action>) {
        let cancel = Cancel {
            call,
            rank: Cancel::ALL_RANKS,
            flags: 0,
        };
        if proc == self.own {
            self.take_cancel(py, proc, cancel, actions);
            return;
        }
        let Some(peer) = self.peers.get_mut(&proc) else {
            return;
        };
        let mut dropped: Vec<Outgoing> = Vec::new();
        let mut kept = std::collections::VecDeque::new();
        for message in std::mem::take(&mut peer.backlog) {
            if message.call == call {
                dropped.push(message);
            } else {
                kept.push_back(message);
            }
        }
        peer.backlog = kept;
        if let Some(link) = &mut peer.link {
            dropped.extend(link.forget_call(call));
            if !link.closed {
                // Small, and always taken.
                let _ = link.session.push(&cancel, &[]);
            }
        }
        for message in dropped {
            peer.bound.leave(message.bytes);
            actions.push(Action::Drop(vec![message.payload.pickle.into_any()]));
        }
        self.wrote(proc, actions);
    }

    /// Send a message that waited for credit and now has it.
    fn send_credited(&mut self, py: Python<'_>, proc: u64, message: Outgoing, actions: &mut Vec<Action>) {
        if let Some(peer) = self.peers.get_mut(&proc) {
            peer.bound.leave(message.bytes);
        }
        self.made_room(actions);
        self.send(py, proc, message, true, actions);
    }

    /// Frames that had no room, or no segment, may have it now; in their order.
    pub(crate) fn retry_stalled(&mut self, py: Python<'_>, proc: u64, actions: &mut Vec<Action>) {
        let Some(link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) else {
            return;
        };
        for frame in std::mem::take(&mut link.stalled) {
            let Some(peer) = self.peers.get_mut(&proc) else {
                return;
            };
            let Some(link) = peer.link.as_mut() else { return };
            match frame {
                Stalled::Message(message, credited) => {
                    peer.bound.leave(message.bytes);
                    // What does not go waits again, behind what stalled before it.
                    self.send(py, proc, message, credited, actions);
                }
                Stalled::Reply(header, payload) => {
                    if !link.stalled.is_empty() || link.push(py, proc, &header, &payload).is_err() {
                        link.stalled.push_back(Stalled::Reply(header, payload));
                    }
                }
                Stalled::PortItem(header, payload) => {
                    if !link.stalled.is_empty() || link.push(py, proc, &header, &payload).is_err() {
                        link.stalled.push_back(Stalled::PortItem(header, payload));
                    }
                }
            }
        }
        self.made_room(actions);
        self.wrote(proc, actions);
    }

    fn give_up(
        &mut self,
        py: Python<'_>,
        proc: u64,
        incarnation: u32,
        started: i64,
        again: bool,
        gone: bool,
        actions: &mut Vec<Action>,
    ) -> Losses {
        let mut losses = Losses {
            orphans: Vec::new(),
            letters: Vec::new(),
        };
        let started = u64::try_from(started).ok();
        let Some(peer) = self.peers.get_mut(&proc) else {
            return losses;
        };
        peer.standing = if gone { Standing::Gone } else { Standing::Down };
        let link = if peer.incarnation == incarnation {
            peer.link.take()
        } else {
            None
        };
        let mut waiting: Vec<Outgoing> = std::mem::take(&mut peer.backlog).into();
        peer.bound = roost_core::credit::QueueBound::new(self.queue);
        let mut kept = Vec::new();
        if let Some(mut link) = link {
            (kept, losses.letters) = link.take_awaited(started, again);
            waiting.extend(link.take_waiting());
            actions.push(Action::Ended { fd: link.raw_fd() });
        }
        for message in waiting {
            if again && message.wait_while_down {
                kept.push(message);
                continue;
            }
            if message.is_broadcast() {
                losses
                    .letters
                    .extend(message.runs.as_runs().targets().map(|(slot, rank)| Letter {
                        mesh: message.mesh.get(),
                        slot,
                        rank,
                        name: message.name.to_string(),
                        maybe_executed: false,
                    }));
            }
            actions.push(Action::Drop(vec![message.payload.pickle.into_any()]));
        }
        self.orphan(py, proc, started, again, &mut kept, &mut losses, actions);
        kept.sort_by_key(|message| message.order);
        let Some(peer) = self.peers.get_mut(&proc) else {
            return losses;
        };
        for message in kept {
            peer.bound.admit(message.bytes);
            peer.backlog.push_back(message);
        }
        self.made_room(actions);
        losses
    }

    /// Find the calls that the dead proc leaves open: those surely not started may be sent again, the others end.
    fn orphan(
        &mut self,
        py: Python<'_>,
        proc: u64,
        started: Option<u64>,
        again: bool,
        kept: &mut Vec<Outgoing>,
        losses: &mut Losses,
        actions: &mut Vec<Action>,
    ) {
        let mut waiting: HashMap<u64, Vec<u32>> = HashMap::new();
        for message in kept.iter().filter(|message| message.call != 0) {
            waiting
                .entry(message.call)
                .or_default()
                .extend(message.runs.as_runs().targets().map(|(_, rank)| rank));
        }
        let mut ended = Vec::new();
        for (&call, pending) in &mut self.pending {
            let Some((mut ranks, sequence)) = pending.on(proc) else {
                continue;
            };
            let is_one = matches!(pending.answers, Answers::One { .. });
            if let Some(waiting) = waiting.get(&call) {
                ranks.retain(|rank| !waiting.contains(rank));
                if is_one || ranks.is_empty() {
                    continue;
                }
            }
            let not_started = sequence == UNSENT || started.is_some_and(|started| sequence > started);
            if again && not_started && pending.again.iter().any(|(to, _)| *to == proc) {
                let to = pending.again.iter().filter(|(to, _)| *to == proc);
                kept.extend(to.filter_map(|(_, message)| {
                    if is_one {
                        Some(message.clone_ref(py))
                    } else {
                        message.for_ranks(py, &ranks)
                    }
                }));
                pending.unsent(proc);
                continue;
            }
            let mut last = is_one;
            for &rank in &ranks {
                last = pending.answered(rank);
            }
            losses.orphans.push(Orphans {
                sink: pending.sink.clone_ref(py),
                ranks,
                maybe_executed: !not_started,
            });
            if last {
                ended.push(call);
            }
        }
        for call in ended {
            if let Some(pending) = self.pending.remove(&call) {
                actions.push(Action::Drop(pending.into_python()));
            }
        }
    }
}

/// Where a frame came from.
struct Origin {
    proc: u64,
    incarnation: u32,
    slot: u32,
}

/// Give a value to whoever awaits it.
pub(crate) fn deliver(
    py: Python<'_>,
    hooks: &Hooks,
    sink: &Py<PyAny>,
    rank: Option<u32>,
    payload: &Payload,
    item: bool,
) -> PyResult<()> {
    let value = match payload.load(py, hooks) {
        Ok(value) => value,
        Err(error) => {
            let rank = rank.map_or(-1, i64::from);
            return hooks
                .unloadable
                .call1(py, (sink, rank, error.into_value(py)))
                .map(drop);
        }
    };
    let sink = sink.bind(py);
    match rank {
        None => {
            crate::cell::set_result(sink, &value)?;
        }
        Some(rank) if item => {
            sink.call_method1(intern!(py, "item"), (rank, value))?;
        }
        Some(rank) => {
            sink.call_method1(intern!(py, "rank_value"), (rank, value))?;
        }
    }
    Ok(())
}
