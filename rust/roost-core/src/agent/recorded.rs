//! Constructors that the host keeps for the later incarnations of a proc.

use crate::control::Bytes;
use crate::id::MeshId;

/// The constructors of one proc, in their order. Those of one class begin alike, and there may be thousands: what one begins
/// with as the one before is held once.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    constructors: Vec<(MeshId, Bytes, Bytes)>,
    bytes: usize,
}

impl Recorded {
    pub(super) fn push(&mut self, mesh: MeshId, start: &Bytes, rest: &Bytes) {
        self.bytes += start.len() + rest.len();
        let start = match self.constructors.last() {
            Some((_, last, _)) if last == start => last,
            _ => start,
        };
        self.constructors.push((mesh, start.clone(), rest.clone()));
    }

    pub(super) fn forget(&mut self, mesh: MeshId) {
        let bytes = &mut self.bytes;
        self.constructors.retain(|(of, start, rest)| {
            let stays = *of != mesh;
            if !stays {
                *bytes -= start.len() + rest.len();
            }
            stays
        });
    }

    pub(super) fn meshes(&self) -> Vec<MeshId> {
        self.constructors.iter().map(|(mesh, _, _)| *mesh).collect()
    }

    pub(super) fn payloads(&self) -> Vec<Bytes> {
        self.constructors
            .iter()
            .map(|(_, start, rest)| [&**start, &**rest].concat().into())
            .collect()
    }

    /// Bytes of all of them together.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }
}
