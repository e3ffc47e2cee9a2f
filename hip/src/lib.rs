//! GPUs for Roost: one face over HIP and CUDA, one over RCCL and NCCL, and the HIP kernels.
//!
//! Nothing is linked: the vendors' libraries are opened at run time, so that one wheel serves ROCm, CUDA and machines
//! without a GPU. Three layers, each for one thing:
//!
//! - `sys` and `rocm_compat` declare: HIP's types, and all functions under their CUDA names in one table
//! - `result` calls them and turns codes into errors
//! - the rest owns: `platform` (which GPUs, from which libraries), `device`, `stream`, `memory`, `virtual_memory`,
//!   `module`, `kernels` (what the build has embedded), `export` (what one-sided memory asks)
//! - `rccl`: the same layers for RCCL and NCCL
//! - `host_group`: reductions on the CPU, between ranks of one host
//!
//! `library` opens shared libraries, `symbols` is how tables of their functions are written, `error` what can go wrong.

pub mod device;
pub mod error;
pub mod export;
pub mod host_group;
pub mod kernels;
pub mod library;
pub mod memory;
pub mod module;
pub mod platform;
pub mod rccl;
pub mod result;
pub mod rocm_compat;
pub mod stream;
pub mod symbols;
pub mod sys;
pub mod virtual_memory;

pub use error::GpuError;
pub use platform::{Choice, Gpu, Platform};
