//! Back-pressure without waiting: how many messages a proc may have in the mailbox of one actor, and how many it may
//! hold back itself.
//!
//! Both ends count what was ever sent and ever taken out, so a credit is a total: one that is read late or twice
//! changes nothing. A message may go while the window is not full, whatever its own size; so one message can pass
//! the window in bytes, and a sender that is stopped always has a full window out, of which the receiver will grant
//! a part again. (With a window that no message may pass, a sender could wait for a grant that is too small to be
//! made.)

#[cfg(test)]
mod tests;

use crate::limits;
use crate::wire::Runs;

/// Messages and their bytes; a window, or a total from the session's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Amount {
    /// Messages.
    pub messages: u64,
    /// Bytes of those messages, shared segments included.
    pub bytes: u64,
}

impl Amount {
    /// What one proc may have in the mailbox of one actor.
    pub const MAILBOX: Self = Self {
        messages: limits::MAILBOX_MESSAGES_MAX,
        bytes: limits::MAILBOX_BYTES_MAX,
    };

    #[inline]
    fn add(&mut self, bytes: u64) {
        self.messages += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Whether `self` is out in `window` and one more may go.
    #[inline]
    fn leaves_room_in(self, window: Self) -> bool {
        self.messages < window.messages && self.bytes < window.bytes
    }

    #[inline]
    fn since(self, earlier: Self) -> Self {
        Self {
            messages: self.messages.saturating_sub(earlier.messages),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

/// A credit or message that the other end must not have sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreditError {
    /// The receiver takes back what it granted, or grants more than was sent.
    #[error(
        "a credit of {} messages and {} bytes after one of {} and {}, with {} and {} sent",
        credit.messages, credit.bytes, before.messages, before.bytes, sent.messages, sent.bytes
    )]
    Impossible {
        /// The credit that came.
        credit: Amount,
        /// The credit before it.
        before: Amount,
        /// What was sent.
        sent: Amount,
    },
    /// A credit for an actor that was never sent anything.
    #[error("a credit for slot {slot} of a mesh with {slots} slots")]
    UnknownSlot {
        /// The slot that was named.
        slot: u32,
        /// How many there are.
        slots: usize,
    },
    /// The sender sent more than its window.
    #[error(
        "a message beyond the window of {} messages and {} bytes, with {} and {} not yet granted again",
        window.messages, window.bytes, out.messages, out.bytes
    )]
    Overrun {
        /// The window.
        window: Amount,
        /// What is out.
        out: Amount,
    },
}

/// The sender's side for one actor, or one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendWindow {
    sent: Amount,
    granted: Amount,
}

impl SendWindow {
    /// Whether one more message may go.
    #[inline]
    pub fn has_room(&self, window: Amount) -> bool {
        self.sent.since(self.granted).leaves_room_in(window)
    }

    /// Takes credit for one message, if there is some.
    #[inline]
    pub fn take(&mut self, window: Amount, bytes: u64) -> bool {
        let room = self.has_room(window);
        if room {
            self.sent.add(bytes);
        }
        room
    }

    /// Applies a credit; says whether a message may go now that could not before.
    ///
    /// # Errors
    ///
    /// [`CreditError::Impossible`] for a credit below the last or above what was sent.
    #[inline]
    pub fn grant(&mut self, window: Amount, credit: Amount) -> Result<bool, CreditError> {
        let (before, sent) = (self.granted, self.sent);
        let forward = credit.messages >= before.messages && credit.bytes >= before.bytes;
        if !forward || credit.messages > sent.messages || credit.bytes > sent.bytes {
            return Err(CreditError::Impossible { credit, before, sent });
        }
        let had_room = self.has_room(window);
        self.granted = credit;
        Ok(!had_room && self.has_room(window))
    }

    /// What is out: sent, and not granted again.
    pub fn out(&self) -> Amount {
        self.sent.since(self.granted)
    }
}

/// The sender's side for all actors of one mesh in one proc.
#[derive(Debug, Clone)]
pub struct SendWindows {
    window: Amount,
    slots: Vec<SendWindow>,
}

impl SendWindows {
    /// Windows for this many actors.
    pub fn new(window: Amount, slots: u32) -> Self {
        Self {
            window,
            slots: vec![SendWindow::default(); slots as usize],
        }
    }

    /// Whether one more message may go to this actor.
    #[inline]
    pub fn has_room(&self, slot: u32) -> bool {
        self.slots
            .get(slot as usize)
            .is_some_and(|sender| sender.has_room(self.window))
    }

    /// How many actors there are.
    pub const fn slots(&self) -> usize {
        self.slots.len()
    }

    /// What was ever sent to this actor.
    #[inline]
    pub fn sent(&self, slot: u32) -> Amount {
        self.slots
            .get(slot as usize)
            .map(|sender| sender.sent)
            .unwrap_or_default()
    }

    /// Takes credit for one message to this actor, if there is some.
    #[inline]
    pub fn take(&mut self, slot: u32, bytes: u64) -> bool {
        let window = self.window;
        self.slots
            .get_mut(slot as usize)
            .is_some_and(|sender| sender.take(window, bytes))
    }

    /// Takes credit for one message to all of these actors, if each has some; else for none.
    #[inline]
    pub fn take_all(&mut self, runs: Runs<'_>, bytes: u64) -> bool {
        if let Some((slot, _)) = runs.one() {
            return self.take(slot, bytes);
        }
        let room = runs.targets().all(|(slot, _)| self.has_room(slot));
        if room {
            for (slot, _) in runs.targets() {
                self.take(slot, bytes);
            }
        }
        room
    }

    /// Takes back the credit of one message that cannot be sent after all: its receiver will never grant it again.
    pub fn give_back_all(&mut self, runs: Runs<'_>, bytes: u64) {
        for (slot, _) in runs.targets() {
            if let Some(sender) = self.slots.get_mut(slot as usize) {
                sender.sent.messages = sender.sent.messages.saturating_sub(1);
                sender.sent.bytes = sender.sent.bytes.saturating_sub(bytes);
            }
        }
    }

    /// Applies a credit; says whether a message may go now that could not before.
    ///
    /// # Errors
    ///
    /// [`CreditError`] for a credit that cannot be.
    #[inline]
    pub fn grant(&mut self, slot: u32, credit: Amount) -> Result<bool, CreditError> {
        let (window, slots) = (self.window, self.slots.len());
        let sender = self
            .slots
            .get_mut(slot as usize)
            .ok_or(CreditError::UnknownSlot { slot, slots })?;
        sender.grant(window, credit)
    }
}

/// The receiver's side: one sending proc at the mailbox of one actor, or at a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReceiveWindow {
    entered: Amount,
    taken: Amount,
    granted: Amount,
}

impl ReceiveWindow {
    /// Counts a message into the mailbox.
    ///
    /// # Errors
    ///
    /// [`CreditError::Overrun`] when the sender had no credit for it.
    #[inline]
    pub fn enter(&mut self, window: Amount, bytes: u64) -> Result<(), CreditError> {
        let out = self.entered.since(self.granted);
        if !out.leaves_room_in(window) {
            return Err(CreditError::Overrun { window, out });
        }
        self.entered.add(bytes);
        Ok(())
    }

    /// Counts a message out of the mailbox, started or dropped; gives the credit to send when it is time for one.
    ///
    /// # Panics
    ///
    /// When more is taken out than went in.
    #[inline]
    pub fn take(&mut self, window: Amount, bytes: u64) -> Option<Amount> {
        self.taken.add(bytes);
        assert!(
            self.taken.messages <= self.entered.messages,
            "what is taken out of a mailbox went in"
        );
        let ungranted = self.taken.since(self.granted);
        let due = ungranted.messages >= window.messages.div_ceil(limits::CREDIT_GRANT_FRACTION)
            || ungranted.bytes >= window.bytes.div_ceil(limits::CREDIT_GRANT_FRACTION);
        due.then(|| {
            self.granted = self.taken;
            self.taken
        })
    }

    /// The credit for what was taken out since the last one, if anything was: it need not be a whole grant.
    pub fn settle(&mut self) -> Option<Amount> {
        (self.taken != self.granted).then(|| {
            self.granted = self.taken;
            self.taken
        })
    }

    /// What lies in the mailbox.
    pub fn waiting(&self) -> Amount {
        self.entered.since(self.taken)
    }
}

/// Too much waits already for credit at the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} messages with {} bytes wait for the receiver, of at most {} and {}",
    waiting.messages, waiting.bytes, limit.messages, limit.bytes
)]
pub struct QueueFullError {
    /// What waits.
    pub waiting: Amount,
    /// What may wait.
    pub limit: Amount,
}

/// The bound on what one proc holds back for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueBound {
    waiting: Amount,
    limit: Amount,
}

impl Default for QueueBound {
    fn default() -> Self {
        Self::new(Amount {
            messages: limits::SEND_QUEUE_MESSAGES_MAX as u64,
            bytes: limits::SEND_QUEUE_BYTES_MAX as u64,
        })
    }
}

impl QueueBound {
    /// An empty queue with this bound.
    pub const fn new(limit: Amount) -> Self {
        Self {
            waiting: Amount {
                messages: 0,
                bytes: 0,
            },
            limit,
        }
    }

    /// Counts a message in. A single one may be larger than the bound.
    ///
    /// # Errors
    ///
    /// [`QueueFullError`] when it does not fit: the verb that sends must say so.
    pub fn enter(&mut self, bytes: u64) -> Result<(), QueueFullError> {
        let Self { waiting, limit } = *self;
        let fits = waiting.messages < limit.messages && waiting.bytes.saturating_add(bytes) <= limit.bytes;
        if !fits && waiting.messages > 0 {
            return Err(QueueFullError { waiting, limit });
        }
        self.waiting.add(bytes);
        Ok(())
    }

    /// Counts a message in that must not be refused any more: room was asked for before, or it is one of Roost's own.
    pub fn admit(&mut self, bytes: u64) {
        self.waiting.add(bytes);
    }

    /// Counts a message out: sent, cancelled or returned.
    ///
    /// # Panics
    ///
    /// When nothing waits.
    pub fn leave(&mut self, bytes: u64) {
        assert!(self.waiting.messages > 0, "what leaves the queue had entered it");
        self.waiting.messages -= 1;
        self.waiting.bytes = self.waiting.bytes.saturating_sub(bytes);
    }

    /// What waits.
    pub const fn waiting(&self) -> Amount {
        self.waiting
    }
}
