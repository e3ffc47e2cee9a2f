//! Memory that is made to be shared, and where memory lies that others have made.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyMemoryError;
use pyo3::ffi;
use pyo3::prelude::*;
use roost_rdma::Segment;

/// What `roost.rdma.empty` gives a view of.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct SharedMemory {
    /// Of whole pages.
    segment: Arc<Segment>,
    size: isize,
}

#[pymethods]
impl SharedMemory {
    #[new]
    fn new(py: Python<'_>, size: usize) -> PyResult<Self> {
        let bytes = isize::try_from(size).map_err(PyMemoryError::new_err)?;
        match py.detach(|| Segment::empty(size)) {
            Ok(segment) => Ok(Self { segment, size: bytes }),
            Err(error) => Err(PyMemoryError::new_err(format!(
                "no shared memory of {size} bytes: {error}"
            ))),
        }
    }

    /// # Safety
    ///
    /// Called by the interpreter, which gives a `view` to fill.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let Self { segment, size } = slf.get();
        let address = std::ptr::with_exposed_provenance_mut(segment.address());
        // SAFETY: `view` comes from the interpreter. The segment is mapped as long as this object lives, and the view keeps a
        // reference to it.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address, *size, 0, flags) };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

/// The address of the first element of what lends a buffer, valid as long as that is lent.
#[pyfunction]
pub(crate) fn buffer_address(view: &Bound<'_, PyAny>) -> PyResult<usize> {
    let buffer = PyUntypedBuffer::get(view)?;
    Ok(buffer.buf_ptr().expose_provenance())
}
