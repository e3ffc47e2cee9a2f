//! Values on their way: pickled bytes, and the large parts that travel beside them.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::hooks::Hooks;
use crate::plain;
use crate::segment::{Hold, SegmentMap, SegmentPart};

/// Bytes from this size on leave the pickle and travel as a part of their own (as `roost.serialize` has it).
const PART_BYTES_MIN: usize = 32 * 1024;

/// A pickled value with its parts, captured: whatever the sender does to its tensors afterwards, this stays as it is.
pub(crate) struct Payload {
    pub(crate) pickle: Py<PyBytes>,
    pub(crate) parts: Option<Vec<Part>>,
    /// The value itself, on its way within one process: plain builtins never change, so a copy would be the same.
    ready: Option<Py<PyAny>>,
}

/// One large part.
pub(crate) enum Part {
    /// Bytes that travel in the frame, or private memory of this process. `bytes` are nobody's to write, whoever has them.
    Inline(Py<PyAny>),
    /// A place in one of our segments, on its way out.
    Shared(Py<SegmentPart>),
    /// A place in another proc's segment, received: held until it is loaded or dropped.
    Held(Arc<Hold>),
}

impl Part {
    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        match self {
            Self::Inline(bytes) => Self::Inline(bytes.clone_ref(py)),
            Self::Shared(part) => Self::Shared(part.clone_ref(py)),
            Self::Held(hold) => Self::Held(Arc::clone(hold)),
        }
    }

    pub(crate) fn size(&self, py: Python<'_>) -> usize {
        match self {
            Self::Inline(bytes) => bytes.bind(py).len().unwrap_or(0),
            Self::Shared(part) => usize::try_from(part.get().length()).unwrap_or(usize::MAX),
            Self::Held(hold) => hold.length(),
        }
    }

    /// The same, with memory of its own where whoever gets it may write to it.
    fn apart(&self, py: Python<'_>) -> Self {
        match self {
            Self::Inline(bytes) if !self.is_constant(py) => match PyByteArray::from(bytes.bind(py)) {
                Ok(copied) => Self::Inline(copied.into_any().unbind()),
                Err(_) => self.clone_ref(py),
            },
            _ => self.clone_ref(py),
        }
    }

    /// Whether its receiver never writes to it.
    pub(crate) fn is_constant(&self, py: Python<'_>) -> bool {
        matches!(self, Self::Inline(bytes) if bytes.bind(py).is_exact_instance_of::<PyBytes>())
    }

    /// What was captured outside shared memory; nothing for any other part.
    pub(crate) fn inline<'a>(&'a self, py: Python<'a>) -> &'a [u8] {
        let Self::Inline(bytes) = self else { return &[] };
        let bytes = bytes.bind(py);
        if let Ok(bytes) = bytes.cast::<PyBytes>() {
            return bytes.as_bytes();
        }
        let Ok(bytes) = bytes.cast::<PyByteArray>() else {
            return &[];
        };
        // SAFETY: what was captured is known to nobody else, who might write to it or make it shorter.
        unsafe { bytes.as_bytes() }
    }

    /// The same for a receiver in this very process: its own to write.
    fn private(&self, py: Python<'_>) -> Self {
        match self {
            Self::Inline(bytes) => match bytes.bind(py).cast::<PyByteArray>() {
                Ok(bytes) => match PyByteArray::from(bytes) {
                    Ok(copied) => Self::Inline(copied.into_any().unbind()),
                    Err(_) => self.clone_ref(py),
                },
                Err(_) => Self::Inline(bytes.clone_ref(py)),
            },
            Self::Shared(part) => Self::Inline(PyByteArray::new(py, part.get().bytes()).into_any().unbind()),
            Self::Held(hold) => Self::Held(Arc::clone(hold)),
        }
    }
}

impl Payload {
    /// A payload without parts.
    pub(crate) fn plain(pickle: Py<PyBytes>) -> Self {
        Self {
            pickle,
            parts: None,
            ready: None,
        }
    }

    /// A plain value that stays in this process.
    pub(crate) fn ready(value: &Bound<'_, PyAny>) -> Self {
        let pickle = PyBytes::new(value.py(), b"").unbind();
        Self {
            pickle,
            parts: None,
            ready: Some(value.clone().unbind()),
        }
    }

    /// A pickle and what was taken out of it.
    pub(crate) fn with_parts(pickle: Py<PyBytes>, parts: Vec<Part>) -> Self {
        Self {
            pickle,
            parts: Some(parts),
            ready: None,
        }
    }

    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self {
            pickle: self.pickle.clone_ref(py),
            parts: self
                .parts
                .as_ref()
                .map(|parts| parts.iter().map(|part| part.clone_ref(py)).collect()),
            ready: self.ready.as_ref().map(|value| value.clone_ref(py)),
        }
    }

    /// A copy for one more receiver of what has come: what one of them writes is not seen by the others.
    pub(crate) fn apart(&self, py: Python<'_>) -> Self {
        Self {
            pickle: self.pickle.clone_ref(py),
            parts: self
                .parts
                .as_ref()
                .map(|parts| parts.iter().map(|part| part.apart(py)).collect()),
            ready: self.ready.as_ref().map(|value| value.clone_ref(py)),
        }
    }

    /// A copy for a receiver in this very process: large parts are its own to write.
    pub(crate) fn private(&self, py: Python<'_>) -> Self {
        Self {
            pickle: self.pickle.clone_ref(py),
            parts: self
                .parts
                .as_ref()
                .map(|parts| parts.iter().map(|part| part.private(py)).collect()),
            ready: self.ready.as_ref().map(|value| value.clone_ref(py)),
        }
    }

    /// Bytes of the pickle and of all parts, shared memory too.
    pub(crate) fn size(&self, py: Python<'_>) -> usize {
        let parts: usize = self.parts.iter().flatten().map(|part| part.size(py)).sum();
        self.pickle.as_bytes(py).len() + parts
    }

    /// Bytes that travel in the frame itself.
    pub(crate) fn inline_size(&self, py: Python<'_>) -> usize {
        let inline = self.parts.iter().flatten();
        let inline = inline.filter(|part| matches!(part, Part::Inline(_)));
        self.pickle.as_bytes(py).len() + inline.map(|part| part.size(py)).sum::<usize>()
    }

    /// Unpickle.
    pub(crate) fn load<'py>(&self, py: Python<'py>, hooks: &Hooks) -> PyResult<Bound<'py, PyAny>> {
        if let Some(value) = &self.ready {
            return Ok(value.bind(py).clone());
        }
        match &self.parts {
            None => match plain::decode(py, self.pickle.as_bytes(py)) {
                Some(value) => Ok(value),
                None => hooks.loads.bind(py).call1((&self.pickle,)),
            },
            Some(_) => hooks
                .loads_parts
                .bind(py)
                .call1((&self.pickle, self.buffers(py)?)),
        }
    }

    /// The parts as what `pickle.loads` takes for its buffers. None without parts.
    pub(crate) fn buffers<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyList>>> {
        let Some(parts) = &self.parts else { return Ok(None) };
        let buffers = PyList::empty(py);
        for part in parts {
            match part {
                Part::Inline(bytes) => buffers.append(bytes)?,
                Part::Shared(part) => buffers.append(part)?,
                Part::Held(hold) => buffers.append(Bound::new(py, SegmentMap::buffer(hold))?)?,
            }
        }
        Ok(Some(buffers))
    }
}

/// Pickle one value: plain builtins straight away, anything else through `roost.serialize`.
pub(crate) fn dump(
    py: Python<'_>,
    hooks: &Hooks,
    value: &Bound<'_, PyAny>,
    receiver: u64,
) -> PyResult<Payload> {
    if is_plain(value) {
        return dump_plain(py, hooks, value);
    }
    from_serialize(&hooks.dumps_parts.bind(py).call1((value, receiver))?)
}

/// Pickle what is known to be plain.
pub(crate) fn dump_plain(py: Python<'_>, hooks: &Hooks, value: &Bound<'_, PyAny>) -> PyResult<Payload> {
    let mut quick = Vec::with_capacity(64);
    if plain::encode(value, &mut quick) {
        return Ok(Payload::plain(PyBytes::new(py, &quick).unbind()));
    }
    let pickle = hooks.dumps.bind(py).call1((value, 5))?;
    Ok(Payload::plain(pickle.cast_into::<PyBytes>()?.unbind()))
}

/// What `roost.serialize.dumps` gives: bytes, or a pair of bytes and captured parts.
pub(crate) fn from_serialize(dumped: &Bound<'_, PyAny>) -> PyResult<Payload> {
    if let Ok(bytes) = dumped.cast_exact::<PyBytes>() {
        return Ok(Payload::plain(bytes.clone().unbind()));
    }
    let pair = dumped.cast::<PyTuple>()?;
    let pickle = pair.get_item(0)?.cast_into::<PyBytes>()?.unbind();
    let mut parts = Vec::new();
    for part in pair.get_item(1)?.try_iter()? {
        let part = part?;
        parts.push(match part.cast_exact::<SegmentPart>() {
            Ok(part) => Part::Shared(part.clone().unbind()),
            Err(_) => Part::Inline(part.unbind()),
        });
    }
    Ok(Payload::with_parts(pickle, parts))
}

/// A builtin value that pickles to itself and carries nothing that `roost.serialize` would treat specially.
#[inline]
pub(crate) fn is_plain(value: &Bound<'_, PyAny>) -> bool {
    value.is_none()
        || value.is_exact_instance_of::<PyInt>()
        || value
            .cast_exact::<PyString>()
            .is_ok_and(|text| text.len().is_ok_and(|length| length < PART_BYTES_MIN))
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyBool>()
        || value
            .cast_exact::<PyBytes>()
            .is_ok_and(|bytes| bytes.as_bytes().len() < PART_BYTES_MIN)
}

/// Whether every argument is plain.
#[inline]
pub(crate) fn all_plain(args: &Bound<'_, PyTuple>) -> bool {
    args.iter_borrowed().all(|arg| is_plain(&arg))
}
