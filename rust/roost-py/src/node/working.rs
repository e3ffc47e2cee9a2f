//! `Workplace`: the actors of this process with something to do, and the workers that do it.
//!
//! A worker is a task of the loop that goes from actor to actor: an idle actor costs no task, and many short messages to
//! many actors are one step of one task. When a worker waits inside an endpoint, the next one takes over.

use std::collections::VecDeque;

use pyo3::prelude::*;

use super::{Action, Node};
use crate::cell::{Cell, Due, Next};
use crate::message::Message;

/// Messages that are handled before the loop sees to its sockets again.
const BURST_MAX: u32 = 256;

/// What a worker is to do: (runner, message, function, arguments, keywords). Without a message the runner has something
/// to do itself; without a function Python looks at the endpoint.
pub(crate) type Work<'py> = (
    Py<PyAny>,
    Option<Py<Message>>,
    Option<Py<PyAny>>,
    Option<Bound<'py, PyAny>>,
    Option<Bound<'py, PyAny>>,
);

/// Who has something to do, and who waits for that.
#[derive(Default)]
pub(crate) struct Workplace {
    ready: VecDeque<Py<Cell>>,
    /// Futures of workers that wait.
    waiting: Vec<Py<PyAny>>,
    /// A worker was woken and has not looked yet.
    awake: bool,
    /// `relay` is called at the end of this turn of the loop.
    relaying: bool,
    /// Taken since a worker woke up.
    taken: u32,
}

impl Workplace {
    /// An actor has something to do.
    pub(crate) fn queue(&mut self, cell: Py<Cell>, actions: &mut Vec<Action>) {
        self.ready.push_back(cell);
        self.wake(actions);
    }

    fn wake(&mut self, actions: &mut Vec<Action>) {
        if !self.awake {
            self.awake = true;
            actions.push(self.waiting.pop().map_or(Action::Work, Action::Wake));
        }
    }

    /// The next actor. One that waits inside the endpoint must not hold up the others: `relay` looks after them.
    fn next(&mut self, actions: &mut Vec<Action>) -> Option<Py<Cell>> {
        let next = if self.taken < BURST_MAX {
            self.taken += 1;
            self.ready.pop_front()
        } else {
            None
        };
        if !self.ready.is_empty() && !self.awake && !self.relaying {
            self.relaying = true;
            actions.push(Action::Relay);
        }
        next
    }

    /// Somebody goes on with what is left.
    fn relay(&mut self, actions: &mut Vec<Action>) {
        self.relaying = false;
        if !self.ready.is_empty() {
            self.wake(actions);
        }
    }

    /// A worker was cancelled while it waited, and perhaps after it was woken. What it held.
    fn quit(&mut self, future: &Bound<'_, PyAny>, actions: &mut Vec<Action>) -> Option<Py<PyAny>> {
        if let Some(at) = self.waiting.iter().position(|other| other.is(future)) {
            return Some(self.waiting.swap_remove(at));
        }
        self.awake = false;
        self.relay(actions);
        None
    }
}

impl Node {
    /// An actor has something to do.
    pub(crate) fn queue(&self, py: Python<'_>, cell: Py<Cell>) -> PyResult<()> {
        let mut actions = Vec::new();
        self.lock().work.queue(cell, &mut actions);
        self.act(py, actions)
    }

    /// What Python calls `take`.
    pub(super) fn next_work<'py>(
        &self,
        py: Python<'py>,
        last: Option<&Bound<'py, Cell>>,
    ) -> PyResult<Option<Work<'py>>> {
        let mut actions = Vec::new();
        let found = {
            let mut state = self.lock();
            let work = &mut state.work;
            match last {
                None => (work.awake, work.taken) = (false, 0),
                Some(cell) if cell.get().rest() => work.ready.push_back(cell.clone().unbind()),
                Some(_) => {}
            }
            loop {
                let Some(cell) = work.next(&mut actions) else {
                    break None;
                };
                match cell.get().next(py) {
                    // Its message was taken back meanwhile.
                    Next::Nothing => actions.push(Action::Drop(vec![cell.into_any()])),
                    Next::Mail(runner, mail, due) if mail.is_late() => {
                        actions.extend(due.into_grant(&mail, cell.get()));
                        actions.push(Action::Drop(vec![runner, mail.payload.pickle.into_any()]));
                        if cell.get().rest() {
                            work.ready.push_back(cell);
                        } else {
                            actions.push(Action::Drop(vec![cell.into_any()]));
                        }
                    }
                    next => break Some((cell, next)),
                }
            }
        };
        self.act(py, actions)?;
        match found {
            Some((cell, Next::Mail(runner, mail, due))) => {
                let actor = (cell.get().mesh, cell.get().slot);
                if matches!(due, Due::Soon) {
                    self.grant_soon(py, actor.0, actor.1)?;
                }
                mail.mark_started();
                if let Due::Now(amount) = due {
                    self.grant(py, (mail.sender, mail.incarnation), actor, amount)?;
                }
                let message = Py::new(py, Message::new(*mail, cell.clone_ref(py)))?;
                cell.get().started(message.clone_ref(py));
                // What does not unpickle raises again where Python handles it.
                let (function, args, kwargs) = match message.get().quick(py) {
                    Ok(Some((function, args, kwargs))) => (Some(function), Some(args), kwargs),
                    Ok(None) | Err(_) => (None, None, None),
                };
                Ok(Some((runner, Some(message), function, args, kwargs)))
            }
            Some((_, Next::Due(runner))) => Ok(Some((runner, None, None, None, None))),
            _ => Ok(None),
        }
    }
}

pub(super) fn leave(node: &Node, py: Python<'_>, last: Option<&Bound<'_, Cell>>) -> PyResult<()> {
    let mut actions = Vec::new();
    {
        let mut state = node.lock();
        if let Some(cell) = last.filter(|cell| cell.get().rest()) {
            state.work.ready.push_back(cell.clone().unbind());
        }
        state.work.relay(&mut actions);
    }
    node.act(py, actions)
}

pub(super) fn wait(node: &Node, py: Python<'_>) -> PyResult<Py<PyAny>> {
    let future = node.hooks()?.create_future.call0(py)?;
    node.lock().work.waiting.push(future.clone_ref(py));
    Ok(future)
}

pub(super) fn quit(node: &Node, py: Python<'_>, future: &Bound<'_, PyAny>) -> PyResult<()> {
    let mut actions = Vec::new();
    let old = node.lock().work.quit(future, &mut actions);
    drop(old);
    node.act(py, actions)
}

pub(super) fn end_workers(node: &Node, py: Python<'_>) -> PyResult<()> {
    let waiting = std::mem::take(&mut node.lock().work.waiting);
    waiting
        .into_iter()
        .try_for_each(|future| crate::reply::wake(py, &future))
}

pub(super) fn relay(node: &Node, py: Python<'_>) -> PyResult<()> {
    let mut actions = Vec::new();
    node.lock().work.relay(&mut actions);
    node.act(py, actions)
}
