//! HIP's types and constants as its headers have them; nothing here does anything.
//!
//! `rocm_compat` gives each its CUDA name, and a test holds both against the vendors' headers.

#![allow(
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    missing_docs,
    reason = "the names are the vendors', who document them"
)]

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

/// What a handle points to: the vendors' own.
#[repr(C)]
#[derive(Debug)]
pub struct Opaque {
    _private: [u8; 0],
}

pub type hipError_t = c_int;
pub type hipDevice_t = c_int;
pub type hipMemcpyKind = c_int;
pub type hipDeviceAttribute_t = c_int;
pub type hipPointer_attribute = c_int;
pub type hipFunction_attribute = c_int;
pub type hipMemoryType = c_int;
pub type hipMemAllocationHandleType = c_int;
pub type hipMemAllocationGranularity_flags = c_int;
pub type hipMemRangeHandleType = c_int;
pub type hipStream_t = *mut Opaque;
pub type hipEvent_t = *mut Opaque;
pub type hipModule_t = *mut Opaque;
pub type hipFunction_t = *mut Opaque;
pub type hipCtx_t = *mut Opaque;
pub type hipMemGenericAllocationHandle_t = *mut Opaque;
/// An address on a device. CUDA's driver has an integer of the same width in its place.
pub type hipDeviceptr_t = *mut c_void;
pub type hipHostFn_t = Option<unsafe extern "C" fn(*mut c_void)>;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct hipIpcMemHandle_t {
    pub reserved: [c_char; 64],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct hipIpcEventHandle_t {
    pub reserved: [c_char; 64],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct hipUUID {
    pub bytes: [u8; 16],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct hipMemLocation {
    pub r#type: c_int,
    pub id: c_int,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct hipMemAllocationProp {
    pub r#type: c_int,
    pub requestedHandleTypes: hipMemAllocationHandleType,
    pub location: hipMemLocation,
    pub win32HandleMetaData: *mut c_void,
    pub allocFlags: hipMemAllocationFlags,
}

/// Without a name of its own in the headers: the member `allocFlags`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct hipMemAllocationFlags {
    pub compressionType: u8,
    pub gpuDirectRDMACapable: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct hipMemAccessDesc {
    pub location: hipMemLocation,
    pub flags: c_int,
}

/// The members that HIP and CUDA have at the same places, and room for the rest of either.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct hipPointerAttribute_t {
    pub r#type: hipMemoryType,
    pub device: c_int,
    pub devicePointer: *mut c_void,
    pub hostPointer: *mut c_void,
    pub rest: [c_long; 13],
}

/// Room for the properties of any version; what is read of them has its offset below.
#[repr(C, align(8))]
pub struct hipDeviceProp_t {
    pub bytes: [u8; 4096],
}

/// Where `hipDeviceProp_tR0600` has the name of the architecture ("gfx942:sramecc+:xnack-"), and how long it may be.
pub const GCN_ARCH_NAME: std::ops::Range<usize> = 1160..1416;
/// Where both vendors' properties have the device's name.
pub const DEVICE_NAME: std::ops::Range<usize> = 0..256;

/// `hsa_status_t`, of the library below HIP.
pub type hsa_status_t = c_uint;
