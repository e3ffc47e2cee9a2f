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
    pub(crate) tick: Py<PyAny>,
}

/// One list makes the struct, takes its functions out of Python's object, and shows them to the garbage collector.
macro_rules! hooks {
    ($($name:ident)*) => {
        /// What Python lends to the data lane: the members of the protocol `Hooks` in `python/roost/hooks.py`, which says what
        /// each is given and gives. Every one is called on the loop's own thread, with no lock held.
        pub(crate) struct Hooks {
            $(pub(crate) $name: Py<PyAny>,)*
            /// Shared memory that others sent.
            pub(crate) map: Py<SegmentMap>,
            /// The node's own methods, until it is closed: they hold the node, and it would never be freed.
            own: Mutex<Option<Own>>,
            pub(crate) event_loop: Py<PyAny>,
            pub(crate) call_soon: Py<PyAny>,
            pub(crate) create_future: Py<PyAny>,
            reply_keywords: Py<PyDict>,
            call_name: Py<PyString>,
        }

        impl Hooks {
            /// Take the functions out of Python's object by their names, and the node's own out of the node.
            pub(crate) fn new(hooks: &Bound<'_, PyAny>, node: &Bound<'_, PyAny>) -> PyResult<Self> {
                let py = hooks.py();
                let get = |name| hooks.getattr(name).map(Bound::unbind);
                let own = |name| node.getattr(name).map(Bound::unbind);
                let event_loop = get("loop")?;
                Ok(Self {
                    $($name: get(stringify!($name))?,)*
                    map: hooks.getattr("map")?.cast::<SegmentMap>()?.clone().unbind(),
                    own: Mutex::new(Some(Own {
                        flush: own("flush")?,
                        readable: own("readable")?,
                        writable: own("writable")?,
                        grant_owed: own("grant_owed")?,
                        relay: own("relay")?,
                        tick: own("tick")?,
                    })),
                    reply_keywords: [("loop", event_loop.clone_ref(py))].into_py_dict(py)?.unbind(),
                    call_name: PyString::intern(py, "_call").unbind(),
                    call_soon: event_loop.getattr(py, "call_soon")?,
                    create_future: event_loop.getattr(py, "create_future")?,
                    event_loop,
                })
            }

            /// Show the garbage collector what is held here: the functions belong to objects that hold the node.
            pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
                visit.call(&self.map)?;
                [$(&self.$name,)* &self.event_loop, &self.call_soon, &self.create_future]
                    .into_iter()
                    .try_for_each(|function| visit.call(function))
            }
        }

        /// The names of the hooks: a test holds the protocol against them.
        pub(crate) const NAMES: &[&str] = &["loop", "map", $(stringify!($name)),*];
    };
}

hooks! {
    dumps loads dumps_parts loads_parts
    offer released
    reply gathered_reply begin bounded errored dropped unloadable refused
    pack elsewhere handling stopped too_large unsendable unsent room sent
    connect broken redial post session_lost system
    work say_news cancelled suspect undelivered
    port_item port_taken port_closed
}

impl Hooks {
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
