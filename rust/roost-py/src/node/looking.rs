//! What the actors of this process do, for the control thread: it looks also while Python's loop stands still, without the GIL.

use std::fmt;
use std::sync::{Mutex, PoisonError, Weak};

use roost_core::control::Activity;
use roost_core::id::MeshId;

use super::{Node, State};
use crate::cell::Cell;

/// An activity as Python gets it: (slot, messages that wait, [(endpoint, when it left the mailbox)]).
pub(crate) type Plain = (u32, u32, Vec<(String, u64)>);

/// A mailbox in which something waits: (mesh, slot, a number that is the first message's as long as it waits, its endpoint,
/// messages that wait, [(endpoint that runs, when it left the mailbox)]).
pub(crate) type Queue = (u64, u32, u64, String, u32, Vec<(String, u64)>);

/// Activities as Python gets them.
pub(crate) fn plain(activities: Vec<Activity>) -> Vec<Plain> {
    let plain = |one: Activity| (one.slot, one.queued, one.running);
    activities.into_iter().map(plain).collect()
}

/// The way of another thread to the actors of this process, as long as they are there.
pub(crate) struct Board(Weak<Mutex<State>>);

impl fmt::Debug for Board {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Board").finish_non_exhaustive()
    }
}

impl Board {
    /// The actors of a mesh that do something.
    pub(crate) fn look(&self, mesh: MeshId) -> Vec<Activity> {
        let Some(state) = self.0.upgrade() else {
            return Vec::new();
        };
        let state = state.lock().unwrap_or_else(PoisonError::into_inner);
        state.activities(mesh.get())
    }
}

impl Node {
    pub(crate) fn board(&self) -> Board {
        Board(std::sync::Arc::downgrade(&self.state))
    }
}

impl State {
    pub(super) fn queues(&self) -> Vec<Queue> {
        let cells = self.meshes.values().flat_map(|hosted| &hosted.cells);
        let queue = |cell: &Cell| {
            let (first, name) = cell.first()?;
            let Activity {
                slot,
                queued,
                running,
            } = cell.activity()?;
            Some((cell.mesh, slot, first, name, queued, running))
        };
        cells.filter_map(|cell| queue(cell.get())).collect()
    }

    pub(super) fn activities(&self, mesh: u64) -> Vec<Activity> {
        let cells = self.meshes.get(&mesh).map_or(&[][..], |hosted| &hosted.cells);
        cells.iter().filter_map(|cell| cell.get().activity()).collect()
    }
}
