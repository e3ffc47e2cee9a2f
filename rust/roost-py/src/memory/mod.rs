//! One-sided memory, as Python sees it: `roost_rdma` does the work, without Python.
//!
//! One engine a process, made on first use. What is done is told by an eventfd that Python's loop watches; there, with the
//! interpreter's lock held, what kept memory alive is let go of.
//!
//! | file | what it is |
//! |---|---|
//! | `engine` | the class `Engine` |
//! | `handle` | the class `Handle` |
//! | `parts` | the class `Parts`: what one transfer consists of |
//! | `shared` | the class `SharedMemory`, and where a buffer of Python's lies |
//! | `links` | carries what the control thread tells of links to the engine, and asks it for them |
//! | `lane` | one connection of a link |

mod engine;
mod handle;
mod lane;
mod links;
mod parts;
mod shared;

use pyo3::prelude::*;

/// Add what this module publishes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<engine::Engine>()?;
    module.add_class::<handle::Handle>()?;
    module.add_class::<parts::Parts>()?;
    module.add_class::<shared::SharedMemory>()?;
    module.add_function(wrap_pyfunction!(shared::buffer_address, module)?)
}
