//! The classes of the receiver's side.

use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;

use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyList};

use super::SEGMENT_BYTES_MIN;
use super::buffer::{Lent, SharedBuffer};
use super::map::{Hold, Map, PlaceError, Release};
use super::private::PrivateBuffer;

/// The segments of other processes that this one maps.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct SegmentMap {
    map: Arc<Map>,
}

impl SegmentMap {
    /// Take in one part that a frame names, when the frame is read: dropping it releases the part.
    ///
    /// # Errors
    ///
    /// When no sound sender would name it so: the connection is then broken.
    pub(crate) fn accept(
        &self,
        segment: u64,
        generation: u32,
        offset: u64,
        length: u64,
    ) -> Result<Arc<Hold>, PlaceError> {
        self.map.accept(segment, generation, offset, length).map(Arc::new)
    }

    /// Memory for a part that comes in pieces.
    pub(crate) fn private(&self, length: u64) -> std::io::Result<PrivateBuffer> {
        let length = usize::try_from(length).map_err(|_| std::io::ErrorKind::OutOfMemory)?;
        self.map.private.room(length)
    }

    /// The buffer of such a part, which is whole.
    pub(crate) fn owned(buffer: PrivateBuffer, length: u64) -> SharedBuffer {
        SharedBuffer::owned(buffer, usize::try_from(length).unwrap_or(usize::MAX))
    }

    /// A private buffer of a part that was taken in; each actor that gets the message has one of its own.
    pub(crate) fn buffer(hold: &Arc<Hold>) -> SharedBuffer {
        SharedBuffer::received(hold.clone())
    }
}

#[pymethods]
impl SegmentMap {
    #[new]
    #[pyo3(signature = (*, kept_bytes_max = 4 << 30))]
    fn new(kept_bytes_max: usize) -> Self {
        Self {
            map: Arc::new(Map::new(kept_bytes_max)),
        }
    }

    /// Map an offered segment and close its descriptor, whatever comes of it.
    ///
    /// Raises `OSError` when it cannot be mapped; the sender is then told so and sends bytes.
    pub(crate) fn add(&self, sender: u64, segment: u64, size: usize, fd: i32) -> PyResult<()> {
        if fd < 0 {
            return Err(PyValueError::new_err(format!("{fd} is no descriptor")));
        }
        // SAFETY: the caller hands over a descriptor that it took out of a control message and that nobody
        // else knows.
        let file = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(self.map.add(sender, segment, size, &file)?)
    }

    /// A private, writable buffer of a part.
    ///
    /// Raises `ValueError` when the segment or the place in it does not exist.
    fn view(&self, segment: u64, generation: u32, offset: u64, length: u64) -> PyResult<SharedBuffer> {
        let hold = self
            .accept(segment, generation, offset, length)
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(Self::buffer(&hold))
    }

    /// The sender gave a segment up.
    pub(crate) fn forget(&self, segment: u64) {
        self.map.forget(segment);
    }

    /// A sender ended.
    pub(crate) fn sender_gone(&self, sender: u64) {
        self.map.sender_gone(sender);
    }

    /// To be called before every fork: what the child will see must never be filled again.
    pub(crate) fn before_fork(&self) {
        self.map.before_fork();
    }

    /// Whether there is something to drain.
    pub(crate) fn has_released(&self) -> bool {
        self.map.has_released()
    }

    /// What the senders are to be told, in order: (sender, segment, generation, retire).
    fn drain_released(&self) -> Vec<(u64, u64, u32, bool)> {
        let tell = |release: Release| {
            (
                release.sender,
                release.segment,
                release.generation,
                release.retire,
            )
        };
        self.map.drain_released().into_iter().map(tell).collect()
    }

    /// Private copies of buffers, for a message that stays in this process.
    fn copies<'py>(&self, py: Python<'py>, buffers: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyAny>>> {
        buffers
            .iter()
            .map(|buffer| self.copy(py, &Lent::of(&buffer)?))
            .collect()
    }

    /// Mapped segments, and bytes that views of them keep.
    fn figures(&self) -> (usize, usize) {
        self.map.figures()
    }
}

impl SegmentMap {
    fn copy<'py>(&self, py: Python<'py>, lent: &Lent) -> PyResult<Bound<'py, PyAny>> {
        if lent.source.length < SEGMENT_BYTES_MIN {
            return Ok(PyByteArray::new(py, lent.bytes()).into_any());
        }
        // SAFETY: `lent` keeps what Python lends until the copy is made, and nothing of it is idle pooled
        // memory.
        let copied = py.detach(|| unsafe { SharedBuffer::copy_of(&self.map.private, lent.source) });
        let copied = copied.map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        Ok(Bound::new(py, copied)?.into_any())
    }
}
