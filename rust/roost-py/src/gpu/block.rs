//! The class `DeviceBlock`: memory of a device's own, for the self test.

use std::fs::File;
use std::io::{Seek, SeekFrom};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use roost_hip::export::Exporter;
use roost_hip::memory::{IpcHandle, Memory};
use roost_hip::rocm_compat::cudaErrorNotSupported;
use roost_hip::{Gpu, GpuError};

use super::{Wanted, open, raised, unavailable};

/// What another process opens a block by: the driver's bytes, where in the allocation it begins, and how long it is.
type Handle = (Vec<u8>, usize, usize);

/// Memory of a device's own, made here or opened by another process's handle.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct DeviceBlock {
    gpu: Gpu,
    memory: Memory,
}

#[pymethods]
impl DeviceBlock {
    /// So many bytes on the device of this number.
    #[new]
    fn new(py: Python<'_>, wanted: Wanted, device: i32, size: usize) -> PyResult<Self> {
        py.detach(|| {
            let gpu = open(wanted)?;
            let memory = gpu.device(device).and_then(|device| device.allocate(size));
            Ok(Self {
                memory: memory.map_err(said)?,
                gpu,
            })
        })
    }

    /// Another process's, by its handle.
    #[staticmethod]
    fn opened(py: Python<'_>, wanted: Wanted, device: i32, handle: Handle) -> PyResult<Self> {
        let (bytes_of_driver, offset, bytes) = handle;
        let bytes_of_driver = bytes_of_driver
            .try_into()
            .map_err(|_| PyValueError::new_err("a handle has 64 bytes"))?;
        let handle = IpcHandle {
            bytes_of_driver,
            offset,
            bytes,
        };
        py.detach(|| {
            let gpu = open(wanted)?;
            let memory = gpu.device(device).and_then(|device| device.import(&handle));
            Ok(Self {
                memory: memory.map_err(said)?,
                gpu,
            })
        })
    }

    /// Copy bytes there, from its beginning on.
    fn write(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        py.detach(|| self.memory.write(data).map_err(said))
    }

    /// All of its bytes.
    fn read(&self, py: Python<'_>) -> PyResult<Vec<u8>> {
        py.detach(|| {
            let mut data = vec![0; self.memory.len()];
            self.memory.read(&mut data).map_err(said)?;
            Ok(data)
        })
    }

    /// What another process opens it by, as long as this lives.
    fn share(&self, py: Python<'_>) -> PyResult<Handle> {
        let handle = py.detach(|| self.memory.share()).map_err(said)?;
        Ok((handle.bytes_of_driver.to_vec(), handle.offset, handle.bytes))
    }

    /// The length of a dma-buf of it, which a NIC could use, and where it begins in that.
    fn dma_buf(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        py.detach(|| {
            let exporter = Exporter::new(self.gpu.clone());
            let exported = exporter.dma_buf(self.memory.address(), self.memory.len() as u64);
            let (file, offset) = exported.map_err(said)?;
            let length = File::from(file).seek(SeekFrom::End(0))?;
            Ok((length, offset))
        })
    }
}

/// What a driver does not have is not there, rather than broken.
#[expect(clippy::needless_pass_by_value, reason = "`map_err` gives it away")]
fn said(error: GpuError) -> PyErr {
    if error.code() == Some(cudaErrorNotSupported) {
        return unavailable(error.to_string());
    }
    raised(&error)
}
