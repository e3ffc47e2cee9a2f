//! `Done`: what a broadcast gives that has left.

use pyo3::prelude::*;

/// The awaitable of a broadcast that has left: done.
#[pyclass(frozen, module = "roost._roost")]
pub struct Done;

#[pymethods]
impl Done {
    #[new]
    fn new() -> Self {
        Self
    }

    fn __await__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[expect(clippy::unused_self, reason = "an iterator that ends at once")]
    fn __next__(&self) -> Option<()> {
        None
    }
}
