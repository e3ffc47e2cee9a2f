//! What Python sees of a received part: an object with the buffer protocol, writable and private.

use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::map::Hold;
use super::memory::{Source, Target};
use super::private::{PrivateBuffer, PrivatePool};

/// A large part of a message: writable memory that nobody else sees.
///
/// It lends its memory to numpy, torch and `memoryview`, which keep it alive. Which memory that is, is
/// settled when it is first lent: the private mapping of the segment, or a copy.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct SharedBuffer {
    state: Mutex<State>,
    length: usize,
}

enum State {
    /// Nobody has looked yet.
    Received(Arc<Hold>),
    /// The private mapping, claimed.
    Mapped(Arc<Hold>, Address),
    /// Memory of its own.
    Copied(PrivateBuffer),
    /// Being settled; seen by nobody, since the lock is held meanwhile.
    Settling,
}

struct Address(*mut u8);

// SAFETY: an address in a mapping that the hold beside it keeps; reading and writing there is Python's
// business, as with any buffer.
unsafe impl Send for Address {}

impl SharedBuffer {
    /// A part of a segment. Further buffers of the same hold get copies.
    pub(super) fn received(hold: Arc<Hold>) -> Self {
        let length = hold.length();
        Self {
            state: Mutex::new(State::Received(hold)),
            length,
        }
    }

    /// A copy of memory of this process, for a message that stays in it.
    ///
    /// # Safety
    ///
    /// As for [`super::memory::copy`].
    pub(super) unsafe fn copy_of(pool: &Arc<PrivatePool>, source: Source) -> std::io::Result<Self> {
        // SAFETY: the caller vouches for the source.
        let copied = unsafe { pool.copy_of(source) }?;
        Ok(Self {
            state: Mutex::new(State::Copied(copied)),
            length: source.length,
        })
    }

    /// Memory that was filled here.
    pub(super) fn owned(buffer: PrivateBuffer, length: usize) -> Self {
        Self {
            state: Mutex::new(State::Copied(buffer)),
            length,
        }
    }

    fn settle(&self) -> PyResult<*mut u8> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = match std::mem::replace(&mut *state, State::Settling) {
            State::Received(hold) => match hold.claim() {
                Some(address) => State::Mapped(hold, Address(address)),
                // SAFETY: the hold keeps the part mapped and unchanged for the call, and pooled memory is
                // another mapping.
                None => match unsafe { hold.private_pool().copy_of(hold.source()) } {
                    Ok(copied) => State::Copied(copied),
                    Err(error) => {
                        *state = State::Received(hold);
                        return Err(PyMemoryError::new_err(format!(
                            "no memory for a part of {} bytes: {error}",
                            self.length
                        )));
                    }
                },
            },
            settled => settled,
        };
        match &*state {
            State::Mapped(_, address) => Ok(address.0),
            State::Copied(copied) => Ok(copied.pointer()),
            State::Received(_) | State::Settling => {
                Err(PyBufferError::new_err("a part that was never settled"))
            }
        }
    }
}

#[pymethods]
impl SharedBuffer {
    /// The part as it was sent, as bytes: one copy out of shared memory.
    fn original_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let hold = match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Received(hold) | State::Mapped(hold, _) => Some(hold.clone()),
            State::Copied(_) | State::Settling => None,
        };
        match hold {
            // SAFETY: the hold keeps the part mapped and unchanged until the copy is made.
            Some(hold) => unsafe { bytes_of(py, hold.source()) },
            // SAFETY: the copy belongs to this object, which lives for the call.
            None => unsafe {
                bytes_of(
                    py,
                    Source {
                        address: self.settle()?,
                        length: self.length,
                    },
                )
            },
        }
    }

    fn __len__(&self) -> usize {
        self.length
    }

    /// Whether its memory is a mapping of the segment rather than a copy.
    #[getter]
    fn is_mapped(&self) -> bool {
        matches!(
            &*self.state.lock().unwrap_or_else(PoisonError::into_inner),
            State::Mapped(..)
        )
    }

    /// # Safety
    ///
    /// Called by the interpreter, which gives a `view` to fill.
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let address = slf.get().settle()?;
        let length = isize::try_from(slf.get().length).map_err(PyBufferError::new_err)?;
        // SAFETY: `view` comes from the interpreter. The memory stays where it is as long as this object
        // lives, and the view keeps a reference to it. It may be written: no one else sees it.
        let filled = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), address.cast(), length, 0, flags) };
        if filled == 0 {
            Ok(())
        } else {
            Err(PyErr::fetch(slf.py()))
        }
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        if let State::Mapped(hold, _) = self.state.get_mut().unwrap_or_else(PoisonError::into_inner) {
            hold.give_up();
        }
    }
}

/// New bytes with a copy of some memory; the interpreter may run other threads meanwhile.
///
/// # Safety
///
/// As for [`super::memory::copy`].
unsafe fn bytes_of(py: Python<'_>, source: Source) -> PyResult<Bound<'_, PyBytes>> {
    let made = NewBytes::of(py, source.length)?;
    let target = Target::new(made.address);
    // SAFETY: the caller vouches for the source; the target is new, of that length, and seen by nobody yet.
    py.detach(move || unsafe { target.copy_from(source) });
    Ok(made.into_python().into_bound(py))
}

/// Python's `bytes`, not filled yet: nobody else knows them.
pub(crate) struct NewBytes {
    bytes: Py<PyBytes>,
    address: *mut u8,
    length: usize,
}

// SAFETY: the address lies in the object beside it, which stays where it is, and only this value writes there.
unsafe impl Send for NewBytes {}
// SAFETY: as above; whoever shares it cannot write.
unsafe impl Sync for NewBytes {}

impl NewBytes {
    /// Room for so many bytes, which takes memory only as it is filled.
    pub(crate) fn new(length: u64) -> std::io::Result<Self> {
        let made = usize::try_from(length)
            .ok()
            .and_then(|length| Python::attach(|py| Self::of(py, length)).ok());
        let made = made.ok_or(std::io::ErrorKind::OutOfMemory)?;
        Target::new(made.address).advise_huge(made.length);
        Ok(made)
    }

    fn of(py: Python<'_>, length: usize) -> PyResult<Self> {
        let size = isize::try_from(length).map_err(PyBufferError::new_err)?;
        // SAFETY: without a source, the interpreter gives a new object of that length with unset bytes, or an error.
        let made = unsafe {
            Bound::from_owned_ptr_or_err(py, ffi::PyBytes_FromStringAndSize(std::ptr::null(), size))
        }?;
        // SAFETY: `made` is bytes.
        let address = unsafe { ffi::PyBytes_AsString(made.as_ptr()) }.cast();
        Ok(Self {
            bytes: made.cast_into::<PyBytes>()?.unbind(),
            address,
            length,
        })
    }

    /// To be filled.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the object has so many bytes there, which stay as long as this value; nobody else looks at them yet. What
        // they are before they are filled is the allocator's business, and nobody reads it.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.length) }
    }

    /// All were filled.
    pub(crate) fn into_python(self) -> Py<PyBytes> {
        self.bytes
    }
}

/// Memory that Python lends, until this is dropped.
pub(super) struct Lent {
    pub(super) source: Source,
    _buffer: PyBuffer<u8>,
}

impl Lent {
    pub(super) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::<u8>::get(object)?;
        if !buffer.is_c_contiguous() {
            return Err(PyBufferError::new_err("a part that is not contiguous"));
        }
        let source = Source {
            address: buffer.buf_ptr().cast_const().cast(),
            length: buffer.len_bytes(),
        };
        Ok(Self {
            source,
            _buffer: buffer,
        })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        if self.source.length == 0 {
            return &[];
        }
        // SAFETY: the buffer is lent for at least as long as `self` is borrowed, and the GIL keeps others
        // from writing to it.
        unsafe { std::slice::from_raw_parts(self.source.address, self.source.length) }
    }
}
