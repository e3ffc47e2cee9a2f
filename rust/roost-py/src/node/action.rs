//! What the data lane has to do in Python: collected under the lock, done after it.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use roost_core::credit::Amount;
use roost_core::wire::ReplyStatus;

use super::{Node, answering};
use crate::hooks::Hooks;
use crate::message::Mail;
use crate::outgoing::Outgoing;
use crate::payload::Payload;
use crate::peer::{Letter, Letters, Offer};
use crate::suspect::Suspect;

/// What is to be done in Python once the lock is released.
pub(crate) enum Action {
    /// Set this future: a worker has something to do, or somebody has room.
    Wake(Py<PyAny>),
    /// Start one more worker.
    Work,
    /// Look at the end of this turn of the loop whether a worker left something undone.
    Relay,
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
    /// A value for a port, or the word of a sender that it sends no more.
    PortItem {
        port: u64,
        sender: u64,
        flags: u8,
        payload: Payload,
    },
    /// The receiver of a port took so many values.
    PortTaken { port: u64, receiver: u64, total: u64 },
    /// The receiver of a port takes no more.
    PortClosed { port: u64, receiver: u64 },
    /// A message waits for an actor that waits for it, perhaps.
    Suspect(Box<Suspect>),
    /// Tell a sender that a message has left a mailbox without being started.
    Grant {
        to: (u64, u32),
        actor: (u64, u32),
        amount: Amount,
    },
    /// Messages that an ended actor did not take go back.
    Bounce { mail: Mail, reason: Py<PyBytes> },
    /// This message cannot be a frame, since its receiver maps none of its large parts: who sent it hears of that.
    Unsent { proc: u64, message: Outgoing },
    /// The same for the answer, or the value for a port, that waits first for this proc: the error goes instead, in its place.
    Replace { proc: u64, call_or_port: u64 },
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
    /// Stop watching, then close. Closed first, a socket that a forked child holds as well would stay in the loop's epoll
    /// and wake it for ever.
    Close(OwnedFd),
    /// There is no connection to a proc of another host, and there has to be one.
    Redial(u64),
    /// Frames that go along the tree of hosts.
    Post(Vec<Letter>),
    /// The session with a proc of another host cannot go on.
    SessionLost { proc: u64, text: String },
    /// Have [`Node::tick`] called in so many seconds.
    Tick(f64),
    /// The other end speaks no frames of ours.
    Broken { proc: u64, text: String },
    /// Flush at the end of this turn of the loop.
    Schedule,
    /// Drop this outside the lock.
    Drop(#[expect(dead_code, reason = "held only to be dropped where Python may run")] Vec<Py<PyAny>>),
}

impl Node {
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
            Action::Wake(waiter) => crate::reply::wake(py, &waiter)?,
            Action::Work => {
                hooks.work.call0(py)?;
            }
            Action::Relay => {
                if let Some(relay) = hooks.own(py, |own| &own.relay) {
                    hooks.call_soon.call1(py, (relay,))?;
                }
            }
            Action::Value {
                sink,
                rank,
                payload,
                item,
            } => answering::deliver(py, hooks, &sink, rank, &payload, item)?,
            Action::End { sink, rank } => {
                sink.call_method1(py, "end", (rank,))?;
            }
            Action::Error {
                sink,
                rank,
                status,
                payload,
            } => {
                let hook = match status {
                    ReplyStatus::Dropped => &hooks.dropped,
                    _ => &hooks.errored,
                };
                hook.call1(py, (sink, rank.unwrap_or(0), payload.pickle))?;
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
                let buffers = payload.buffers(py)?;
                hooks
                    .port_item
                    .call1(py, (port, sender, flags, payload.pickle, buffers))?;
            }
            Action::PortTaken {
                port,
                receiver,
                total,
            } => {
                hooks.port_taken.call1(py, (port, receiver, total))?;
            }
            Action::PortClosed { port, receiver } => {
                hooks.port_closed.call1(py, (port, receiver))?;
            }
            Action::Suspect(suspect) => {
                hooks.suspect.call1(py, suspect.into_python())?;
            }
            Action::Grant { to, actor, amount } => self.grant(py, to, actor, amount)?,
            Action::Bounce { mail, reason } => self.bounce(py, &mail, reason.bind(py))?,
            Action::Unsent { proc, message } => self.unsent(py, proc, &message)?,
            Action::Replace { proc, call_or_port } => self.replace(py, proc, call_or_port)?,
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
                    hooks
                        .event_loop
                        .call_method1(py, "add_writer", (fd, writable, proc))?;
                }
            }
            Action::Unwatch(fd) => {
                hooks.event_loop.call_method1(py, "remove_writer", (fd,))?;
            }
            Action::Ended { fd } => unwatch(py, hooks, fd)?,
            Action::Close(fd) => unwatch(py, hooks, fd.as_raw_fd())?,
            Action::Redial(proc) => {
                hooks.redial.call1(py, (proc,))?;
            }
            Action::Post(letters) => {
                hooks.post.call1(py, (Letters::new(letters),))?;
            }
            Action::SessionLost { proc, text } => {
                hooks.session_lost.call1(py, (proc, text))?;
            }
            Action::Tick(delay_s) => {
                if let Some(tick) = hooks.own(py, |own| &own.tick) {
                    hooks.event_loop.call_method1(py, "call_later", (delay_s, tick))?;
                }
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

fn unwatch(py: Python<'_>, hooks: &Hooks, fd: i32) -> PyResult<()> {
    hooks.event_loop.call_method1(py, "remove_reader", (fd,))?;
    hooks.event_loop.call_method1(py, "remove_writer", (fd,))?;
    Ok(())
}
