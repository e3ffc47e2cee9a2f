//! The Python functions that the data lane calls, looked up once.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyDict, PyString};
use pyo3::{PyTraverseError, PyVisit};

use crate::segment::SegmentMap;

/// Methods of the node, bound once.
pub(crate) struct Own {
    pub(crate) flush: Py<PyAny>,
    pub(crate) readable: Py<PyAny>,
    pub(crate) writable: Py<PyAny>,
    pub(crate) grant_owed: Py<PyAny>,
    pub(crate) relay: Py<PyAny>,
}

/// What Python lends to the data lane. Every one is called on the loop's own thread, with no lock held.
pub(crate) struct Hooks {
    /// `pickle.dumps` and `pickle.loads`.
    pub(crate) dumps: Py<PyAny>,
    pub(crate) loads: Py<PyAny>,
    /// `roost.serialize`'s, for values with parts: `dumps(value, receiving proc) -> bytes | (bytes, parts)`, `loads(bytes, buffers)`.
    pub(crate) dumps_parts: Py<PyAny>,
    pub(crate) loads_parts: Py<PyAny>,
    /// Shared memory: what is received, what is sent.
    pub(crate) map: Py<SegmentMap>,
    /// `offer(proc, segment, bytes, fd)`: hand a segment's descriptor to a receiver.
    pub(crate) offer: Py<PyAny>,
    /// `released()`: parts of received segments were let go.
    pub(crate) released: Py<PyAny>,
    /// The classes `Reply` and `GatheredReply`.
    pub(crate) reply: Py<PyAny>,
    pub(crate) gathered_reply: Py<PyAny>,
    /// `pack(verb, args, kwargs) -> (payload, has keywords) | [(payload, has keywords) by rank]`: the careful way.
    pub(crate) pack: Py<PyAny>,
    /// `begin(reply, verb)`: prepares the reply of a call to a mesh.
    pub(crate) begin: Py<PyAny>,
    /// `elsewhere(verb, args, kwargs)`: a verb used on another thread than the loop's.
    pub(crate) elsewhere: Py<PyAny>,
    /// `errored(reply or sink, rank or -1, status, payload, verb's note)`: an answer that is not a value.
    pub(crate) errored: Py<PyAny>,
    /// `unloadable(reply, rank or -1, exception)`: a value that did not unpickle here.
    pub(crate) unloadable: Py<PyAny>,
    /// `refused(sink or None, verb, [(proc, ranks)])`: procs of the mesh that are gone.
    pub(crate) refused: Py<PyAny>,
    /// `stopped(mesh)`: raises, since this process stopped that mesh of its own.
    pub(crate) stopped: Py<PyAny>,
    /// `bounded(reply, call, deadline in ns)`: this call has a deadline.
    pub(crate) bounded: Py<PyAny>,
    /// `handling.get`: the message that the running endpoint handles.
    pub(crate) handling: Py<PyAny>,
    /// `connect(proc)`: a message waits for a connection.
    pub(crate) connect: Py<PyAny>,
    /// `system(message, runs)`: a message for Roost itself.
    pub(crate) system: Py<PyAny>,
    /// `work()`: one more worker is wanted.
    pub(crate) work: Py<PyAny>,
    /// `cancelled(runner, message)`: a caller cancelled a running message.
    pub(crate) cancelled: Py<PyAny>,
    /// `undelivered(sender, endpoint, reason)`: a broadcast that its actor did not take.
    pub(crate) undelivered: Py<PyAny>,
    /// `port_item(port, sender, what, pickle, its buffers or None)`.
    pub(crate) port_item: Py<PyAny>,
    /// `broken(proc, text)`: the connection carries bytes that are no frames of ours.
    pub(crate) broken: Py<PyAny>,
    /// `port_taken(port, receiver's proc, total)`: the receiver of a port took so many values.
    pub(crate) port_taken: Py<PyAny>,
    /// `port_closed(port, receiver's proc)`: the receiver of a port takes no more.
    pub(crate) port_closed: Py<PyAny>,
    /// `room(mesh) -> awaitable`: what a broadcast that had to be queued gives.
    pub(crate) room: Py<PyAny>,
    /// What a broadcast that has left gives: an awaitable that is done.
    pub(crate) sent: Py<PyAny>,
    /// `too_large(size)`: raises.
    pub(crate) too_large: Py<PyAny>,
    /// The node's own methods, until it is closed: they hold the node, and it would never be freed.
    own: Mutex<Option<Own>>,
    /// The loop's methods.
    pub(crate) loop_: Py<PyAny>,
    pub(crate) call_soon: Py<PyAny>,
    pub(crate) create_future: Py<PyAny>,
    reply_keywords: Py<PyDict>,
    call_name: Py<PyString>,
}

impl Hooks {
    /// Take the functions out of a dict by their names.
    pub(crate) fn from_dict(hooks: &Bound<'_, PyDict>) -> PyResult<Self> {
        let get = |name: &str| -> PyResult<Py<PyAny>> {
            hooks
                .get_item(name)?
                .map(Bound::unbind)
                .ok_or_else(|| pyo3::exceptions::PyKeyError::new_err(format!("hook {name} is missing")))
        };
        let py = hooks.py();
        let loop_ = get("loop")?;
        Ok(Self {
            dumps: get("dumps")?,
            loads: get("loads")?,
            dumps_parts: get("dumps_parts")?,
            loads_parts: get("loads_parts")?,
            map: get("map")?.bind(py).cast::<SegmentMap>()?.clone().unbind(),
            offer: get("offer")?,
            released: get("released")?,
            reply: get("reply")?,
            gathered_reply: get("gathered_reply")?,
            pack: get("pack")?,
            begin: get("begin")?,
            elsewhere: get("elsewhere")?,
            errored: get("errored")?,
            unloadable: get("unloadable")?,
            refused: get("refused")?,
            bounded: get("bounded")?,
            stopped: get("stopped")?,
            undelivered: get("undelivered")?,
            handling: get("handling")?,
            connect: get("connect")?,
            system: get("system")?,
            work: get("work")?,
            cancelled: get("cancelled")?,
            port_item: get("port_item")?,
            broken: get("broken")?,
            port_taken: get("port_taken")?,
            port_closed: get("port_closed")?,
            room: get("room")?,
            sent: get("sent")?,
            too_large: get("too_large")?,
            own: Mutex::new(Some(Own {
                flush: get("flush")?,
                readable: get("readable")?,
                writable: get("writable")?,
                grant_owed: get("grant_owed")?,
                relay: get("relay")?,
            })),
            reply_keywords: [("loop", loop_.clone_ref(py))].into_py_dict(py)?.unbind(),
            call_name: PyString::intern(py, "_call").unbind(),
            call_soon: loop_.getattr(py, "call_soon")?,
            create_future: loop_.getattr(py, "create_future")?,
            loop_,
        })
    }

    /// One of the node's own methods; None once it is closed.
    pub(crate) fn own(&self, py: Python<'_>, which: impl FnOnce(&Own) -> &Py<PyAny>) -> Option<Py<PyAny>> {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        own.as_ref().map(|own| which(own).clone_ref(py))
    }

    /// The node is closed.
    pub(crate) fn close(&self) {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(own);
    }

    /// Show the garbage collector what is held here: the functions belong to objects that hold the node.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.map)?;
        let functions = [
            &self.dumps,
            &self.loads,
            &self.dumps_parts,
            &self.loads_parts,
            &self.offer,
            &self.released,
            &self.reply,
            &self.gathered_reply,
            &self.pack,
            &self.begin,
            &self.elsewhere,
            &self.errored,
            &self.unloadable,
            &self.refused,
            &self.stopped,
            &self.bounded,
            &self.handling,
            &self.connect,
            &self.system,
            &self.work,
            &self.cancelled,
            &self.undelivered,
            &self.port_item,
            &self.broken,
            &self.port_taken,
            &self.port_closed,
            &self.room,
            &self.sent,
            &self.too_large,
            &self.loop_,
            &self.call_soon,
            &self.create_future,
        ];
        functions
            .into_iter()
            .try_for_each(|function| visit.call(function))
    }

    /// A reply to one rank's call.
    pub(crate) fn new_reply(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self
            .reply
            .bind(py)
            .call((), Some(self.reply_keywords.bind(py)))?
            .unbind())
    }

    /// A reply to a mesh's call.
    pub(crate) fn new_gathered_reply(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self
            .gathered_reply
            .bind(py)
            .call((), Some(self.reply_keywords.bind(py)))?
            .unbind())
    }

    /// Tell a reply which call it is, so that it can be cancelled.
    pub(crate) fn set_call(&self, py: Python<'_>, sink: &Py<PyAny>, call: u64) -> PyResult<()> {
        sink.bind(py).setattr(self.call_name.bind(py), call)
    }
}
