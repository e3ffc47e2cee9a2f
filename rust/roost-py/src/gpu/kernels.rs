//! The class `DeviceKernels`: the kernels of one device, started in the order of a stream of torch's.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use roost_hip::GpuError;
use roost_hip::device::Device;
use roost_hip::kernels::{Bucket, Format, Fp8, Kernels, Outer, Piece, Rows, checksum_of, finish_checksum};
use roost_hip::memory::InFlight;
use roost_hip::stream::Stream;

use super::{Wanted, open, raised};

/// The kernels of one device.
///
/// Addresses are those of tensors, which torch keeps for whatever comes later in the same stream; so nothing here waits, but
/// for the sum of `checksum`.
#[pyclass(frozen, module = "roost._roost")]
pub(crate) struct DeviceKernels {
    device: Device,
    kernels: Kernels,
    /// Work that may still use memory of its own.
    in_flight: Mutex<Vec<InFlight>>,
}

#[pymethods]
impl DeviceKernels {
    /// Of the device of this number.
    #[new]
    fn new(py: Python<'_>, wanted: Wanted, device: i32) -> PyResult<Self> {
        py.detach(|| {
            let device = open(wanted)?.device(device).map_err(|error| raised(&error))?;
            let kernels = Kernels::new(&device).map_err(|error| raised(&error))?;
            let in_flight = Mutex::new(Vec::new());
            Ok(Self {
                device,
                kernels,
                in_flight,
            })
        })
    }

    /// Tensors (address, start, count) into a bucket (address, elements, format), or out of it.
    fn pack(
        &self,
        py: Python<'_>,
        pieces: Vec<(usize, u64, u64)>,
        tensors: &str,
        bucket: (usize, u64, &str),
        unpack: bool,
        scale: f32,
        stream: usize,
    ) -> PyResult<()> {
        let piece = |(tensor, start, count)| Piece { tensor, start, count };
        let pieces: Vec<_> = pieces.into_iter().map(piece).collect();
        let (ours, (address, elements, theirs)) = (format_or_bytes(tensors)?, bucket);
        let format = format_or_bytes(theirs)?;
        let bucket = Bucket {
            address,
            elements,
            format,
        };
        self.start(py, stream, |kernels, stream| {
            // SAFETY: Python's half hands in the memory of tensors on this device, which live until the work is done.
            unsafe { kernels.pack(&pieces, ours, bucket, unpack, scale, stream) }
        })
    }

    /// Rows (address, format, rows, columns, stride) into codes and their scales, or back.
    fn quantise(
        &self,
        py: Python<'_>,
        numbers: (usize, &str, u64, u64, u64),
        codes: (usize, &str),
        scales: usize,
        back: bool,
        stream: usize,
    ) -> PyResult<()> {
        let rows = rows(numbers, codes, scales)?;
        self.start(py, stream, |kernels, stream| {
            if back {
                // SAFETY: as in `pack`.
                unsafe { kernels.dequantise(&rows, stream) }
            } else {
                // SAFETY: as in `pack`.
                unsafe { kernels.quantise(&rows, false, stream) }
            }
        })
    }

    /// Outer parameters less local ones (address, format), into a gradient (address, format).
    fn pseudo_gradient(
        &self,
        py: Python<'_>,
        outer: usize,
        local: (usize, &str),
        gradient: (usize, &str),
        count: u64,
        stream: usize,
    ) -> PyResult<()> {
        let on = parameters((outer, 0), local, count, (1.0, 0.0, 0.0))?;
        let gradient = (gradient.0, format(gradient.1)?);
        self.start(py, stream, |kernels, stream| {
            // SAFETY: as in `pack`.
            unsafe { kernels.pseudo_gradient(&on, gradient, stream) }
        })
    }

    /// Nesterov's step: (outer, velocity), local (address, format), gradient (address or None, format),
    /// (share, rate, momentum).
    fn outer_step(
        &self,
        py: Python<'_>,
        outer: (usize, usize),
        local: (usize, &str),
        gradient: (Option<usize>, &str),
        count: u64,
        step: (f32, f32, f32),
        stream: usize,
    ) -> PyResult<()> {
        let on = parameters(outer, local, count, step)?;
        let gradient = (gradient.0, format(gradient.1)?);
        self.start(py, stream, |kernels, stream| {
            // SAFETY: as in `pack`.
            unsafe { kernels.outer_step(&on, gradient, stream) }
        })
    }

    /// The checksum of a range of the device's memory. Waits for the stream.
    fn checksum(&self, py: Python<'_>, address: usize, size: u64, stream: usize) -> PyResult<u64> {
        py.detach(|| self.checksum_of(address, size, stream))
            .map_err(|error| raised(&error))
    }
}

impl DeviceKernels {
    fn start(
        &self,
        py: Python<'_>,
        stream: usize,
        work: impl Send + FnOnce(&Kernels, &Stream) -> Result<InFlight, GpuError>,
    ) -> PyResult<()> {
        py.detach(|| {
            let stream = self.stream(stream);
            let begun = work(&self.kernels, &stream)?;
            let mut in_flight = self.in_flight.lock().unwrap_or_else(PoisonError::into_inner);
            in_flight.retain(|one| !matches!(one.is_done(), Ok(true)));
            in_flight.push(begun);
            Ok(())
        })
        .map_err(|error: GpuError| raised(&error))
    }

    fn checksum_of(&self, address: usize, bytes: u64, stream: usize) -> Result<u64, GpuError> {
        let stream = self.stream(stream);
        let sum = self.device.allocate(8)?;
        let zeroed = sum.fill(0, &stream)?;
        // SAFETY: as in `pack`; the range begins with its whole's first word.
        let summed = unsafe { self.kernels.checksum(address, bytes, 0, &sum, &stream) }?;
        summed.wait()?;
        zeroed.wait()?;
        let mut read = [0; 8];
        sum.read(&mut read)?;
        Ok(finish_checksum(u64::from_le_bytes(read), bytes))
    }

    fn stream(&self, handle: usize) -> Stream {
        // SAFETY: torch's streams live as long as the process.
        unsafe { self.device.foreign_stream(handle) }
    }
}

/// The checksum of a range of this process's own memory, as the kernel has it.
#[pyfunction]
pub(super) fn host_checksum(py: Python<'_>, address: usize, size: usize) -> u64 {
    if size == 0 {
        return finish_checksum(0, 0);
    }
    // SAFETY: Python's half hands in the memory of a tensor, which it holds during the call.
    let memory = unsafe { std::slice::from_raw_parts(address as *const u8, size) };
    finish_checksum(py.detach(|| checksum_of(memory, 0)), size as u64)
}

fn rows(numbers: (usize, &str, u64, u64, u64), codes: (usize, &str), scales: usize) -> PyResult<Rows> {
    let (address, name, rows, columns, stride) = numbers;
    let fp8 = match codes.1 {
        "ocp" => Fp8::Ocp,
        "fnuz" => Fp8::Fnuz,
        other => return Err(PyValueError::new_err(format!("no eight-bit format {other:?}"))),
    };
    Ok(Rows {
        numbers: address,
        format: format(name)?,
        rows,
        columns,
        stride,
        codes: codes.0,
        fp8,
        scales,
    })
}

fn parameters(
    outer: (usize, usize),
    local: (usize, &str),
    count: u64,
    step: (f32, f32, f32),
) -> PyResult<Outer> {
    Ok(Outer {
        outer: outer.0,
        velocity: outer.1,
        local: local.0,
        format: format(local.1)?,
        count,
        share: step.0,
        rate: step.1,
        momentum: step.2,
    })
}

fn format(name: &str) -> PyResult<Format> {
    format_or_bytes(name)?.ok_or_else(|| PyValueError::new_err("bytes are no numbers"))
}

fn format_or_bytes(name: &str) -> PyResult<Option<Format>> {
    match name {
        "bytes" => Ok(None),
        "f32" => Ok(Some(Format::F32)),
        "bf16" => Ok(Some(Format::Bf16)),
        "f16" => Ok(Some(Format::F16)),
        other => Err(PyValueError::new_err(format!("no format {other:?}"))),
    }
}
