//! What is due when.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::handle::Peer;

/// What is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timer {
    /// A transfer has had its time.
    Deadline { token: u64 },
    /// What a transfer that was given up has under way must have ended by now.
    Settle { token: u64 },
    /// Stamps that were in change are looked at again.
    Look { token: u64, share: usize },
    /// A transfer that read a mixture of versions begins again.
    Again { token: u64 },
    /// A link may be asked for again.
    Ask { peer: Peer },
    /// A link's queue pairs must have been heard of by now.
    Nics { link: u64 },
    /// A dropped region's memory is given back, whoever has not answered.
    Revoke { region: u64 },
}

/// Names a timer that is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TimerKey(Instant, u64);

#[derive(Default)]
pub(super) struct Timers {
    set: BTreeMap<TimerKey, Timer>,
    count: u64,
}

impl Timers {
    pub(super) fn set(&mut self, at: Instant, timer: Timer) -> TimerKey {
        self.count += 1;
        let key = TimerKey(at, self.count);
        self.set.insert(key, timer);
        key
    }

    pub(super) fn unset(&mut self, key: TimerKey) {
        self.set.remove(&key);
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.set.first_key_value().map(|(key, _)| key.0)
    }

    pub(super) fn due(&mut self, now: Instant) -> Option<Timer> {
        let first = self.set.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
