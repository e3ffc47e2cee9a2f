//! The classes of the sender's side.

use std::os::fd::IntoRawFd;
use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList};

use super::SEGMENT_BYTES_MIN;
use super::buffer::Lent;
use super::memory::Source;
use super::pool::{Place, Pool, Way};
use super::segments::PoolLimits;

/// The segments that this process fills.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct SegmentPool {
    pool: Arc<Pool>,
    segment_bytes_min: usize,
}

#[pymethods]
impl SegmentPool {
    #[new]
    #[pyo3(signature = (
        *, bytes_max = 8 << 30, idle_bytes_max = 1 << 30, segment_bytes_min = SEGMENT_BYTES_MIN, segments_max = None,
    ))]
    fn new(
        bytes_max: usize,
        idle_bytes_max: usize,
        segment_bytes_min: usize,
        segments_max: Option<usize>,
    ) -> Self {
        Self {
            pool: Arc::new(Pool::new(PoolLimits {
                bytes_max,
                idle_bytes_max,
                segments_max: segments_max.unwrap_or_else(a_share_of_descriptors),
            })),
            segment_bytes_min,
        }
    }

    /// Copy buffers, so that their owner may change them: large ones into one segment, the others, or all
    /// when there is no memory for a segment, into a `bytearray`. Small `bytes` stay as they are; with `far`, where no
    /// receiver can map a segment, large ones too.
    #[pyo3(signature = (buffers, *, far = false))]
    fn capture<'py>(
        &self,
        py: Python<'py>,
        buffers: &Bound<'py, PyList>,
        far: bool,
    ) -> PyResult<Vec<Bound<'py, PyAny>>> {
        let buffers = buffers
            .iter()
            .map(|buffer| Ok((Lent::of(&buffer)?, constant(&buffer))))
            .collect::<PyResult<Vec<_>>>()?;
        let is_large = |(lent, constant): &&(Lent, Option<Bound<'_, PyBytes>>)| {
            lent.source.length >= self.segment_bytes_min && !(far && constant.is_some())
        };
        let large: Vec<Source> = buffers
            .iter()
            .filter(is_large)
            .map(|(lent, _)| lent.source)
            .collect();
        let places = if large.is_empty() {
            None
        } else {
            // SAFETY: `buffers` keeps what Python lends until the copies are made, and nothing of it lies in
            // an idle segment.
            py.detach(|| unsafe { self.pool.fill(&large) })
        };
        let mut places = places.unwrap_or_default().into_iter();
        let mut parts = Vec::with_capacity(buffers.len());
        for buffer in &buffers {
            let place = if is_large(&buffer) { places.next() } else { None };
            parts.push(match place {
                Some(place) => Bound::new(
                    py,
                    SegmentPart {
                        pool: self.pool.clone(),
                        place,
                    },
                )?
                .into_any(),
                None => match &buffer.1 {
                    Some(bytes) => bytes.clone().into_any(),
                    None => PyByteArray::new(py, buffer.0.bytes()).into_any(),
                },
            });
        }
        Ok(parts)
    }

    /// A receiver's answer to an offer; `ok=False` also when the offer could not be made.
    pub(crate) fn answered(&self, receiver: u64, segment: u64, ok: bool) {
        self.pool.answered(segment, receiver, ok);
    }

    /// A receiver let go of a part, or, with `retire`, says that the segment must never be filled again.
    pub(crate) fn released(&self, receiver: u64, segment: u64, generation: u32, retire: bool) {
        self.pool.released(segment, generation, receiver, retire);
    }

    /// A receiver ended.
    pub(crate) fn receiver_gone(&self, receiver: u64) {
        self.pool.receiver_gone(receiver);
    }

    /// Give back to the system what was idle for 30 s.
    pub(crate) fn trim(&self) {
        self.pool.trim();
    }

    /// The segments that were given up, as (receiver that maps it, segment): each is to be told.
    pub(crate) fn drain_forgotten(&self) -> Vec<(u64, u64)> {
        self.pool.drain_forgotten()
    }

    /// Bytes of all segments, and of the idle ones.
    fn bytes(&self) -> (usize, usize) {
        self.pool.bytes()
    }
}

/// A part of a message in a segment of this process. The segment is not filled again as long as this lives.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct SegmentPart {
    pool: Arc<Pool>,
    place: Place,
}

impl SegmentPart {
    /// What a message that names this part has to do before it may be sent to a receiver.
    pub(crate) fn way(&self, receiver: u64) -> Way {
        self.pool.way(self.place.segment, receiver)
    }

    /// The part's bytes, for a receiver that cannot map it.
    pub(crate) fn bytes(&self) -> &[u8] {
        let source = self.place.memory.source(self.place.offset, self.place.length);
        // SAFETY: this value keeps the segment from being filled again, so the bytes stay as they are.
        unsafe { std::slice::from_raw_parts(source.address, source.length) }
    }
}

#[pymethods]
impl SegmentPart {
    /// The segment's id.
    #[getter]
    pub(crate) fn segment(&self) -> u64 {
        self.place.segment
    }

    /// How often the segment was filled before.
    #[getter]
    pub(crate) fn generation(&self) -> u32 {
        self.place.generation
    }

    /// Where in the segment the part begins.
    #[getter]
    pub(crate) fn offset(&self) -> u64 {
        self.place.offset as u64
    }

    /// Bytes of the part.
    #[getter]
    pub(crate) fn length(&self) -> u64 {
        self.place.length as u64
    }

    /// Bytes of the whole segment, which an offer says.
    #[getter]
    pub(crate) fn segment_bytes(&self) -> u64 {
        self.place.memory.length() as u64
    }

    /// The part is being sent to a receiver, which will release it: once for each frame that names it.
    pub(crate) fn hold(&self, receiver: u64) {
        self.pool.hold(self.place.segment, receiver);
    }

    /// `"ready"`, `"wait"`, `"inline"`, or a descriptor to offer and close.
    #[pyo3(name = "way")]
    fn way_in_python<'py>(&self, py: Python<'py>, receiver: u64) -> PyResult<Bound<'py, PyAny>> {
        let word = match self.way(receiver) {
            Way::Ready => "ready",
            Way::Wait => "wait",
            Way::Inline => "inline",
            Way::Offer(file) => return Ok(file.into_raw_fd().into_pyobject(py)?.into_any()),
        };
        Ok(word.into_pyobject(py)?.into_any())
    }

    /// A copy of the part.
    fn tobytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.bytes())
    }
}

impl Drop for SegmentPart {
    fn drop(&mut self) {
        self.pool.done_writing(self.place.segment);
    }
}

/// A quarter of the descriptors that this process may have.
fn a_share_of_descriptors() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| {
        usize::try_from(limit / 4).unwrap_or(usize::MAX)
    })
}

/// The `bytes` that a buffer lends all of.
fn constant<'py>(buffer: &Bound<'py, PyAny>) -> Option<Bound<'py, PyBytes>> {
    let owner = buffer.getattr(intern!(buffer.py(), "obj")).ok()?;
    let bytes = owner.cast_into_exact::<PyBytes>().ok()?;
    (bytes.as_bytes().len() == buffer.len().ok()?).then_some(bytes)
}
