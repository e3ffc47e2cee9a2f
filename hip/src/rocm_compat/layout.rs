//! Where members of structures lie, for the test that reads the headers.

use super::{
    CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, CUuuid, cudaIpcEventHandle_t, cudaIpcMemHandle_t,
    cudaPointerAttributes,
};
use crate::sys;
use std::mem::offset_of;

/// A structure or a member of one.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// In C, with CUDA's names: `sizeof(x)`, or `offsetof(x, y)`.
    pub cuda: &'static str,
    /// In C, with HIP's names.
    pub hip: &'static str,
    /// Its size or its offset here, in bytes.
    pub bytes: usize,
    /// The headers' structure may be smaller than the room that is made for it here.
    pub room: bool,
}

macro_rules! places {
    ($($cuda:literal = $hip:literal: $bytes:expr $(, $room:ident)?;)*) => {
        /// All that is declared here of the vendors' structures.
        pub const PLACES: &[Place] = &[$(Place {
            cuda: $cuda, hip: $hip, bytes: $bytes, room: places!(@ $($room)?),
        }),*];
    };
    (@) => { false };
    (@ room) => { true };
}

places! {
    "sizeof(cudaIpcMemHandle_t)" = "sizeof(hipIpcMemHandle_t)": size_of::<cudaIpcMemHandle_t>();
    "sizeof(cudaIpcEventHandle_t)" = "sizeof(hipIpcEventHandle_t)": size_of::<cudaIpcEventHandle_t>();
    "sizeof(CUuuid)" = "sizeof(hipUUID)": size_of::<CUuuid>();
    "sizeof(CUmemLocation)" = "sizeof(hipMemLocation)": size_of::<CUmemLocation>();
    "offsetof(CUmemLocation, id)" = "offsetof(hipMemLocation, id)": offset_of!(CUmemLocation, id);
    "sizeof(CUmemAllocationProp)" = "sizeof(hipMemAllocationProp)": size_of::<CUmemAllocationProp>();
    "offsetof(CUmemAllocationProp, requestedHandleTypes)" = "offsetof(hipMemAllocationProp, requestedHandleType)":
        offset_of!(CUmemAllocationProp, requestedHandleTypes);
    "offsetof(CUmemAllocationProp, location)" = "offsetof(hipMemAllocationProp, location)":
        offset_of!(CUmemAllocationProp, location);
    "offsetof(CUmemAllocationProp, win32HandleMetaData)" = "offsetof(hipMemAllocationProp, win32HandleMetaData)":
        offset_of!(CUmemAllocationProp, win32HandleMetaData);
    "offsetof(CUmemAllocationProp, allocFlags)" = "offsetof(hipMemAllocationProp, allocFlags)":
        offset_of!(CUmemAllocationProp, allocFlags);
    "offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)" = "offsetof(hipMemAllocationProp, allocFlags.gpuDirectRDMACapable)":
        offset_of!(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
    "offsetof(CUmemAllocationProp, allocFlags.usage)" = "offsetof(hipMemAllocationProp, allocFlags.usage)":
        offset_of!(CUmemAllocationProp, allocFlags.usage);
    "sizeof(CUmemAccessDesc)" = "sizeof(hipMemAccessDesc)": size_of::<CUmemAccessDesc>();
    "offsetof(CUmemAccessDesc, flags)" = "offsetof(hipMemAccessDesc, flags)": offset_of!(CUmemAccessDesc, flags);
    "sizeof(struct cudaPointerAttributes)" = "sizeof(hipPointerAttribute_t)": size_of::<cudaPointerAttributes>(), room;
    "offsetof(struct cudaPointerAttributes, type)" = "offsetof(hipPointerAttribute_t, type)":
        offset_of!(cudaPointerAttributes, r#type);
    "offsetof(struct cudaPointerAttributes, device)" = "offsetof(hipPointerAttribute_t, device)":
        offset_of!(cudaPointerAttributes, device);
    "offsetof(struct cudaPointerAttributes, devicePointer)" = "offsetof(hipPointerAttribute_t, devicePointer)":
        offset_of!(cudaPointerAttributes, devicePointer);
    "offsetof(struct cudaPointerAttributes, hostPointer)" = "offsetof(hipPointerAttribute_t, hostPointer)":
        offset_of!(cudaPointerAttributes, hostPointer);
    "sizeof(cudaDeviceProp)" = "sizeof(hipDeviceProp_t)": size_of::<sys::hipDeviceProp_t>(), room;
    "offsetof(cudaDeviceProp, name)" = "offsetof(hipDeviceProp_t, name)": sys::DEVICE_NAME.start;
    "sizeof(((cudaDeviceProp*)0)->name)" = "sizeof(((hipDeviceProp_t*)0)->name)": sys::DEVICE_NAME.end;
    "" = "offsetof(hipDeviceProp_t, gcnArchName)": sys::GCN_ARCH_NAME.start;
    "" = "offsetof(hipDeviceProp_t, gcnArchName) + sizeof(((hipDeviceProp_t*)0)->gcnArchName)": sys::GCN_ARCH_NAME.end;
}
