//! The kernels' code, which the build has embedded: one object an architecture, and what the compiler said of it.
//! `launch` starts them; the sum of a range is finished here, so that host and device agree.

mod launch;

pub use launch::{Bucket, Format, Fp8, Kernels, Outer, Piece, Rows};

use crate::device::Device;
use crate::error::GpuError;
use crate::module::Module;

/// The kernels for one architecture.
#[derive(Debug, Clone, Copy)]
pub struct CodeObject {
    /// Such as "gfx942", or "`sm_90`" where nvcc was there too.
    pub architecture: &'static str,
    /// An ELF file, as the driver loads it.
    pub image: &'static [u8],
    remarks: &'static str,
}

mod embedded {
    use super::CodeObject;
    include!(concat!(env!("OUT_DIR"), "/objects.rs"));
}

/// What the compiler made of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    /// The kernel's name.
    pub kernel: String,
    /// Vector registers of a thread.
    pub vector_registers: u32,
    /// Scalar registers of a wave.
    pub scalar_registers: u32,
    /// Waves that a SIMD has room for, of at most 8.
    pub waves: u32,
    /// Bytes of a thread that did not fit its registers.
    pub scratch_bytes: u32,
    /// Bytes of shared memory of a block.
    pub shared_bytes: u32,
}

/// All that were compiled.
pub fn objects() -> &'static [CodeObject] {
    embedded::OBJECTS
}

impl CodeObject {
    /// What the compiler said of each kernel.
    pub fn resources(&self) -> Vec<Resources> {
        let mut found: Vec<Resources> = Vec::new();
        for line in self.remarks.lines().filter(|line| line.contains("remark: ")) {
            // A place in the source stands before or behind the word, as the compiler was called; the end is the same.
            let said = line.rsplit_once(" [-Rpass").map_or(line, |(said, _)| said);
            let Some((before, value)) = said.rsplit_once(": ") else {
                continue;
            };
            let what = before.rsplit(": ").next().unwrap_or(before);
            let number = || value.trim().parse().unwrap_or(0);
            let Some(last) = found.last_mut() else {
                found.extend(first(what, value));
                continue;
            };
            match what.trim() {
                "VGPRs" => last.vector_registers = number(),
                "TotalSGPRs" => last.scalar_registers = number(),
                "Occupancy [waves/SIMD]" => last.waves = number(),
                "ScratchSize [bytes/lane]" => last.scratch_bytes = number(),
                "LDS Size [bytes/block]" => last.shared_bytes = number(),
                _ => found.extend(first(what, value)),
            }
        }
        found
    }
}

fn first(what: &str, value: &str) -> Option<Resources> {
    (what.trim() == "Function Name").then(|| Resources {
        kernel: value.trim().to_owned(),
        vector_registers: 0,
        scalar_registers: 0,
        waves: 0,
        scratch_bytes: 0,
        shared_bytes: 0,
    })
}

impl Device {
    /// The kernels on this device: those that were compiled for its architecture.
    ///
    /// # Errors
    ///
    /// [`GpuError::Unavailable`] when none were, and why; or what the driver says.
    pub fn kernels(&self) -> Result<Module, GpuError> {
        let architecture = self.architecture()?;
        let fitting = objects()
            .iter()
            .find(|object| object.architecture == architecture);
        let Some(object) = fitting else {
            let names: Vec<_> = objects().iter().map(|object| object.architecture).collect();
            let why = if names.is_empty() {
                embedded::MISSING.to_owned()
            } else {
                format!("they were compiled for {}", names.join(", "))
            };
            return Err(GpuError::Unavailable {
                what: format!("the kernels for {architecture}"),
                tried: vec![why],
            });
        };
        // SAFETY: a whole code object, as the compiler wrote it.
        unsafe { self.load(object.image) }
    }
}

/// What a checksum of a whole is made of the sum over its words: its length counts too.
pub fn finish_checksum(sum: u64, bytes: u64) -> u64 {
    mix(sum ^ mix(bytes.wrapping_add(1)))
}

/// The sum over the words of a range, as checksum.hip has it, by the host. `first` is the number of the range's first word.
/// Sums of parts are added, wrapping, in any order.
pub fn checksum_of(memory: &[u8], first: u64) -> u64 {
    let (words, rest) = memory.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    let whole = words.iter().chain((!rest.is_empty()).then_some(&last));
    let mixed = whole.zip(first..).map(|(word, number)| {
        mix(u64::from_le_bytes(*word) ^ mix(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    });
    mixed.fold(0, u64::wrapping_add)
}

fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
