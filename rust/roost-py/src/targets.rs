//! `Targets`: where a message to a mesh, or to a slice of one, goes; worked out once per handle.

use std::ops::Deref;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use roost_core::id::{MeshId, ProcId};
use roost_core::wire::{Run, RunsBuffer};

/// One run as Python gives it: slot, count, slot stride, rank, rank stride.
type RunTuple = (u32, u32, u32, u32, u32);

/// The procs and slots that a handle stands for.
#[pyclass(frozen, module = "roost._roost")]
pub struct Targets {
    pub(crate) mesh: MeshId,
    layout: Arc<Layout>,
}

/// What meshes on the same procs have in common.
pub struct Layout {
    pub(crate) places: Vec<Place>,
    /// Number of ranks.
    pub(crate) size: u32,
    /// Actors of the mesh in each proc.
    pub(crate) slots: u32,
    /// Names and sizes of the slice, as Python encodes them; empty for a single rank.
    pub(crate) sizes: Arc<[u8]>,
    /// Whether messages wait while a proc restarts, instead of failing.
    pub(crate) wait_while_down: bool,
}

impl Deref for Targets {
    type Target = Layout;

    fn deref(&self) -> &Layout {
        &self.layout
    }
}

/// The part of a mesh that one proc holds.
pub(crate) struct Place {
    pub(crate) proc: ProcId,
    pub(crate) runs: RunsBuffer,
}

impl Place {
    /// The ranks that live there.
    pub(crate) fn ranks(&self) -> Vec<u32> {
        self.runs.as_runs().targets().map(|(_, rank)| rank).collect()
    }
}

#[pymethods]
impl Targets {
    /// Args: mesh id, [(proc, [(slot, count, slot stride, rank, rank stride)])], actors a proc, encoded sizes, wait while down.
    #[new]
    fn new(
        mesh: u64,
        places: Vec<(u64, Vec<RunTuple>)>,
        slots: u32,
        sizes: Vec<u8>,
        wait_while_down: bool,
    ) -> PyResult<Self> {
        let mut size = 0;
        let mut made = Vec::with_capacity(places.len());
        for (proc, runs) in places {
            let mut buffer = RunsBuffer::new();
            for (slot, count, slot_stride, rank, rank_stride) in runs {
                size += count;
                buffer
                    .push(Run {
                        slot,
                        count,
                        slot_stride,
                        rank,
                        rank_stride,
                    })
                    .map_err(|error| PyValueError::new_err(error.to_string()))?;
            }
            made.push(Place {
                proc: proc_id(proc)?,
                runs: buffer,
            });
        }
        let layout = Layout {
            places: made,
            size,
            slots,
            sizes: sizes.into(),
            wait_while_down,
        };
        Ok(Self {
            mesh: mesh_id(mesh)?,
            layout: Arc::new(layout),
        })
    }

    /// The same places for another mesh.
    fn of_mesh(&self, mesh: u64) -> PyResult<Self> {
        Ok(Self {
            mesh: mesh_id(mesh)?,
            layout: Arc::clone(&self.layout),
        })
    }

    /// Number of ranks.
    #[getter]
    fn size(&self) -> u32 {
        self.size
    }
}

/// A proc's id from Python.
pub(crate) fn proc_id(id: u64) -> PyResult<ProcId> {
    ProcId::new(id).ok_or_else(|| PyValueError::new_err("a proc id is not zero"))
}

/// A mesh's id from Python.
pub(crate) fn mesh_id(id: u64) -> PyResult<MeshId> {
    MeshId::new(id).ok_or_else(|| PyValueError::new_err("a mesh id is not zero"))
}
