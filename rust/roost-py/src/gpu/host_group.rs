//! The class `HostGroup`: reductions between the ranks of one host, over shared memory. Nothing here blocks.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use roost_hip::host_group::{Begun, HostGroupError, Purpose, Reduction, Verb};

use super::group::{elements, reduced, tell, unknown};

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

    /// Reduces so many elements at an address in place, for the purpose of an operation: its verb, root and number. Whether that
    /// has ended; if it has not, `done` gets None or an error's text, on another thread, when the memory is the caller's again.
    fn reduce(
        &self,
        purpose: (PyBackedStr, u8, u32),
        memory: (usize, usize, PyBackedStr),
        op: &str,
        done: Py<PyAny>,
    ) -> PyResult<bool> {
        let ((name, root, number), (address, count, kind)) = (purpose, memory);
        let reduction = Reduction {
            address,
            count,
            data_type: elements(&kind)?,
            op: reduced(op)?,
            purpose: Purpose {
                verb: verb(&name)?,
                root,
                number,
            },
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

fn verb(name: &str) -> PyResult<Verb> {
    Ok(match name {
        "all_reduce" => Verb::AllReduce,
        "reduce" => Verb::Reduce,
        "reduce_scatter" => Verb::ReduceScatter,
        "barrier" => Verb::Barrier,
        other => return Err(unknown("verb", other)),
    })
}
