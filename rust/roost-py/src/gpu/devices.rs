//! Which GPUs and which libraries there are, for `roost doctor` and whoever chooses between GPU and CPU.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use roost_hip::library::Search;
use roost_hip::platform::Gpu;
use roost_hip::rccl::Collectives;
use roost_hip::{GpuError, Platform};

use super::{Wanted, choice, raised};

/// The platform's name and its devices, each as a dict: `number`, `name`, `architecture`, `pci`.
///
/// No device is touched by that.
#[pyfunction]
pub(super) fn gpu_devices(py: Python<'_>, wanted: Wanted) -> PyResult<(String, Vec<Bound<'_, PyDict>>)> {
    let gpu = py.detach(|| super::open(wanted))?;
    let count = gpu.device_count().map_err(|error| raised(&error))?;
    let devices = (0..count)
        .map(|number| device(py, &gpu, number))
        .collect::<PyResult<_>>()?;
    Ok((gpu.platform().to_string(), devices))
}

fn device<'py>(py: Python<'py>, gpu: &Gpu, number: i32) -> PyResult<Bound<'py, PyDict>> {
    let device = gpu.device(number).map_err(|error| raised(&error))?;
    let said = |answer: Result<String, GpuError>| answer.map_err(|error| raised(&error));
    let found = PyDict::new(py);
    found.set_item("number", number)?;
    found.set_item("name", said(device.name())?)?;
    found.set_item("architecture", said(device.architecture())?)?;
    found.set_item("pci", said(device.pci_address())?)?;
    Ok(found)
}

/// What was found of the vendors' libraries: for each, its name, its file or None, and what there is to say of it.
#[pyfunction]
pub(super) fn gpu_libraries(
    py: Python<'_>,
    wanted: Wanted,
) -> PyResult<Vec<(String, Option<String>, String)>> {
    let (wanted, search) = choice(wanted)?;
    let platforms: &[Platform] = match &wanted {
        roost_hip::Choice::None => &[],
        roost_hip::Choice::Only(platform) => std::slice::from_ref(platform),
        roost_hip::Choice::Detect => &[Platform::Rocm, Platform::Cuda],
    };
    Ok(py.detach(|| {
        let of_one = |platform: &Platform| [runtime(*platform, &search), collectives(*platform, &search)];
        platforms.iter().flat_map(of_one).collect()
    }))
}

type Said = (String, Option<String>, String);

fn runtime(platform: Platform, search: &Search) -> Said {
    let name = match platform {
        Platform::Rocm => "HIP",
        Platform::Cuda => "CUDA",
    };
    match Gpu::load(platform, search) {
        Ok(api) => {
            let devices = match api.device_count() {
                Ok(count) => format!("{count} devices"),
                Err(error) => error.to_string(),
            };
            let copies = api.copies().map_or(String::new(), |copies| format!("; {copies}"));
            let path = api.library().display().to_string();
            (name.to_owned(), Some(path), format!("{devices}{copies}"))
        }
        Err(tried) => (name.to_owned(), None, tried.join("; ")),
    }
}

fn collectives(platform: Platform, search: &Search) -> Said {
    let name = match platform {
        Platform::Rocm => "RCCL",
        Platform::Cuda => "NCCL",
    };
    match Collectives::open(platform, search) {
        Ok(library) => {
            let copies = library
                .copies()
                .map_or(String::new(), |copies| format!("; {copies}"));
            let path = library.library().display().to_string();
            (
                name.to_owned(),
                Some(path),
                format!("version {}{copies}", library.version()),
            )
        }
        Err(error) => (name.to_owned(), None, error.to_string()),
    }
}
