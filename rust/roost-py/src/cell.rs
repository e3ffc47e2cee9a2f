//! `Cell`: one actor's place in this process: its mailbox, and the messages that run.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{PyTraverseError, PyVisit};
use roost_core::control::Activity;
use roost_core::credit::{Amount, ReceiveWindow};
use roost_core::wire::Cancel;

use crate::message::{Mail, Message, Origin};
use crate::node::{Action, Node};

/// One actor's mailbox. The data lane puts messages in; a worker takes them out, see [`Workplace`](crate::node::Workplace).
#[pyclass(frozen, module = "roost._roost")]
pub struct Cell {
    pub(crate) node: Py<Node>,
    pub(crate) mesh: u64,
    pub(crate) slot: u32,
    state: Mutex<CellState>,
}

#[derive(Default)]
struct CellState {
    mailbox: VecDeque<Box<Mail>>,
    running: Vec<Py<Message>>,
    senders: Vec<Sender>,
    runner: Option<Py<PyAny>>,
    /// Broadcasts were taken and their senders not told yet; the node knows, and tells them soon.
    owes_credit: bool,
    standing: Standing,
    /// The runner has something to do itself before the next message: it is to be constructed, or it ends.
    due: bool,
    /// Set when the actor has ended: what whoever still writes to it is answered.
    ended: Option<Py<PyBytes>>,
}

/// The endpoints of other messages; None for one that the class does not have.
pub(crate) type Others = Vec<Option<Py<PyAny>>>;

/// Who is at an actor.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Standing {
    /// Nobody: it has nothing to do.
    #[default]
    Idle,
    /// It is in the node's queue.
    Queued,
    /// A worker.
    Busy,
}

/// The window of one sender at this mailbox.
struct Sender {
    proc: u64,
    incarnation: u32,
    window: ReceiveWindow,
}

/// What became of a message that was put into a cell.
pub(crate) enum Put {
    /// Queued behind others, or the actor is busy or not there yet.
    Queued,
    /// Queued, and a worker is wanted.
    Ready,
    /// The actor has ended: the message goes back with the reason, and its credit too.
    Ended(Mail, Py<PyBytes>, Option<Amount>),
}

/// What the sender of a message that was taken is to be told.
pub(crate) enum Due {
    Nothing,
    /// Its credit, now.
    Now(Amount),
    /// Its credit, soon: it was a broadcast, of which nothing else tells.
    Soon,
}

impl Due {
    /// For a message that had a caller and is not started.
    pub(crate) fn into_grant(self, mail: &Mail, cell: &Cell) -> Option<Action> {
        let Self::Now(amount) = self else { return None };
        Some(Action::Grant {
            to: (mail.sender, mail.incarnation),
            actor: (cell.mesh, cell.slot),
            amount,
        })
    }
}

/// What a worker finds at an actor.
pub(crate) enum Next {
    Nothing,
    /// The runner has something to do itself.
    Due(Py<PyAny>),
    Mail(Py<PyAny>, Box<Mail>, Due),
}

/// What a cancel found.
pub(crate) enum Cancelled {
    Nothing,
    /// It had not started; it is gone, and this is the credit to send, when it is time for one.
    Queued(Mail, Option<Amount>),
    /// It runs: Python must cancel its task.
    Running {
        runner: Py<PyAny>,
        message: Py<Message>,
    },
}

impl Cell {
    pub(crate) fn new(node: Py<Node>, mesh: u64, slot: u32) -> Self {
        Self {
            node,
            mesh,
            slot,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, CellState> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Put a message in.
    pub(crate) fn put(&self, py: Python<'_>, mail: Mail) -> Put {
        let mut state = self.state();
        if let Some(window) = Self::window(&mut state, &mail) {
            // A sender that passes its window is held back by the session's bound; its message is taken all the same.
            let _ = window.enter(Amount::MAILBOX, mail.bytes);
        }
        if let Some(reason) = state.ended.as_ref().map(|reason| reason.clone_ref(py)) {
            let credit = Self::taken(&mut state, &mail);
            return Put::Ended(mail, reason, credit);
        }
        state.mailbox.push_back(Box::new(mail));
        if state.standing != Standing::Idle || state.runner.is_none() {
            return Put::Queued;
        }
        state.standing = Standing::Queued;
        Put::Ready
    }

    /// A worker turns to this actor.
    pub(crate) fn next(&self, py: Python<'_>) -> Next {
        let mut state = self.state();
        let Some(runner) = state.runner.as_ref().map(|runner| runner.clone_ref(py)) else {
            state.standing = Standing::Idle;
            return Next::Nothing;
        };
        state.standing = Standing::Busy;
        if std::mem::take(&mut state.due) {
            return Next::Due(runner);
        }
        let Some(mail) = state.mailbox.pop_front() else {
            state.standing = Standing::Idle;
            return Next::Nothing;
        };
        let due = match Self::taken(&mut state, &mail) {
            Some(amount) => Due::Now(amount),
            None if mail.call == 0
                && mail.origin != Origin::Here
                && !std::mem::replace(&mut state.owes_credit, true) =>
            {
                Due::Soon
            }
            None => Due::Nothing,
        };
        Next::Mail(runner, mail, due)
    }

    /// A worker has done what it took. Whether there is more to do.
    pub(crate) fn rest(&self) -> bool {
        let mut state = self.state();
        if state.runner.is_some() && (state.due || !state.mailbox.is_empty()) {
            state.standing = Standing::Queued;
            return true;
        }
        state.standing = Standing::Idle;
        // An actor that rests holds as little as it can: there may be thousands.
        if state.mailbox.is_empty() {
            state.mailbox = VecDeque::new();
        }
        if state.running.is_empty() {
            state.running = Vec::new();
        }
        false
    }

    /// Note a message that a worker handles now.
    pub(crate) fn started(&self, message: Py<Message>) {
        self.state().running.push(message);
    }

    /// Drop or find the message of a call that was cancelled.
    pub(crate) fn cancel(&self, py: Python<'_>, sender: (u64, u32), call: u64, rank: u32) -> Cancelled {
        let mut state = self.state();
        let same = |mail: &Mail| {
            mail.call == call
                && (mail.sender, mail.incarnation) == sender
                && (rank == Cancel::ALL_RANKS || mail.rank == rank)
        };
        if let Some(at) = state.mailbox.iter().position(|mail| same(mail)) {
            let Some(mail) = state.mailbox.remove(at) else {
                return Cancelled::Nothing;
            };
            let credit = Self::taken(&mut state, &mail);
            return Cancelled::Queued(*mail, credit);
        }
        let found = state
            .running
            .iter()
            .find(|message| same(&message.get().mail))
            .map(|message| message.clone_ref(py));
        match (found, &state.runner) {
            (Some(message), Some(runner)) => Cancelled::Running {
                runner: runner.clone_ref(py),
                message,
            },
            _ => Cancelled::Nothing,
        }
    }

    /// The running message of this number; and the endpoints of all others that run, or wait in the mailbox.
    pub(crate) fn before(&self, py: Python<'_>, number: u64) -> Option<(Py<Message>, Others)> {
        let state = self.state();
        let (mut found, mut others) = (None, Vec::new());
        let info = |mail: &Mail| mail.endpoint.as_ref().map(|endpoint| endpoint.info.clone_ref(py));
        for message in &state.running {
            if message.get().has_number(number) {
                found = Some(message.clone_ref(py));
            } else {
                others.push(info(&message.get().mail));
            }
        }
        let found = found?;
        others.extend(state.mailbox.iter().map(|mail| info(mail)));
        Some((found, others))
    }

    /// The credit that was not sent yet, by sender: a broadcast has no reply, so nothing else says that it was taken.
    pub(crate) fn settle(&self) -> Vec<((u64, u32), Amount)> {
        let mut state = self.state();
        state.owes_credit = false;
        let senders = state.senders.iter_mut();
        senders
            .filter_map(|one| Some(((one.proc, one.incarnation), one.window.settle()?)))
            .collect()
    }

    /// A message has been answered, dropped or failed.
    pub(crate) fn finished(&self, message: &Message) -> Option<Py<Message>> {
        let mut state = self.state();
        let at = state
            .running
            .iter()
            .position(|other| std::ptr::eq(other.get(), message))?;
        Some(state.running.swap_remove(at))
    }

    /// The message that waits longest: a number that no other has as long as it waits, and its endpoint.
    pub(crate) fn first(&self) -> Option<(u64, String)> {
        let state = self.state();
        let mail = state.mailbox.front()?;
        Some((std::ptr::from_ref::<Mail>(mail).addr() as u64, mail.name_text()))
    }

    /// What it does now; None when that is nothing.
    pub(crate) fn activity(&self) -> Option<Activity> {
        let state = self.state();
        if state.running.is_empty() && state.mailbox.is_empty() {
            return None;
        }
        let running = state.running.iter().map(|message| {
            let message = message.get();
            (message.mail.name_text(), message.started_ns)
        });
        Some(Activity {
            slot: self.slot,
            queued: u32::try_from(state.mailbox.len()).unwrap_or(u32::MAX),
            running: running.collect(),
        })
    }

    pub(crate) fn runner(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.state().runner.as_ref().map(|runner| runner.clone_ref(py))
    }

    /// The window of the proc that a message came from; None for this very process, whose queue is this mailbox.
    fn window<'a>(state: &'a mut CellState, mail: &Mail) -> Option<&'a mut ReceiveWindow> {
        if mail.origin == Origin::Here {
            return None;
        }
        let known = state
            .senders
            .iter()
            .position(|one| one.proc == mail.sender && one.incarnation == mail.incarnation);
        let at = known.unwrap_or_else(|| {
            state.senders.retain(|one| one.proc != mail.sender);
            state.senders.reserve_exact(1);
            state.senders.push(Sender {
                proc: mail.sender,
                incarnation: mail.incarnation,
                window: ReceiveWindow::default(),
            });
            state.senders.len() - 1
        });
        Some(&mut state.senders[at].window)
    }

    /// Count a message out of the mailbox; the credit to send when it is time for one.
    fn taken(state: &mut CellState, mail: &Mail) -> Option<Amount> {
        let window = Self::window(state, mail)?;
        // One that was in the mailbox when its sender's next incarnation came belongs to a window that is gone.
        if window.waiting().messages == 0 {
            None
        } else {
            window.take(Amount::MAILBOX, mail.bytes)
        }
    }
}

#[pymethods]
impl Cell {
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.node)?;
        // Held by this very thread when the collector runs inside: then these count as used from elsewhere.
        let Ok(state) = self.state.try_lock() else {
            return Ok(());
        };
        visit.call(&state.runner)?;
        state.running.iter().try_for_each(|message| visit.call(message))
    }

    /// A new life: this runner is to be constructed by the next worker, then handles the messages.
    fn start(slf: &Bound<'_, Self>, runner: Py<PyAny>) -> PyResult<()> {
        let old = slf.get().state().runner.replace(runner);
        drop(old);
        Self::rouse(slf)
    }

    /// Have a worker look at the runner itself, which ends, as soon as none is at it.
    fn rouse(slf: &Bound<'_, Self>) -> PyResult<()> {
        let cell = slf.get();
        {
            let mut state = cell.state();
            state.due = true;
            if state.standing != Standing::Idle {
                return Ok(());
            }
            state.standing = Standing::Queued;
        }
        cell.node.get().queue(slf.py(), slf.clone().unbind())
    }

    /// End the actor: what waits in the mailbox, and what comes later, is answered with `reason` (see `Hosting`).
    fn close(&self, py: Python<'_>, reason: &Bound<'_, PyBytes>) -> PyResult<()> {
        let (mailbox, credits) = {
            let mut state = self.state();
            if state.ended.is_none() {
                state.ended = Some(reason.clone().unbind());
            }
            let mailbox = std::mem::take(&mut state.mailbox);
            let credits: Vec<Option<Amount>> =
                mailbox.iter().map(|mail| Self::taken(&mut state, mail)).collect();
            (mailbox, credits)
        };
        let node = self.node.get();
        for (mail, credit) in mailbox.iter().zip(credits) {
            if let Some(amount) = credit {
                node.grant(
                    py,
                    (mail.sender, mail.incarnation),
                    (self.mesh, self.slot),
                    amount,
                )?;
            }
            node.bounce(py, mail, reason)?;
        }
        Ok(())
    }

    /// The actor starts again: messages are queued from now on.
    fn reopen(&self) {
        let reason = self.state().ended.take();
        drop(reason);
    }

    /// The runner of its present life; None when that has ended.
    #[getter(runner)]
    fn runner_now(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.runner(py)
    }

    /// Forget the runner, so that a stopped actor keeps nothing alive. The messages that still run.
    fn release(&self) -> Vec<Py<Message>> {
        let (runner, running) = {
            let mut state = self.state();
            // A worker that hangs in this actor's endpoint is not the next one's.
            if state.standing == Standing::Busy {
                state.standing = Standing::Idle;
            }
            state.due = false;
            (state.runner.take(), std::mem::take(&mut state.running))
        };
        drop(runner);
        running
    }
}

/// All actors of one mesh in this process, by slot.
pub(crate) type Cells = Vec<Py<Cell>>;
