//! What Python calls on a verb.

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{PyTraverseError, PyVisit};

use super::{Mode, Packed, Verb};
use crate::node::Node;
use crate::payload::{Payload, all_plain, dump_plain};
use crate::targets::Targets;

#[pymethods]
impl Verb {
    #[classattr]
    const CALL_ONE: u8 = Mode::CallOne as u8;
    #[classattr]
    const CALL: u8 = Mode::Call as u8;
    #[classattr]
    const BROADCAST: u8 = Mode::Broadcast as u8;
    #[classattr]
    const STREAM: u8 = Mode::Stream as u8;

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.node)?;
        visit.call(&self.targets)?;
        // The handle keeps its verbs.
        visit.call(&self.mesh)
    }

    /// Args: the node, where to, the class's table of endpoints, the endpoint's name, the handle, the verb as a number, and
    /// the deadline of each call.
    #[new]
    fn new(
        node: Py<Node>,
        targets: Py<Targets>,
        endpoints: &Bound<'_, PyDict>,
        name: &str,
        mesh: Py<PyAny>,
        mode: u8,
        timeout_s: Option<f64>,
    ) -> PyResult<Self> {
        let mode = [Mode::CallOne, Mode::Call, Mode::Broadcast, Mode::Stream]
            .into_iter()
            .find(|known| *known as u8 == mode)
            .ok_or_else(|| PyValueError::new_err(format!("no verb has the number {mode}")))?;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "centuries of nanoseconds fit; longer saturates"
        )]
        let timeout_ns = timeout_s.map(|seconds| (seconds * 1e9) as i64);
        let own = node.get().lock().own;
        let is_here = targets.get().places.iter().all(|place| place.proc.get() == own);
        let endpoint = node.get().endpoints_of(endpoints)?.get(name);
        let endpoint = endpoint.ok_or_else(|| PyKeyError::new_err(format!("no endpoint {name}")))?;
        Ok(Self {
            node,
            targets,
            endpoint,
            mesh,
            mode,
            timeout_ns,
            is_here,
        })
    }

    /// Send, now.
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__(
        slf: &Bound<'_, Self>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Py<PyAny>> {
        let (py, verb) = (slf.py(), slf.get());
        let node = verb.node.get();
        node.check_process()?;
        let hooks = node.hooks()?;
        if !node.on_loop() {
            return hooks.elsewhere.call1(py, (slf, args, kwargs));
        }
        let count = args.len();
        let counted = kwargs.is_none() && verb.endpoint.positional.contains(&count);
        if counted && verb.mode != Mode::Stream && all_plain(args) {
            let payload = if verb.is_here {
                Payload::ready(args.as_any())
            } else {
                dump_plain(py, hooks, args.as_any())?
            };
            return verb.send(py, node, hooks, None, &Packed::Same(payload));
        }
        let (sink, args) = if verb.mode == Mode::Stream {
            (Some(args.get_item(0)?.unbind()), args.get_slice(1, count))
        } else {
            (None, args.clone())
        };
        let packed = Packed::from_python(&hooks.pack.bind(py).call1((slf, args, kwargs))?)?;
        verb.send(py, node, hooks, sink, &packed)
    }

    #[getter]
    fn endpoint(&self, py: Python<'_>) -> Py<PyAny> {
        self.endpoint.info.clone_ref(py)
    }

    #[getter]
    fn mesh(&self, py: Python<'_>) -> Py<PyAny> {
        self.mesh.clone_ref(py)
    }

    #[getter]
    fn targets(&self, py: Python<'_>) -> Py<Targets> {
        self.targets.clone_ref(py)
    }

    #[getter]
    fn is_broadcast(&self) -> bool {
        self.mode == Mode::Broadcast
    }

    #[getter]
    fn is_stream(&self) -> bool {
        self.mode == Mode::Stream
    }

    /// The reply of a call that another thread makes.
    fn new_sink(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.make_sink(py, self.node.get().hooks()?)
    }

    /// Send what another thread packed, on the loop's thread; `sink` is None for a broadcast.
    fn send_packed(
        &self,
        py: Python<'_>,
        sink: Option<Py<PyAny>>,
        packed: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let node = self.node.get();
        self.send(py, node, node.hooks()?, sink, &Packed::from_python(packed)?)
    }

    /// The procs that the message goes to.
    #[getter]
    fn procs(&self) -> Vec<u64> {
        self.targets
            .get()
            .places
            .iter()
            .map(|place| place.proc.get())
            .collect()
    }
}
