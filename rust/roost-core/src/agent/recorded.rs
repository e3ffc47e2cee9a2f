//! Constructors that the host keeps for the later incarnations of a proc.

use crate::control::Bytes;
use crate::id::MeshId;

/// The constructors of one proc, in their order. Those of one class begin alike, and there may be thousands: what one begins
/// with as the one before is held once.
#[derive(Debug, Default)]
pub(super) struct Recorded(Vec<(MeshId, Bytes, Bytes)>);

impl Recorded {
    pub(super) fn push(&mut self, mesh: MeshId, start: &Bytes, rest: &Bytes) {
        let start = match self.0.last() {
            Some((_, last, _)) if last == start => last,
            _ => start,
        };
        self.0.push((mesh, start.clone(), rest.clone()));
    }

    pub(super) fn forget(&mut self, mesh: MeshId) {
        self.0.retain(|(of, _, _)| *of != mesh);
    }

    pub(super) fn meshes(&self) -> Vec<MeshId> {
        self.0.iter().map(|(mesh, _, _)| *mesh).collect()
    }

    pub(super) fn payloads(&self) -> Vec<Bytes> {
        self.0
            .iter()
            .map(|(_, start, rest)| [&**start, &**rest].concat().into())
            .collect()
    }

    /// Bytes of all of them together.
    pub(super) fn bytes(&self) -> usize {
        self.0
            .iter()
            .map(|(_, start, rest)| start.len() + rest.len())
            .sum()
    }
}
