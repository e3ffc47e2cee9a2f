//! The class `HostGroup`: reductions between the ranks of one host, over shared memory. Nothing here blocks.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use roost_hip::host_group::{Begun, HostGroupError, Reduction};

use super::group::{elements, reduced, tell};

/// One rank's end of a group of ranks on one host.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct HostGroup(roost_hip::host_group::HostGroup);

#[pymethods]
impl HostGroup {
    /// The first rank's end, and what the others open it with; None where there cannot be one.
    #[staticmethod]
    fn make(py: Python<'_>, ranks: usize) -> Option<(Self, String)> {
        let made = py.detach(|| roost_hip::host_group::HostGroup::make(ranks));
        made.ok().map(|(group, offer)| (Self(group), offer))
    }

    /// Another rank's end; None where this process does not reach the first one's memory.
    #[staticmethod]
    fn open(py: Python<'_>, offer: &str, ranks: usize, rank: usize) -> Option<Self> {
        py.detach(|| roost_hip::host_group::HostGroup::open(offer, ranks, rank))
            .map(Self)
    }

    /// All have opened it.
    fn close_door(&self) {
        self.0.close_door();
    }

    /// Reduces so many elements at an address in place. Whether that has ended; if it has not, `done` gets None or an error's
    /// text, on another thread, when the memory is the caller's again.
    fn all_reduce(
        &self,
        address: usize,
        count: usize,
        kind: &str,
        op: &str,
        done: Py<PyAny>,
    ) -> PyResult<bool> {
        let reduction = Reduction {
            address,
            count,
            data_type: elements(kind)?,
            op: reduced(op)?,
        };
        let done = Box::new(move |outcome: Result<(), HostGroupError>| {
            tell(&done, (outcome.err().map(|error| error.to_string()),));
        });
        // Short, and so with the GIL: to give it back and take it again takes as long.
        // SAFETY: Python's half hands in the memory of a tensor, which it holds until `done` is called.
        let begun = unsafe { self.0.begin(reduction, done) };
        let begun = begun.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        Ok(begun == Begun::Ended)
    }

    /// Whom this rank waits for.
    fn lagging(&self) -> Vec<usize> {
        self.0.lagging()
    }

    /// End what it does, from any thread.
    fn abort(&self, reason: &str) {
        self.0.abort(reason);
    }
}
