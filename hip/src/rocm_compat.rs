//! HIP under its CUDA names, so that the rest is written once: types, constants and functions.
//!
//! On ROCm the functions are libamdhip64's, on CUDA those of libcudart and libcuda. Where the two differ, the difference
//! is settled here or, where it takes a decision, in [`crate::result`] and nowhere else:
//!
//! - numbers of device attributes: [`attribute`] translates by name;
//! - properties: `hipGetDeviceProperties` is the layout before ROCm 6, headers mean `…R0600`, and so does this table;
//! - addresses: pointers in HIP, integers of the same width in CUDA's driver; here they are pointers;
//! - waiting for a value: HIP takes a mask more, so it is a symbol of its own;
//! - a dma-buf of memory: ROCm 7 has CUDA's function, before that there is one of the HSA library;
//! - HIP has one type of error where CUDA has two with the same numbers.
//!
//! [`constant`] lists the constants with both vendors' names, [`layout`] the structures.

#![allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    missing_docs,
    reason = "the names are the vendors', who document them"
)]

pub mod attribute;
pub mod constant;
pub mod layout;

use std::ffi::{c_char, c_float, c_int, c_uint, c_ulonglong, c_void};

use crate::symbols::{structures, table};
use crate::sys;
pub use constant::*;

pub type cudaError_t = sys::hipError_t;
pub type CUresult = sys::hipError_t;
pub type CUdevice = sys::hipDevice_t;
pub type CUdeviceptr = sys::hipDeviceptr_t;
pub type CUcontext = sys::hipCtx_t;
pub type CUmodule = sys::hipModule_t;
pub type CUfunction = sys::hipFunction_t;
pub type CUfunction_attribute = sys::hipFunction_attribute;
pub type CUuuid = sys::hipUUID;
pub type cudaStream_t = sys::hipStream_t;
pub type cudaEvent_t = sys::hipEvent_t;
pub type cudaMemcpyKind = sys::hipMemcpyKind;
pub type cudaDeviceAttr = sys::hipDeviceAttribute_t;
pub type cudaDeviceProp = sys::hipDeviceProp_t;
pub type cudaPointerAttributes = sys::hipPointerAttribute_t;
pub type cudaIpcMemHandle_t = sys::hipIpcMemHandle_t;
pub type cudaIpcEventHandle_t = sys::hipIpcEventHandle_t;
pub type cudaHostFn_t = sys::hipHostFn_t;
pub type CUpointer_attribute = sys::hipPointer_attribute;
pub type CUmemGenericAllocationHandle = sys::hipMemGenericAllocationHandle_t;
pub type CUmemAllocationProp = sys::hipMemAllocationProp;
pub type CUmemAllocationHandleType = sys::hipMemAllocationHandleType;
pub type CUmemAllocationGranularity_flags = sys::hipMemAllocationGranularity_flags;
pub type CUmemAccessDesc = sys::hipMemAccessDesc;
pub type CUmemLocation = sys::hipMemLocation;
pub type CUmemRangeHandleType = sys::hipMemRangeHandleType;

structures!(
    cudaDeviceProp,
    cudaPointerAttributes,
    cudaIpcMemHandle_t,
    cudaIpcEventHandle_t,
    CUmemAllocationProp,
    CUmemAccessDesc,
    CUuuid
);

table! {
    /// The functions of a GPU's runtime and driver, as far as the platform's libraries have them.
    pub struct Runtime;

    cudaGetDeviceCount: rocm "hipGetDeviceCount", Runtime "cudaGetDeviceCount", (*mut c_int) -> cudaError_t;
    cudaSetDevice: rocm "hipSetDevice", Runtime "cudaSetDevice", (c_int) -> cudaError_t;
    cudaGetDevice: rocm "hipGetDevice", Runtime "cudaGetDevice", (*mut c_int) -> cudaError_t;
    cudaDeviceSynchronize: rocm "hipDeviceSynchronize", Runtime "cudaDeviceSynchronize", () -> cudaError_t;
    cudaGetDeviceProperties: rocm "hipGetDevicePropertiesR0600", Runtime "cudaGetDeviceProperties", (*mut cudaDeviceProp, c_int) -> cudaError_t;
    cudaDeviceGetAttribute: rocm "hipDeviceGetAttribute", Runtime "cudaDeviceGetAttribute", (*mut c_int, cudaDeviceAttr, c_int) -> cudaError_t;
    cudaDeviceGetPCIBusId: rocm "hipDeviceGetPCIBusId", Runtime "cudaDeviceGetPCIBusId", (*mut c_char, c_int, c_int) -> cudaError_t;
    cudaDeviceCanAccessPeer: rocm "hipDeviceCanAccessPeer", Runtime "cudaDeviceCanAccessPeer", (*mut c_int, c_int, c_int) -> cudaError_t;
    cudaDeviceEnablePeerAccess: rocm "hipDeviceEnablePeerAccess", Runtime "cudaDeviceEnablePeerAccess", (c_int, c_uint) -> cudaError_t;
    cudaRuntimeGetVersion: rocm "hipRuntimeGetVersion", Runtime "cudaRuntimeGetVersion", (*mut c_int) -> cudaError_t;
    cudaDriverGetVersion: rocm "hipDriverGetVersion", Runtime "cudaDriverGetVersion", (*mut c_int) -> cudaError_t;
    cudaGetLastError: rocm "hipGetLastError", Runtime "cudaGetLastError", () -> cudaError_t;
    cudaPeekAtLastError: rocm "hipPeekAtLastError", Runtime "cudaPeekAtLastError", () -> cudaError_t;
    cudaGetErrorName: rocm "hipGetErrorName", Runtime "cudaGetErrorName", (cudaError_t) -> *const c_char;
    cudaGetErrorString: rocm "hipGetErrorString", Runtime "cudaGetErrorString", (cudaError_t) -> *const c_char;
    cudaMalloc: rocm "hipMalloc", Runtime "cudaMalloc", (*mut *mut c_void, usize) -> cudaError_t;
    cudaFree: rocm "hipFree", Runtime "cudaFree", (*mut c_void) -> cudaError_t;
    cudaMallocAsync: rocm "hipMallocAsync", Runtime "cudaMallocAsync", (*mut *mut c_void, usize, cudaStream_t) -> cudaError_t;
    cudaFreeAsync: rocm "hipFreeAsync", Runtime "cudaFreeAsync", (*mut c_void, cudaStream_t) -> cudaError_t;
    cudaMemGetInfo: rocm "hipMemGetInfo", Runtime "cudaMemGetInfo", (*mut usize, *mut usize) -> cudaError_t;
    cudaHostAlloc: rocm "hipHostMalloc", Runtime "cudaHostAlloc", (*mut *mut c_void, usize, c_uint) -> cudaError_t;
    cudaFreeHost: rocm "hipHostFree", Runtime "cudaFreeHost", (*mut c_void) -> cudaError_t;
    cudaHostRegister: rocm "hipHostRegister", Runtime "cudaHostRegister", (*mut c_void, usize, c_uint) -> cudaError_t;
    cudaHostUnregister: rocm "hipHostUnregister", Runtime "cudaHostUnregister", (*mut c_void) -> cudaError_t;
    cudaHostGetDevicePointer: rocm "hipHostGetDevicePointer", Runtime "cudaHostGetDevicePointer", (*mut *mut c_void, *mut c_void, c_uint) -> cudaError_t;
    cudaMemcpy: rocm "hipMemcpy", Runtime "cudaMemcpy", (*mut c_void, *const c_void, usize, cudaMemcpyKind) -> cudaError_t;
    cudaMemcpyAsync: rocm "hipMemcpyAsync", Runtime "cudaMemcpyAsync", (*mut c_void, *const c_void, usize, cudaMemcpyKind, cudaStream_t) -> cudaError_t;
    cudaMemcpyPeerAsync: rocm "hipMemcpyPeerAsync", Runtime "cudaMemcpyPeerAsync", (*mut c_void, c_int, *const c_void, c_int, usize, cudaStream_t) -> cudaError_t;
    cudaMemcpy2DAsync: rocm "hipMemcpy2DAsync", Runtime "cudaMemcpy2DAsync", (*mut c_void, usize, *const c_void, usize, usize, usize, cudaMemcpyKind, cudaStream_t) -> cudaError_t;
    cudaMemset: rocm "hipMemset", Runtime "cudaMemset", (*mut c_void, c_int, usize) -> cudaError_t;
    cudaMemsetAsync: rocm "hipMemsetAsync", Runtime "cudaMemsetAsync", (*mut c_void, c_int, usize, cudaStream_t) -> cudaError_t;
    cudaPointerGetAttributes: rocm "hipPointerGetAttributes", Runtime "cudaPointerGetAttributes", (*mut cudaPointerAttributes, *const c_void) -> cudaError_t;
    cudaStreamCreateWithFlags: rocm "hipStreamCreateWithFlags", Runtime "cudaStreamCreateWithFlags", (*mut cudaStream_t, c_uint) -> cudaError_t;
    cudaStreamCreateWithPriority: rocm "hipStreamCreateWithPriority", Runtime "cudaStreamCreateWithPriority", (*mut cudaStream_t, c_uint, c_int) -> cudaError_t;
    cudaStreamDestroy: rocm "hipStreamDestroy", Runtime "cudaStreamDestroy", (cudaStream_t) -> cudaError_t;
    cudaStreamSynchronize: rocm "hipStreamSynchronize", Runtime "cudaStreamSynchronize", (cudaStream_t) -> cudaError_t;
    cudaStreamQuery: rocm "hipStreamQuery", Runtime "cudaStreamQuery", (cudaStream_t) -> cudaError_t;
    cudaStreamWaitEvent: rocm "hipStreamWaitEvent", Runtime "cudaStreamWaitEvent", (cudaStream_t, cudaEvent_t, c_uint) -> cudaError_t;
    cudaLaunchHostFunc: rocm "hipLaunchHostFunc", Runtime "cudaLaunchHostFunc", (cudaStream_t, cudaHostFn_t, *mut c_void) -> cudaError_t;
    cudaEventCreateWithFlags: rocm "hipEventCreateWithFlags", Runtime "cudaEventCreateWithFlags", (*mut cudaEvent_t, c_uint) -> cudaError_t;
    cudaEventRecord: rocm "hipEventRecord", Runtime "cudaEventRecord", (cudaEvent_t, cudaStream_t) -> cudaError_t;
    cudaEventQuery: rocm "hipEventQuery", Runtime "cudaEventQuery", (cudaEvent_t) -> cudaError_t;
    cudaEventSynchronize: rocm "hipEventSynchronize", Runtime "cudaEventSynchronize", (cudaEvent_t) -> cudaError_t;
    cudaEventElapsedTime: rocm "hipEventElapsedTime", Runtime "cudaEventElapsedTime", (*mut c_float, cudaEvent_t, cudaEvent_t) -> cudaError_t;
    cudaEventDestroy: rocm "hipEventDestroy", Runtime "cudaEventDestroy", (cudaEvent_t) -> cudaError_t;
    cudaIpcGetMemHandle: rocm "hipIpcGetMemHandle", Runtime "cudaIpcGetMemHandle", (*mut cudaIpcMemHandle_t, *mut c_void) -> cudaError_t;
    cudaIpcOpenMemHandle: rocm "hipIpcOpenMemHandle", Runtime "cudaIpcOpenMemHandle", (*mut *mut c_void, cudaIpcMemHandle_t, c_uint) -> cudaError_t;
    cudaIpcCloseMemHandle: rocm "hipIpcCloseMemHandle", Runtime "cudaIpcCloseMemHandle", (*mut c_void) -> cudaError_t;
    cudaIpcGetEventHandle: rocm "hipIpcGetEventHandle", Runtime "cudaIpcGetEventHandle", (*mut cudaIpcEventHandle_t, cudaEvent_t) -> cudaError_t;
    cudaIpcOpenEventHandle: rocm "hipIpcOpenEventHandle", Runtime "cudaIpcOpenEventHandle", (*mut cudaEvent_t, cudaIpcEventHandle_t) -> cudaError_t;
    cuInit: rocm "hipInit", Driver "cuInit", (c_uint) -> CUresult;
    cuGetErrorName: rocm "hipDrvGetErrorName", Driver "cuGetErrorName", (CUresult, *mut *const c_char) -> CUresult;
    cuGetErrorString: rocm "hipDrvGetErrorString", Driver "cuGetErrorString", (CUresult, *mut *const c_char) -> CUresult;
    cuDeviceGet: rocm "hipDeviceGet", Driver "cuDeviceGet", (*mut CUdevice, c_int) -> CUresult;
    cuDeviceGetUuid: rocm "hipDeviceGetUuid", Driver "cuDeviceGetUuid_v2", (*mut CUuuid, CUdevice) -> CUresult;
    cuCtxGetCurrent: rocm "hipCtxGetCurrent", Driver "cuCtxGetCurrent", (*mut CUcontext) -> CUresult;
    cuCtxSetCurrent: rocm "hipCtxSetCurrent", Driver "cuCtxSetCurrent", (CUcontext) -> CUresult;
    cuDevicePrimaryCtxGetState: rocm "hipDevicePrimaryCtxGetState", Driver "cuDevicePrimaryCtxGetState", (CUdevice, *mut c_uint, *mut c_int) -> CUresult;
    cuDevicePrimaryCtxRetain: rocm "hipDevicePrimaryCtxRetain", Driver "cuDevicePrimaryCtxRetain", (*mut CUcontext, CUdevice) -> CUresult;
    cuDevicePrimaryCtxRelease: rocm "hipDevicePrimaryCtxRelease", Driver "cuDevicePrimaryCtxRelease_v2", (CUdevice) -> CUresult;
    cuPointerGetAttribute: rocm "hipPointerGetAttribute", Driver "cuPointerGetAttribute", (*mut c_void, CUpointer_attribute, CUdeviceptr) -> CUresult;
    cuPointerSetAttribute: rocm "hipPointerSetAttribute", Driver "cuPointerSetAttribute", (*const c_void, CUpointer_attribute, CUdeviceptr) -> CUresult;
    cuMemGetAddressRange: rocm "hipMemGetAddressRange", Driver "cuMemGetAddressRange_v2", (*mut CUdeviceptr, *mut usize, CUdeviceptr) -> CUresult;
    cuMemGetHandleForAddressRange: rocm "hipMemGetHandleForAddressRange", Driver "cuMemGetHandleForAddressRange", (*mut c_void, CUdeviceptr, usize, CUmemRangeHandleType, c_ulonglong) -> CUresult;
    cuMemGetAllocationGranularity: rocm "hipMemGetAllocationGranularity", Driver "cuMemGetAllocationGranularity", (*mut usize, *const CUmemAllocationProp, CUmemAllocationGranularity_flags) -> CUresult;
    cuMemCreate: rocm "hipMemCreate", Driver "cuMemCreate", (*mut CUmemGenericAllocationHandle, usize, *const CUmemAllocationProp, c_ulonglong) -> CUresult;
    cuMemRelease: rocm "hipMemRelease", Driver "cuMemRelease", (CUmemGenericAllocationHandle) -> CUresult;
    cuMemAddressReserve: rocm "hipMemAddressReserve", Driver "cuMemAddressReserve", (*mut CUdeviceptr, usize, usize, CUdeviceptr, c_ulonglong) -> CUresult;
    cuMemAddressFree: rocm "hipMemAddressFree", Driver "cuMemAddressFree", (CUdeviceptr, usize) -> CUresult;
    cuMemMap: rocm "hipMemMap", Driver "cuMemMap", (CUdeviceptr, usize, usize, CUmemGenericAllocationHandle, c_ulonglong) -> CUresult;
    cuMemUnmap: rocm "hipMemUnmap", Driver "cuMemUnmap", (CUdeviceptr, usize) -> CUresult;
    cuMemSetAccess: rocm "hipMemSetAccess", Driver "cuMemSetAccess", (CUdeviceptr, usize, *const CUmemAccessDesc, usize) -> CUresult;
    cuMemExportToShareableHandle: rocm "hipMemExportToShareableHandle", Driver "cuMemExportToShareableHandle", (*mut c_void, CUmemGenericAllocationHandle, CUmemAllocationHandleType, c_ulonglong) -> CUresult;
    cuMemImportFromShareableHandle: rocm "hipMemImportFromShareableHandle", Driver "cuMemImportFromShareableHandle", (*mut CUmemGenericAllocationHandle, *mut c_void, CUmemAllocationHandleType) -> CUresult;
    cuMemRetainAllocationHandle: rocm "hipMemRetainAllocationHandle", Driver "cuMemRetainAllocationHandle", (*mut CUmemGenericAllocationHandle, *mut c_void) -> CUresult;
    cuModuleLoadData: rocm "hipModuleLoadData", Driver "cuModuleLoadData", (*mut CUmodule, *const c_void) -> CUresult;
    cuModuleGetFunction: rocm "hipModuleGetFunction", Driver "cuModuleGetFunction", (*mut CUfunction, CUmodule, *const c_char) -> CUresult;
    cuModuleUnload: rocm "hipModuleUnload", Driver "cuModuleUnload", (CUmodule) -> CUresult;
    cuFuncGetAttribute: rocm "hipFuncGetAttribute", Driver "cuFuncGetAttribute", (*mut c_int, CUfunction_attribute, CUfunction) -> CUresult;
    cuOccupancyMaxActiveBlocksPerMultiprocessor: rocm "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", Driver "cuOccupancyMaxActiveBlocksPerMultiprocessor", (*mut c_int, CUfunction, c_int, usize) -> CUresult;
    cuLaunchKernel: rocm "hipModuleLaunchKernel", Driver "cuLaunchKernel", (CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, cudaStream_t, *mut *mut c_void, *mut *mut c_void) -> CUresult;
    cuStreamWriteValue32: rocm "hipStreamWriteValue32", Driver "cuStreamWriteValue32_v2", (cudaStream_t, CUdeviceptr, u32, c_uint) -> CUresult;
    cuStreamWaitValue32: rocm none, Driver "cuStreamWaitValue32_v2", (cudaStream_t, CUdeviceptr, u32, c_uint) -> CUresult;
    hipStreamWaitValue32: rocm "hipStreamWaitValue32", Runtime none, (cudaStream_t, CUdeviceptr, u32, c_uint, u32) -> cudaError_t;
    cuFlushGPUDirectRDMAWrites: rocm none, Driver "cuFlushGPUDirectRDMAWrites", (c_int, c_int) -> CUresult;
    hsa_amd_portable_export_dmabuf: rocm "hsa_amd_portable_export_dmabuf", Hsa none, (*const c_void, usize, *mut c_int, *mut u64) -> sys::hsa_status_t;
    hsa_amd_portable_close_dmabuf: rocm "hsa_amd_portable_close_dmabuf", Hsa none, (c_int) -> sys::hsa_status_t;
}
