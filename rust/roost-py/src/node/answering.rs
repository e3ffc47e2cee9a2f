//! Replies, those that leave and those that come; the credit of mailboxes; messages that go back.

use pyo3::intern;
use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use roost_core::credit::Amount;
use roost_core::session::SessionError;
use roost_core::wire::{Credit, CreditTarget, ReplyHeader, ReplyStatus};

use super::{Action, Node, State};
use crate::cell::Cell;
use crate::hooks::Hooks;
use crate::message::{Mail, Origin};
use crate::payload::Payload;
use crate::peer::Stalled;
use crate::pending::Answers;
use crate::targets::mesh_id;

/// How long a sender may not know that a broadcast was taken: when the actor's proc dies meanwhile, it comes back as one that
/// may have been executed. Long against a burst, short against a life.
const CREDIT_DELAY_S: f64 = 0.01;

impl Node {
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

    /// This actor has taken broadcasts: their sender is told after a moment, unless a whole grant tells it before.
    pub(crate) fn grant_soon(&self, py: Python<'_>, mesh: u64, slot: u32) -> PyResult<()> {
        let is_first = {
            let mut state = self.lock();
            state.owing.push((mesh, slot));
            state.owing.len() == 1
        };
        let hooks = self.hooks()?;
        if is_first && let Some(settle) = hooks.own(py, |own| &own.grant_owed) {
            hooks
                .event_loop
                .call_method1(py, "call_later", (CREDIT_DELAY_S, settle))?;
        }
        Ok(())
    }

    /// Whoever gets an answer of an actor must not find that it was never constructed: its news go first.
    fn say_news(&self, py: Python<'_>) -> PyResult<()> {
        if self.owes_news.load(Ordering::Relaxed)
            && self.owes_news.swap(false, Ordering::Relaxed)
            && let Err(error) = self.hooks()?.say_news.call0(py)
        {
            error.write_unraisable(py, None);
        }
        Ok(())
    }

    /// Whether the life of the process that sent a message can still be answered.
    pub(crate) fn reaches(&self, mail: &Mail) -> bool {
        mail.origin == Origin::Here || self.lock().link(mail.sender, mail.incarnation).is_some()
    }

    /// Answer a message.
    pub(crate) fn answer(
        &self,
        py: Python<'_>,
        mail: &Mail,
        status: ReplyStatus,
        payload: &Payload,
    ) -> PyResult<()> {
        self.say_news(py)?;
        let mut actions = Vec::new();
        {
            let mut state = self.lock();
            if mail.origin == Origin::Here {
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
                if state.link(mail.sender, mail.incarnation).is_some() {
                    state.push_reply(py, mail.sender, header, payload, &mut actions);
                    state.wrote(mail.sender, &mut actions);
                }
            }
        }
        self.act(py, actions)
    }

    /// Send a message back whose actor has ended: to its caller, or as a dead letter.
    pub(crate) fn bounce(&self, py: Python<'_>, mail: &Mail, reason: &Bound<'_, PyBytes>) -> PyResult<()> {
        if mail.call == 0 {
            let name = mail.name_text();
            self.hooks()?.undelivered.call1(py, (mail.sender, name, reason))?;
            return Ok(());
        }
        let payload = Payload::plain(reason.clone().unbind());
        self.answer(py, mail, ReplyStatus::Dropped, &payload)
    }
}

impl State {
    /// Put a reply into the session, or behind those that wait for room there.
    pub(super) fn push_reply(
        &mut self,
        py: Python<'_>,
        proc: u64,
        header: ReplyHeader,
        payload: &Payload,
        actions: &mut Vec<Action>,
    ) {
        let Some(peer) = self.peers.get_mut(&proc) else {
            return;
        };
        let Some(link) = peer.link.as_mut() else { return };
        if link.stalled.is_empty() {
            match link.push(py, proc, &header, payload) {
                Ok(_) => return,
                Err(SessionError::Encode(_)) => {
                    let call_or_port = header.call;
                    actions.push(Action::Replace { proc, call_or_port });
                }
                Err(_) => {}
            }
        }
        link.hold_back(py, Stalled::Reply(header, payload.clone_ref(py)));
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
        let many = matches!(pending.answers, Answers::Many(_));
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
}

pub(super) fn grant_owed(node: &Node, py: Python<'_>) -> PyResult<()> {
    let owing: Vec<(u64, u32, Py<Cell>)> = {
        let mut state = node.lock();
        let owing = std::mem::take(&mut state.owing);
        owing
            .into_iter()
            .filter_map(|(mesh, slot)| {
                let cell = state.meshes.get(&mesh)?.cells.get(slot as usize)?;
                Some((mesh, slot, cell.clone_ref(py)))
            })
            .collect()
    };
    for (mesh, slot, cell) in owing {
        for (sender, amount) in cell.get().settle() {
            node.grant(py, sender, (mesh, slot), amount)?;
        }
    }
    Ok(())
}

pub(super) fn settle(node: &Node, py: Python<'_>, call: u64, ranks: Vec<u32>) -> PyResult<()> {
    let mut actions = Vec::new();
    {
        let mut state = node.lock();
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
    node.act(py, actions)
}

pub(super) fn proc_of(node: &Node, call: u64, rank: u32) -> Option<u64> {
    let state = node.lock();
    match &state.pending.get(&call)?.answers {
        Answers::One { proc, .. } => Some(*proc),
        Answers::Many(many) => {
            let places = &many.targets.get().places;
            places
                .iter()
                .find(|place| place.ranks().contains(&rank))
                .map(|place| place.proc.get())
        }
    }
}

/// Give a value to whoever awaits it.
pub(super) fn deliver(
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
            return hooks
                .unloadable
                .call1(py, (sink, rank.unwrap_or(0), error.into_value(py)))
                .map(drop);
        }
    };
    let sink = sink.bind(py);
    match rank {
        None => {
            crate::reply::set_result(sink, &value)?;
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
