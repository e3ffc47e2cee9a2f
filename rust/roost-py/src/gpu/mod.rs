//! GPUs, as Python sees them: `roost_hip` does the work, and opens the vendors' libraries at first use.
//!
//! | file | what it is |
//! |---|---|
//! | `block` | the class `DeviceBlock`: memory of a device, for the self test |
//! | `devices` | which GPUs and which libraries there are |
//! | `exporter` | what one-sided memory asks of a GPU's driver |
//! | `group` | the class `DeviceGroup`: collectives |
//! | `host_group` | the class `HostGroup`: reductions on the CPU, between ranks of one host |
//! | `kernels` | the class `DeviceKernels` |

mod block;
mod devices;
mod exporter;
mod group;
mod host_group;
mod kernels;

use std::path::PathBuf;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use roost_hip::library::Search;
use roost_hip::{Choice, Gpu, GpuError};

pub(crate) use exporter::exporter;

/// Add what this module publishes.
pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<block::DeviceBlock>()?;
    module.add_class::<group::DeviceGroup>()?;
    module.add_class::<host_group::HostGroup>()?;
    module.add_class::<kernels::DeviceKernels>()?;
    module.add_function(wrap_pyfunction!(devices::gpu_devices, module)?)?;
    module.add_function(wrap_pyfunction!(devices::gpu_libraries, module)?)?;
    module.add_function(wrap_pyfunction!(kernels::host_checksum, module)?)
}

/// Which GPUs the user wants, and where the libraries of wheels lie.
pub(crate) type Wanted = (String, Vec<PathBuf>);

fn choice(wanted: Wanted) -> PyResult<(Choice, Search)> {
    let choice = Choice::parse(&wanted.0).map_err(|error| raised(&error))?;
    Ok((choice, Search { folders: wanted.1 }))
}

fn open(wanted: Wanted) -> PyResult<Gpu> {
    let (choice, search) = choice(wanted)?;
    Gpu::open(choice, &search).map_err(|error| raised(&error))
}

/// A GPU's error as Python's.
fn raised(error: &GpuError) -> PyErr {
    let text = error.to_string();
    match error {
        GpuError::Unavailable { .. } | GpuError::MissingFunction { .. } => unavailable(text),
        GpuError::Refused { .. } | GpuError::OutOfRange { .. } => PyValueError::new_err(text),
        _ => PyRuntimeError::new_err(text),
    }
}

fn unavailable(text: String) -> PyErr {
    Python::attach(|py| {
        let class = py
            .import("roost.errors")
            .and_then(|errors| errors.getattr("Unavailable"));
        match class.and_then(|class| class.call1((text,))) {
            Ok(error) => PyErr::from_value(error),
            Err(error) => error,
        }
    })
}
