//! The table of procs, and when each wants to be looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use super::proc::Proc;
use crate::id::ProcId;

/// All procs by id. Whoever may change one notes it, so that what happens costs what it concerns, however many there are.
#[derive(Debug, Default)]
pub(super) struct Procs {
    all: BTreeMap<ProcId, Proc>,
    /// By time; the same as each has in `timer`, but for those that were touched since.
    timers: BTreeSet<(u64, ProcId)>,
    touched: BTreeSet<ProcId>,
}

impl Deref for Procs {
    type Target = BTreeMap<ProcId, Proc>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl Procs {
    pub(super) fn get_mut(&mut self, id: ProcId) -> Option<&mut Proc> {
        let proc = self.all.get_mut(&id)?;
        self.touched.insert(id);
        Some(proc)
    }

    pub(super) fn insert(&mut self, id: ProcId, proc: Proc) {
        self.touched.insert(id);
        self.all.insert(id, proc);
    }

    pub(super) fn remove(&mut self, id: ProcId) -> Option<Proc> {
        let proc = self.all.remove(&id)?;
        if let Some(at_ns) = proc.timer {
            self.timers.remove(&(at_ns, id));
        }
        Some(proc)
    }

    /// The proc has ended that owns these constructors: no time of any proc depends on them.
    pub(super) fn forget_constructors_of(&mut self, owner: ProcId) {
        for proc in self.all.values_mut() {
            proc.recorded.forget_of(owner);
        }
    }

    /// Those whose time has come, by id.
    pub(super) fn due(&mut self, now_ns: u64) -> BTreeSet<ProcId> {
        self.settle();
        let due = self.timers.iter().take_while(|(at_ns, _)| *at_ns <= now_ns);
        due.map(|&(_, id)| id).collect()
    }

    /// When the next one's time comes.
    pub(super) fn next_wakeup_ns(&self) -> Option<u64> {
        debug_assert!(self.touched.is_empty(), "asked in the middle of something");
        self.timers.first().map(|&(at_ns, _)| at_ns)
    }

    /// Note the times of those that were touched.
    pub(super) fn settle(&mut self) {
        for id in std::mem::take(&mut self.touched) {
            let Some(proc) = self.all.get_mut(&id) else {
                continue;
            };
            let (old, new) = (proc.timer, proc.wakeup_ns());
            if old == new {
                continue;
            }
            proc.timer = new;
            if let Some(at_ns) = old {
                self.timers.remove(&(at_ns, id));
            }
            if let Some(at_ns) = new {
                self.timers.insert((at_ns, id));
            }
        }
    }
}
