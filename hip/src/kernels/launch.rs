//! Starting the kernels on a device's memory, in the order of a stream.

use std::ffi::{CString, c_void};

use crate::device::Device;
use crate::error::GpuError;
use crate::memory::{InFlight, Memory, allocate_host};
use crate::module::Module;
use crate::rocm_compat::attribute::Attribute;
use crate::stream::Stream;

/// What every kernel is started with: `ROOST_THREADS` of device.h.
const THREADS: u32 = 256;
/// Elements of a bucket that a block does at a time: `CHUNK` of pack.hip.
const CHUNK: u64 = 1 << 14;

/// The kernels of one device.
#[derive(Debug, Clone)]
pub struct Kernels {
    device: Device,
    module: Module,
    blocks: u32,
}

/// What numbers are in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE, 32 bits.
    F32,
    /// The upper half of these.
    Bf16,
    /// IEEE, 16 bits.
    F16,
}

/// What eight-bit codes mean. Whoever sends them says which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fp8 {
    /// OCP's E4M3, up to 448: what all cards convert to here.
    Ocp,
    /// E4M3 FNUZ, up to 240: what the matrix units of gfx942 read.
    Fnuz,
}

/// A tensor and its place in a bucket, in elements: `Piece` of pack.hip.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The tensor's address.
    pub tensor: usize,
    /// Where it begins in the bucket.
    pub start: u64,
    /// How many elements it has.
    pub count: u64,
}

/// Rows of numbers and their codes, by their addresses.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    /// The numbers.
    pub numbers: usize,
    /// What they are.
    pub format: Format,
    /// How many rows.
    pub rows: u64,
    /// How many numbers a row has.
    pub columns: u64,
    /// How many numbers from the beginning of a row to that of the next.
    pub stride: u64,
    /// The codes, one byte each, row behind row.
    pub codes: usize,
    /// What they mean.
    pub fp8: Fp8,
    /// One f32 a row.
    pub scales: usize,
}

/// A bucket's address, its length in elements, and what these are.
#[derive(Debug, Clone, Copy)]
pub struct Bucket {
    /// Its address.
    pub address: usize,
    /// Its length.
    pub elements: u64,
    /// What its elements are; none for bytes, as the tensors' then.
    pub format: Option<Format>,
}

/// The outer step of DiLoCo on one range of parameters, by their addresses.
#[derive(Debug, Clone, Copy)]
pub struct Outer {
    /// The outer parameters, f32.
    pub outer: usize,
    /// The momentum, f32.
    pub velocity: usize,
    /// The replica's own parameters.
    pub local: usize,
    /// What these are.
    pub format: Format,
    /// How many there are.
    pub count: u64,
    /// Turns the sum of gradients into what counts: one by the number of replicas.
    pub share: f32,
    /// The outer learning rate.
    pub rate: f32,
    /// Nesterov's momentum.
    pub momentum: f32,
}

impl Format {
    const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

impl Fp8 {
    const fn name(self) -> &'static str {
        match self {
            Self::Ocp => "ocp",
            Self::Fnuz => "fnuz",
        }
    }
}

/// A pointer to each of a kernel's parameters.
macro_rules! arguments {
    ($($value:expr),* $(,)?) => { &mut [$((&raw const $value).cast_mut().cast::<c_void>()),*] };
}

impl Kernels {
    /// Of this device.
    ///
    /// # Errors
    ///
    /// [`GpuError::Unavailable`] when none were compiled for its architecture.
    pub fn new(device: &Device) -> Result<Self, GpuError> {
        let units = device.attribute(Attribute::MultiprocessorCount)?;
        // Eight blocks of four waves are all that a compute unit has room for.
        let blocks = u32::try_from(units).unwrap_or(1).saturating_mul(8).max(1);
        Ok(Self {
            device: device.clone(),
            module: device.kernels()?,
            blocks,
        })
    }

    /// # Safety
    ///
    /// As for [`crate::module::Kernel::start`].
    unsafe fn start(
        &self,
        name: &str,
        work: u64,
        stream: &Stream,
        arguments: &mut [*mut c_void],
        memory: Vec<Memory>,
    ) -> Result<InFlight, GpuError> {
        let name =
            CString::new(name).map_err(|_| GpuError::refused("a kernel's name has a zero byte in it"))?;
        let blocks = u32::try_from(work).unwrap_or(u32::MAX).clamp(1, self.blocks);
        // SAFETY: as the caller promises.
        unsafe {
            self.module
                .kernel(&name)?
                .start(blocks, THREADS, stream, arguments, memory)
        }
    }

    /// Gathers tensors into a bucket, or with `unpack` spreads the bucket over them. Numbers are multiplied by `scale` and
    /// converted where the formats differ; `tensors` none is bytes, which stay as they are.
    ///
    /// # Safety
    ///
    /// The addresses are this device's memory, as long as said, and stay until the work is done.
    ///
    /// # Errors
    ///
    /// When the pieces are not in order or pass the bucket's end, when there is no kernel for these formats, or what the
    /// driver says.
    pub unsafe fn pack(
        &self,
        pieces: &[Piece],
        tensors: Option<Format>,
        bucket: Bucket,
        unpack: bool,
        scale: f32,
        stream: &Stream,
    ) -> Result<InFlight, GpuError> {
        check(pieces, bucket.elements)?;
        let name = |format: Option<Format>| format.map_or("bytes", Format::name);
        let (ours, theirs) = (name(tensors), name(bucket.format));
        let name = if unpack {
            format!("roost_unpack_{theirs}_to_{ours}")
        } else {
            format!("roost_pack_{ours}_to_{theirs}")
        };
        let bytes: Vec<u8> = pieces
            .iter()
            .flat_map(|piece| [piece.tensor as u64, piece.start, piece.count])
            .flat_map(u64::to_ne_bytes)
            .collect();
        let (staged, table) = (
            allocate_host(Some(self.device.gpu()), bytes.len())?,
            self.device.allocate(bytes.len())?,
        );
        staged.write(&bytes)?;
        let copied = staged.copy_to(&table, stream)?;
        let count = u32::try_from(pieces.len()).map_err(|_| GpuError::refused("more than 2^32 tensors"))?;
        let (there, address, elements) = (table.address(), bucket.address, bucket.elements);
        let arguments = arguments![there, count, address, elements, scale];
        // SAFETY: these are pack.hip's parameters; for what they point to the caller answers, and the table is kept.
        let started = unsafe {
            self.start(
                &name,
                elements.div_ceil(CHUNK),
                stream,
                arguments,
                vec![staged, table.clone()],
            )
        };
        // The kernel comes behind the copy in its stream, so what it is done with, the copy is too.
        started.inspect(|_| copied.forget())
    }

    /// Rows into eight-bit codes, each with a scale of its own, which is written; with `given` it is read instead.
    ///
    /// # Safety
    ///
    /// As for [`Self::pack`].
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn quantise(&self, rows: &Rows, given: bool, stream: &Stream) -> Result<InFlight, GpuError> {
        let name = format!("roost_quantise_{}_{}", rows.format.name(), rows.fp8.name());
        let given = u32::from(given);
        let arguments = arguments![
            rows.numbers,
            rows.rows,
            rows.columns,
            rows.stride,
            rows.codes,
            rows.scales,
            given
        ];
        // SAFETY: these are fp8.hip's parameters; for what they point to the caller answers.
        unsafe { self.start(&name, rows.rows, stream, arguments, Vec::new()) }
    }

    /// Eight-bit codes back into rows.
    ///
    /// # Safety
    ///
    /// As for [`Self::pack`].
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub unsafe fn dequantise(&self, rows: &Rows, stream: &Stream) -> Result<InFlight, GpuError> {
        let name = format!("roost_dequantise_{}_{}", rows.format.name(), rows.fp8.name());
        let arguments = arguments![
            rows.codes,
            rows.scales,
            rows.rows,
            rows.columns,
            rows.stride,
            rows.numbers
        ];
        // SAFETY: these are fp8.hip's parameters; for what they point to the caller answers.
        unsafe { self.start(&name, rows.rows, stream, arguments, Vec::new()) }
    }

    /// How far the local parameters are from the outer ones, into a gradient.
    ///
    /// # Safety
    ///
    /// As for [`Self::pack`].
    ///
    /// # Errors
    ///
    /// When there is no kernel for these formats, or what the driver says.
    pub unsafe fn pseudo_gradient(
        &self,
        on: &Outer,
        gradient: (usize, Format),
        stream: &Stream,
    ) -> Result<InFlight, GpuError> {
        let name = format!(
            "roost_pseudo_gradient_{}_to_{}",
            on.format.name(),
            gradient.1.name()
        );
        let arguments = arguments![on.outer, on.local, gradient.0, on.count];
        let work = on.count.div_ceil(4 * u64::from(THREADS));
        // SAFETY: these are outer.hip's parameters; for what they point to the caller answers.
        unsafe { self.start(&name, work, stream, arguments, Vec::new()) }
    }

    /// Nesterov's step and the new parameters. Without a gradient's address it is taken from the local parameters.
    ///
    /// # Safety
    ///
    /// As for [`Self::pack`].
    ///
    /// # Errors
    ///
    /// When there is no kernel for these formats, or what the driver says.
    pub unsafe fn outer_step(
        &self,
        on: &Outer,
        gradient: (Option<usize>, Format),
        stream: &Stream,
    ) -> Result<InFlight, GpuError> {
        let name = format!("roost_outer_step_{}_from_{}", on.format.name(), gradient.1.name());
        let address = gradient.0.unwrap_or(0);
        let arguments = arguments![
            on.outer,
            on.velocity,
            on.local,
            address,
            on.count,
            on.share,
            on.rate,
            on.momentum
        ];
        let work = on.count.div_ceil(4 * u64::from(THREADS));
        // SAFETY: these are outer.hip's parameters; for what they point to the caller answers.
        unsafe { self.start(&name, work, stream, arguments, Vec::new()) }
    }

    /// Adds the checksum of a range to eight bytes of this device's memory, which begin as zero. `first` is the number of
    /// the range's first word of eight bytes in the whole.
    ///
    /// # Safety
    ///
    /// As for [`Self::pack`].
    ///
    /// # Errors
    ///
    /// When `sum` is not eight bytes, or what the driver says.
    pub unsafe fn checksum(
        &self,
        address: usize,
        bytes: u64,
        first: u64,
        sum: &Memory,
        stream: &Stream,
    ) -> Result<InFlight, GpuError> {
        if sum.len() != 8 {
            return Err(GpuError::refused(format!(
                "a sum has eight bytes, not {}",
                sum.len()
            )));
        }
        let there = sum.address();
        let arguments = arguments![address, bytes, first, there];
        let work = bytes.div_ceil(16 * u64::from(THREADS));
        // SAFETY: these are checksum.hip's parameters; for the range the caller answers, and the sum is kept.
        unsafe { self.start("roost_checksum", work, stream, arguments, vec![sum.clone()]) }
    }
}

/// Pieces lie in the bucket one behind the other; the kernel looks them up by halves.
fn check(pieces: &[Piece], elements: u64) -> Result<(), GpuError> {
    let mut end = 0_u64;
    for (number, piece) in pieces.iter().enumerate() {
        let next = piece
            .start
            .checked_add(piece.count)
            .filter(|next| *next <= elements);
        match next {
            Some(next) if piece.start >= end => end = next,
            Some(_) => {
                return Err(GpuError::refused(format!(
                    "piece {number} begins before the one in front of it ends"
                )));
            }
            None => {
                return Err(GpuError::refused(format!(
                    "piece {number} passes the end of a bucket of {elements} elements"
                )));
            }
        }
    }
    Ok(())
}
