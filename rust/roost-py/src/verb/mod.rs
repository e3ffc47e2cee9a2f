//! `Verb`: one verb of one endpoint on one handle: `mesh.step.call_one`. This is the path that every call takes.
//!
//! | module | what it does |
//! |---|---|
//! | `class` | what Python calls |
//! | `sending` | one message to a mesh: its reply, its deadline, what became of it |
//! | `placing` | the frame, or the mail, for each proc |
//! | `done` | what a broadcast gives that has left |

mod class;
mod done;
mod placing;
mod sending;

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyList;

pub(crate) use self::done::Done;
use crate::endpoints::Endpoint;
use crate::node::Node;
use crate::payload::{Payload, from_serialize};
use crate::targets::Targets;

/// What a verb gives back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    CallOne,
    Call,
    Broadcast,
    Stream,
}

/// A verb, ready to be called.
#[pyclass(frozen, module = "roost._roost")]
pub struct Verb {
    node: Py<Node>,
    targets: Py<Targets>,
    endpoint: Arc<Endpoint>,
    mesh: Py<PyAny>,
    mode: Mode,
    timeout_ns: Option<i64>,
    /// Every rank lives in this very process.
    is_here: bool,
}

/// Pickled arguments.
enum Packed {
    /// The same for every rank.
    Same(Payload),
    /// One a rank.
    Each(Vec<Payload>),
}

impl Packed {
    fn from_python(packed: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(list) = packed.cast::<PyList>() {
            return Ok(Self::Each(
                list.iter()
                    .map(|item| from_serialize(&item))
                    .collect::<PyResult<_>>()?,
            ));
        }
        Ok(Self::Same(from_serialize(packed)?))
    }
}
