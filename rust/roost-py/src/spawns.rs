//! The message that makes actors in a proc: a plan, which meshes of one class on the same procs share, and then each mesh.
//! Its bytes: the plan's length as a u32, the plan, and for each mesh 32 bytes (its id and its owner as u64; the first rank,
//! how many actors, bytes of the name, bytes of the arguments as u32), the name, the arguments. Little-endian.

use roost_core::id::MeshId;

const MESH_BYTES: usize = 32;

/// Meshes that go to one proc in one message: spawned in the same turn of the loop, and of one plan.
pub(crate) struct Spawns {
    pub(crate) first: MeshId,
    pub(crate) bytes: Vec<u8>,
    plan: usize,
}

impl Spawns {
    /// `plan` with its length, and what comes after it for one mesh.
    pub(crate) fn new(mesh: MeshId, plan: &[u8], rest: &[u8]) -> Self {
        Self {
            first: mesh,
            bytes: [plan, rest].concat(),
            plan: plan.len(),
        }
    }

    /// Add a mesh. False when its plan is another.
    pub(crate) fn add(&mut self, plan: &[u8], rest: &[u8]) -> bool {
        let same = self.plan == plan.len() && self.bytes.starts_with(plan);
        if same {
            self.bytes.extend_from_slice(rest);
        }
        same
    }
}

/// The meshes that a message makes, as far as it can be read.
pub(crate) fn meshes(mut bytes: &[u8]) -> impl Iterator<Item = u64> {
    let plan = length(bytes, 0).and_then(|plan| plan.checked_add(4));
    bytes = plan.and_then(|plan| bytes.get(plan..)).unwrap_or_default();
    std::iter::from_fn(move || {
        let mesh = u64::from_le_bytes(*bytes.first_chunk()?);
        let end = MESH_BYTES
            .checked_add(length(bytes, 24)?)?
            .checked_add(length(bytes, 28)?)?;
        bytes = bytes.get(end..)?;
        Some(mesh)
    })
}

fn length(bytes: &[u8], at: usize) -> Option<usize> {
    let field = bytes.get(at..)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*field)).ok()
}
