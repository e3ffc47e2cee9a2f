//! The Python face of Roost: the only crate that names `pyo3`.
//!
//! | module | what it is |
//! |---|---|
//! | `control` | the control thread: starts, watches and stops procs; never takes the GIL |
//! | `node` | the data lane of one process, driven on the event loop's own thread |
//! | `segment` | pooled shared memory for large parts |

use pyo3::prelude::*;

/// The extension module `roost._roost`.
#[pymodule]
fn _roost(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    Ok(())
}
