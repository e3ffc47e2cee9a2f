//! Frames that go, or have come, along the tree of hosts instead of over the connection of their session.

use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use roost_core::control::Bytes;
use roost_core::id::ProcId;

/// Whole frames of one session.
#[derive(Debug)]
pub(crate) struct Letter {
    /// The proc at the other end.
    pub(crate) proc: ProcId,
    /// The session's number.
    pub(crate) session: u64,
    /// The carrier that has brought them, or whose way back they go; none for what the root sends, and gets.
    pub(crate) carrier: Option<u64>,
    pub(crate) frames: Bytes,
}

/// Letters on their way between the event loop and the control thread.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct Letters(Mutex<Vec<Letter>>);

impl Letters {
    pub(crate) fn new(letters: Vec<Letter>) -> Self {
        Self(Mutex::new(letters))
    }

    /// All of them, for the first who asks.
    pub(crate) fn take(&self) -> Vec<Letter> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[pymethods]
impl Letters {
    fn __len__(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
