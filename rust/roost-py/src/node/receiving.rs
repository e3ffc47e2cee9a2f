//! What comes in on the data lane: frames are taken where they lie, and each becomes an [`Action`] or goes to a mailbox.

use std::ops::ControlFlow;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};
use roost_core::credit::Amount;
use roost_core::wire::{
    Bulk, BulkPart, Content, CreditTarget, Frame, MessageHeader, Part as WirePart, Parts, ProtocolError,
};

use super::{Action, Node, State};
use crate::message::{Mail, Origin};
use crate::payload::{Part, Payload};
use crate::peer::{Inbox, Letter, Link, Room, shifted};

/// What is read at a time from another host before others have their turn.
const READ_BYTES_MAX: usize = 1 << 20;

/// Where a frame came from.
struct Source<'a> {
    proc: u64,
    incarnation: u32,
    slot: Option<u32>,
    /// How far the sender's clock, as it writes deadlines, is ahead of ours.
    clock_ns: i64,
    /// The parts that came ahead of their frames.
    inbox: Option<&'a mut Inbox>,
}

impl Node {
    /// The socket of this proc can be read.
    pub(crate) fn read_from(&self, py: Python<'_>, proc: u64) -> PyResult<()> {
        let mut left = READ_BYTES_MAX;
        loop {
            let mut ended = Vec::new();
            let again = {
                let mut state = self.lock();
                // New bytes: the loop has turned.
                state.turn += 1;
                let Some(link) = state.peers.get_mut(&proc).and_then(|peer| peer.link.as_mut()) else {
                    return Ok(());
                };
                let Some(count) = link.read() else { return Ok(()) };
                left = left.saturating_sub(count);
                let again = link.reads_on(left > 0);
                if count == 0 {
                    state.ended(proc, &mut ended);
                }
                again
            };
            if !ended.is_empty() {
                return self.act(py, ended);
            }
            self.parse(py, proc)?;
            self.note_releases(py)?;
            if !again {
                return Ok(());
            }
        }
    }

    /// Handle the whole frames that were read.
    pub(crate) fn parse(&self, py: Python<'_>, proc: u64) -> PyResult<()> {
        let mut actions = Vec::new();
        self.lock().parse(py, proc, None, &mut actions);
        self.act(py, actions)
    }
}

impl State {
    /// Handle the frames that were read, or those of a letter.
    pub(super) fn parse(
        &mut self,
        py: Python<'_>,
        proc: u64,
        letter: Option<&Letter>,
        actions: &mut Vec<Action>,
    ) {
        // Taken out so that the frames' visitor may use everything else.
        let Some(mut link) = self.peers.get_mut(&proc).and_then(|peer| peer.link.take()) else {
            return;
        };
        let incarnation = self.peers[&proc].incarnation;
        let mut granted = Vec::new();
        let outcome = match letter {
            Some(letter) => self.open_letter(py, letter, incarnation, &mut link, actions, &mut granted),
            None => self.parse_link(py, proc, incarnation, &mut link, actions, &mut granted),
        };
        if let Err(text) = outcome {
            link.closed = true;
            actions.extend(link.raw_fd().map(|fd| Action::Ended { fd }));
            actions.push(if link.far.is_some() && !link.is_greeted() {
                Action::SessionLost { proc, text }
            } else {
                Action::Broken { proc, text }
            });
        }
        let mut free = Vec::new();
        for (mesh, slot, amount) in granted {
            free.extend(link.grant(mesh, slot, amount));
        }
        let stalled = link.is_held_up();
        let ack = link.session.ack_due();
        let far = link.far.is_some();
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
        if far {
            self.after_far(proc, actions);
        }
    }

    fn parse_link(
        &mut self,
        py: Python<'_>,
        proc: u64,
        incarnation: u32,
        link: &mut Link,
        actions: &mut Vec<Action>,
        granted: &mut Vec<(u64, u32, Amount)>,
    ) -> Result<(), String> {
        let id = roost_core::id::ProcId::new(proc).ok_or("a proc with id 0")?;
        if !link.greet(&self.hello, id, incarnation)? {
            return Ok(());
        }
        let now_ns = if link.far.is_some() { crate::now_ns() } else { 0 };
        if !link.end_piece(now_ns)? {
            return Ok(());
        }
        let slot = link.slot;
        let clock_ns = link.far.as_ref().map_or(0, |far| far.clock_ns);
        let (session, inbox, bytes) = link.unread();
        let mut from = Source {
            proc,
            incarnation,
            slot,
            clock_ns,
            inbox,
        };
        let consumed = session
            .receive(now_ns, bytes, &mut |frame: Frame<'_>| {
                self.take(py, &mut from, &frame, actions, granted)
            })
            .map_err(|error| error.to_string())?;
        link.consumed(consumed);
        if consumed > 0
            && let Some(far) = &mut link.far
        {
            far.carrier = None;
        }
        if let Some(refusal) = self.refusal.take() {
            return Err(refusal);
        }
        self.map
            .as_ref()
            .map_or(Ok(()), |map| link.begin_piece(map.get(), self.epoch))
    }

    /// Frames that came along the tree.
    fn open_letter(
        &mut self,
        py: Python<'_>,
        letter: &Letter,
        incarnation: u32,
        link: &mut Link,
        actions: &mut Vec<Action>,
        granted: &mut Vec<(u64, u32, Amount)>,
    ) -> Result<(), String> {
        let Some(far) = &mut link.far else { return Ok(()) };
        far.carrier = letter.carrier;
        let clock_ns = far.clock_ns;
        let slot = link.slot;
        let (session, inbox, _) = link.unread();
        let mut from = Source {
            proc: letter.proc.get(),
            incarnation,
            slot,
            clock_ns,
            inbox,
        };
        session
            .receive_posted(crate::now_ns(), &letter.frames, &mut |frame: Frame<'_>| {
                self.take(py, &mut from, &frame, actions, granted)
            })
            .map_err(|error| error.to_string())?;
        self.refusal.take().map_or(Ok(()), Err)
    }

    /// One frame.
    fn take(
        &mut self,
        py: Python<'_>,
        from: &mut Source<'_>,
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
                let Some(payload) = self.payload(py, &parts, from) else {
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
                let Some(payload) = self.payload(py, &parts, from) else {
                    return ControlFlow::Break(());
                };
                self.reply(py, header.call, header.rank, header.status, payload, actions);
            }
            Content::Cancel(cancel) => {
                self.take_cancel(py, (from.proc, from.incarnation), cancel, actions);
            }
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
                        receiver: from.proc,
                        total: credit.messages,
                    });
                }
            },
            Content::PortItem(item, parts) => {
                let Some(payload) = self.payload(py, &parts, from) else {
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
                actions.push(Action::PortClosed {
                    port: close.port,
                    receiver: from.proc,
                });
            }
            Content::Bulk(bulk, piece) => return self.take_piece(from, &bulk, piece),
            Content::Goodbye(_) | Content::Ack | Content::Control(_) => {}
        }
        ControlFlow::Continue(())
    }

    fn take_message(
        &mut self,
        py: Python<'_>,
        from: &Source<'_>,
        sequence: u64,
        header: &MessageHeader<'_>,
        (payload, bytes): (Payload, u64),
        actions: &mut Vec<Action>,
    ) {
        let mesh = header.mesh.get();
        if header.endpoint.starts_with('.') {
            if header.endpoint == ".spawn" {
                self.expect_meshes(payload.pickle.as_bytes(py));
            }
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
        let one = header.runs.one();
        let mail = Mail {
            sender: from.proc,
            incarnation: from.incarnation,
            origin: Origin::Session {
                slot: from.slot,
                sequence,
            },
            call: header.call,
            rank: one.map_or(0, |(_, rank)| rank),
            flags: header.flags,
            deadline: shifted(header.deadline_ns, -from.clock_ns),
            name: endpoint.is_none().then(|| Arc::from(header.endpoint)),
            endpoint,
            sizes,
            payload,
            bytes,
            page: self.page.clone(),
            chain: (!header.chain.is_empty()).then(|| Arc::new(header.chain.to_buffer())),
        };
        if let Some((slot, _)) = one {
            self.put(py, mesh, slot, mail, actions);
            return;
        }
        let mut targets = header.runs.targets().peekable();
        while let Some((slot, rank)) = targets.next() {
            if targets.peek().is_none() {
                return self.put(py, mesh, slot, Mail { rank, ..mail }, actions);
            }
            self.put(py, mesh, slot, mail.for_rank(py, rank), actions);
        }
        actions.push(Action::Drop(vec![mail.payload.pickle.into_any()]));
    }

    /// A piece of a part.
    fn take_piece(&mut self, from: &mut Source<'_>, bulk: &Bulk, piece: &[u8]) -> ControlFlow<()> {
        let (Some(inbox), Some(map)) = (from.inbox.as_mut(), &self.map) else {
            self.refusal = Some("pieces of parts between procs of one host".to_owned());
            return ControlFlow::Break(());
        };
        match inbox.piece(map.get(), bulk, piece) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.refusal = Some(error.to_string());
                ControlFlow::Break(())
            }
        }
    }

    /// Copy a message's parts out of the read buffer, and hold those in shared memory. None for a part that cannot be.
    fn payload(&mut self, py: Python<'_>, parts: &Parts<'_>, from: &mut Source<'_>) -> Option<Payload> {
        if let Some(bytes) = parts.single_inline() {
            return Some(Payload::plain(PyBytes::new(py, bytes).unbind()));
        }
        let mut pickle = None;
        let mut rest = Vec::new();
        for part in parts {
            match part {
                WirePart::Inline(bytes) | WirePart::Constant(bytes) if pickle.is_none() => {
                    pickle = Some(PyBytes::new(py, bytes).unbind());
                }
                WirePart::Constant(bytes) => {
                    rest.push(Part::Inline(PyBytes::new(py, bytes).into_any().unbind()));
                }
                // Writable and the receiver's own.
                WirePart::Inline(bytes) => {
                    rest.push(Part::Inline(PyByteArray::new(py, bytes).into_any().unbind()));
                }
                WirePart::Bulk(part) => match room(from, &part) {
                    Ok(room) if pickle.is_none() => pickle = Some(room.into_bytes(py, part.length)),
                    Ok(room) => rest.push(Part::Inline(room.into_python(py, part.length).ok()?)),
                    Err(error) => {
                        self.refusal = Some(error.to_string());
                        return None;
                    }
                },
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
}

/// Where a part gathered that a frame names.
fn room(from: &mut Source<'_>, part: &BulkPart) -> Result<Room, ProtocolError> {
    match from.inbox.as_mut() {
        Some(inbox) => inbox.take(part),
        None => Err(ProtocolError::MissingBulk { bulk: part.bulk }),
    }
}
