//! What names a buffer of a process.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A buffer of one life of one process: what is pickled, and what a transfer is asked of.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct Handle(pub(super) Arc<roost_rdma::Handle>);

#[pymethods]
impl Handle {
    #[new]
    fn new(encoded: &[u8]) -> PyResult<Self> {
        match roost_rdma::Handle::decode(encoded) {
            Ok(handle) => Ok(Self(Arc::new(handle))),
            Err(error) => Err(PyValueError::new_err(error.to_string())),
        }
    }

    /// Its bytes, for a pickle.
    fn encode(&self) -> [u8; roost_rdma::Handle::BYTES] {
        self.0.encode()
    }

    /// Bytes of the buffer.
    #[getter]
    fn size(&self) -> u64 {
        self.0.size
    }

    /// Its number at its owner.
    #[getter]
    fn region(&self) -> u64 {
        self.0.region
    }

    /// The proc that owns it.
    #[getter]
    fn owner(&self) -> u64 {
        self.0.owner.proc.get()
    }

    /// The life of that proc.
    #[getter]
    fn incarnation(&self) -> u32 {
        self.0.owner.incarnation.0
    }
}
