//! Constructors that the host keeps for the later incarnations of a proc.

use crate::control::Bytes;
use crate::id::{MeshId, ProcId};

#[derive(Debug)]
struct Constructor {
    mesh: MeshId,
    owner: ProcId,
    start: Bytes,
    rest: Bytes,
}

impl Constructor {
    fn bytes(&self) -> usize {
        self.start.len() + self.rest.len()
    }
}

/// The constructors of one proc, in their order. Those of one class begin alike, and there may be thousands: what one begins
/// with as the one before is held once.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    constructors: Vec<Constructor>,
    bytes: usize,
}

impl Recorded {
    pub(super) fn push(&mut self, mesh: MeshId, owner: ProcId, start: &Bytes, rest: &Bytes) {
        let start = match self.constructors.last() {
            Some(last) if last.start == *start => &last.start,
            _ => start,
        };
        let made = Constructor {
            mesh,
            owner,
            start: start.clone(),
            rest: rest.clone(),
        };
        self.bytes += made.bytes();
        self.constructors.push(made);
    }

    /// The mesh has ended.
    pub(super) fn forget(&mut self, mesh: MeshId) {
        self.forget_all(|made| made.mesh == mesh);
    }

    /// The proc has ended whose actors own these meshes.
    pub(super) fn forget_of(&mut self, owner: ProcId) {
        self.forget_all(|made| made.owner == owner);
    }

    fn forget_all(&mut self, is_over: impl Fn(&Constructor) -> bool) {
        let bytes = &mut self.bytes;
        self.constructors.retain(|made| {
            let stays = !is_over(made);
            if !stays {
                *bytes -= made.bytes();
            }
            stays
        });
    }

    pub(super) fn meshes(&self) -> Vec<MeshId> {
        self.constructors.iter().map(|made| made.mesh).collect()
    }

    pub(super) fn payloads(&self) -> Vec<Bytes> {
        self.constructors
            .iter()
            .map(|made| [&*made.start, &*made.rest].concat().into())
            .collect()
    }

    /// Bytes of all of them together.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}
