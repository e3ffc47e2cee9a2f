//! Constructors that the host keeps for the later incarnations of a proc.

use super::Agent;
use crate::control::{Bytes, ToClient};
use crate::id::{MeshId, ProcId};
use crate::limits::RECORDED_BYTES_MAX;

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

impl Agent {
    /// Keep what makes these actors.
    pub(super) fn record_actor(
        &mut self,
        from: ProcId,
        procs: &[ProcId],
        mesh: MeshId,
        (start, rest): (&Bytes, &Bytes),
    ) {
        for &id in procs {
            let Some(proc) = self.procs.get_mut(id) else {
                continue;
            };
            let bytes = proc.recorded.bytes() + start.len() + rest.len();
            if bytes <= RECORDED_BYTES_MAX {
                proc.recorded.push(mesh, from, start, rest);
                self.prepare_spares(id, start);
                continue;
            }
            let text = format!(
                "{}: constructors of {bytes} bytes pass the limit of {RECORDED_BYTES_MAX}, {mesh} will not be there after a restart",
                proc.label
            );
            self.send(from, ToClient::Warning { text });
        }
    }
}
