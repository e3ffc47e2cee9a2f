//! Connections to other hosts on which nothing happens: silent ones, over which nothing seems to arrive, and idle ones, which
//! nobody needs for now.

use std::os::fd::OwnedFd;

use super::Link;

/// How long nothing of what was sent may be acknowledged before another connection is tried, to begin with.
const SILENT_NS: u64 = 5_000_000_000;

/// What was seen of a connection.
pub(super) struct Quiet {
    /// What was acknowledged and what was still to be written when that last changed, and when; while something is awaited.
    awaited: Option<((u64, usize), u64)>,
    /// How long nothing may change then.
    patience_ns: u64,
    /// The last numbers sent and received when that was last looked at.
    used: Option<(u64, u64)>,
    /// There is no connection since none was needed: whoever has something to send asks for one.
    rests: bool,
}

impl Default for Quiet {
    fn default() -> Self {
        Self {
            awaited: None,
            patience_ns: SILENT_NS,
            used: None,
            rests: false,
        }
    }
}

impl Quiet {
    /// There is another connection.
    pub(super) fn restart(&mut self) {
        (self.used, self.rests) = (None, false);
    }
}

impl Link {
    /// Whether what was sent has been in silence for too long: the other end is busy, or somebody in between has swallowed or
    /// changed it, and it waits for the rest. None when nothing is awaited.
    pub(crate) fn is_silent(&mut self, now_ns: u64) -> Option<bool> {
        let quiet = &mut self.far.as_mut().filter(|_| self.fd.is_some())?.quiet;
        let acknowledged = self.session.acknowledged();
        if self.session.last_sequence() == acknowledged {
            quiet.awaited = None;
            return None;
        }
        let seen = (acknowledged, self.session.unsent_bytes());
        match quiet.awaited {
            Some((before, since_ns)) if before == seen => {
                let is_silent = now_ns.saturating_sub(since_ns) >= quiet.patience_ns;
                if is_silent {
                    // One that is only busy, or slow with something large, is left alone ever longer.
                    quiet.patience_ns = quiet.patience_ns.saturating_mul(2);
                    quiet.awaited = Some((seen, now_ns));
                }
                Some(is_silent)
            }
            before => {
                if before.is_none_or(|((earlier, _), _)| earlier != acknowledged) {
                    quiet.patience_ns = SILENT_NS;
                }
                quiet.awaited = Some((seen, now_ns));
                Some(false)
            }
        }
    }

    /// Whether nothing was sent or received since this was last asked, and nothing is under way. None where it is not for this
    /// end to see: there is no connection, or the other end has made it.
    pub(crate) fn is_idle(&mut self) -> Option<bool> {
        let far = self.far.as_mut().filter(|far| far.dials && self.fd.is_some())?;
        let seen = Some((self.session.last_sequence(), self.session.received()));
        let is_used = far.quiet.used != seen;
        far.quiet.used = seen;
        Some(!is_used && self.is_settled())
    }

    /// Whether both ends have acknowledged all that was sent, and nothing waits for anything.
    fn is_settled(&self) -> bool {
        let session = &self.session;
        let has_part = self.far.as_ref().is_some_and(|far| far.inbox.is_reading());
        session.acknowledged() == session.last_sequence()
            && session.next_wakeup().is_none()
            && !(session.has_unsent() || self.has_ahead() || self.is_held_up() || has_part)
            && self.hello.is_empty()
            && self.filled == 0
            && self.is_live()
    }

    /// Take the descriptor of a connection that has broken, and whether another is needed at once: this end dials, so that the
    /// other may count on it, or something is under way, which the other end may not know of.
    pub(crate) fn break_off(&mut self) -> Option<(OwnedFd, bool)> {
        let fd = self.take_fd()?;
        let far = self.far.as_mut()?;
        let is_under_way = self.session.acknowledged() < self.session.last_sequence();
        let is_needed = far.dials || is_under_way || !far.out.is_empty();
        far.quiet.rests = !is_needed;
        Some((fd, is_needed))
    }

    /// Take the descriptor of a connection that nobody needs, and let go of what was kept for it.
    pub(crate) fn rest(&mut self) -> Option<OwnedFd> {
        let fd = self.take_fd()?;
        self.input = Vec::new();
        let far = self.far.as_mut()?;
        far.quiet.rests = true;
        far.forget_keys();
        Some(fd)
    }

    /// Whether there is something to send, and no connection since none was needed. Once: it is asked for then.
    pub(crate) fn wakes(&mut self) -> bool {
        let has_work = self.session.has_unsent() || self.has_ahead();
        let quiet = self.far.as_mut().map(|far| &mut far.quiet);
        quiet.is_some_and(|quiet| has_work && std::mem::take(&mut quiet.rests))
    }
}
