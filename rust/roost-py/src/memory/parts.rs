//! What one transfer consists of.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use roost_rdma::{Direction, Part, Run};

use super::handle::Handle;

/// Reads and writes that are made together, as often as they are asked for.
#[pyclass(frozen, module = "roost._roost")]
#[derive(Default)]
pub(crate) struct Parts(Mutex<Vec<Part>>);

impl Parts {
    pub(super) fn copy(&self) -> Vec<Part> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn push(&self, is_write: bool, handle: &Handle, runs: Vec<Run>) {
        let direction = if is_write {
            Direction::Write
        } else {
            Direction::Read
        };
        let handle = handle.0.clone();
        let part = Part {
            direction,
            handle,
            runs,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(part);
    }
}

#[pymethods]
impl Parts {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    fn __len__(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Bytes that lie side by side on both sides.
    fn add_flat(&self, is_write: bool, handle: &Handle, offset: u64, address: usize, size: u64) {
        let run = Run {
            remote: offset,
            local: address,
            bytes: size,
        };
        self.push(is_write, handle, vec![run]);
    }

    /// Items in a grid: where they begin, and how many bytes they are apart in each dimension, there and here.
    #[expect(clippy::needless_pass_by_value, reason = "Python's tuples arrive as vectors")]
    fn add(
        &self,
        is_write: bool,
        handle: &Handle,
        remote: (u64, Vec<i64>),
        local: (usize, Vec<i64>),
        shape: Vec<u64>,
        item_bytes: u64,
    ) -> PyResult<()> {
        let runs = roost_rdma::strided(&shape, item_bytes, remote.0, &remote.1, local.0, &local.1)
            .map_err(|misuse| PyValueError::new_err(misuse.to_string()))?;
        self.push(is_write, handle, runs);
        Ok(())
    }
}
