//! The control thread's way to Python: notices in order, each with its descriptor.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::net::Ready;
use super::shared::{Command, Ends, FarEnd, Notice, Shared, What};
use super::socket::{self, Blocked};

#[derive(Debug)]
pub(super) struct Door {
    shared: Arc<Shared>,
    ends: Ends,
    /// What the hand-over socket had no room for, and what comes after it. Python takes descriptors out when it
    /// drains; until then each of these holds one, so their number is bounded by what the table takes.
    waiting: VecDeque<(What, Option<OwnedFd>)>,
    blocked: Option<Blocked>,
}

impl Door {
    pub(super) fn new(shared: Arc<Shared>, ends: Ends) -> Self {
        Self {
            shared,
            ends,
            waiting: VecDeque::new(),
            blocked: None,
        }
    }

    /// Readable when Python has said something.
    pub(super) fn wake(&self) -> BorrowedFd<'_> {
        self.ends.wake.as_fd()
    }

    /// Writable when waiting descriptors may go.
    pub(super) fn handover(&self) -> BorrowedFd<'_> {
        self.ends.handover.as_fd()
    }

    /// Why notices wait, if they do.
    pub(super) fn blocked(&self) -> Option<Blocked> {
        self.blocked
    }

    pub(super) fn push(&mut self, what: impl Into<What>, descriptor: Option<OwnedFd>) {
        self.waiting.push_back((what.into(), descriptor));
        self.flush();
    }

    /// A data lane to another host is ready.
    pub(super) fn push_lane(&mut self, ready: Ready) {
        let Ready {
            proc,
            incarnation,
            slot,
            stream,
            session,
            connection,
            dials,
        } = ready;
        let (socket, secure) = stream.into_parts();
        let end = FarEnd {
            proc,
            incarnation,
            slot,
            secure,
            session,
            connection,
            dials,
        };
        self.push(What::Lane(Box::new(end)), Some(socket));
    }

    /// Hand over what there is room for.
    pub(super) fn flush(&mut self) {
        self.blocked = None;
        while let Some((what, descriptor)) = self.waiting.pop_front() {
            let Some(descriptor) = descriptor else {
                self.shared.notify(
                    &self.ends,
                    Notice {
                        what,
                        has_descriptor: false,
                    },
                );
                continue;
            };
            let sent = socket::send(&self.ends.handover, &[0], &[descriptor.as_fd()]);
            match sent.map_err(Blocked::from_error) {
                Ok(()) => self.shared.notify(
                    &self.ends,
                    Notice {
                        what,
                        has_descriptor: true,
                    },
                ),
                Err(Ok(blocked)) => {
                    self.waiting.push_front((what, Some(descriptor)));
                    self.blocked = Some(blocked);
                    return;
                }
                // Python's end is gone with its `Control`: nobody wants to know.
                Err(Err(_)) => {}
            }
        }
    }

    /// What Python wants, with the descriptors that it gave.
    pub(super) fn commands(&mut self) -> Vec<(Command, Option<OwnedFd>)> {
        let commands = self.shared.take_commands(&self.ends);
        let with_descriptor = |command| match command {
            Command::Message(_, true) | Command::Links(_) => (command, self.take_descriptor()),
            command => (command, None),
        };
        commands.into_iter().map(with_descriptor).collect()
    }

    fn take_descriptor(&self) -> Option<OwnedFd> {
        socket::receive(&self.ends.handover, &mut [0])
            .ok()?
            .descriptors
            .pop()
    }

    /// Tell Python that the agent was told that this proc is up.
    pub(super) fn up_told(&self) {
        self.shared.up_told();
    }

    /// Whether Python's loop has moved since the last question.
    pub(super) fn moves(&self) -> bool {
        self.shared.moves()
    }

    /// Ask whether Python's loop moves.
    pub(super) fn ask(&self) {
        self.shared.ask(&self.ends);
    }

    /// Tell Python that the thread has ended.
    pub(super) fn close(&self) {
        self.shared.end();
    }
}
