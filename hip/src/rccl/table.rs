//! NCCL's types and functions as `nccl.h` and `rccl.h` have them.

#![allow(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    missing_docs,
    reason = "the names are the vendors', who document them"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::rocm_compat::cudaStream_t;
use crate::symbols::{structures, table};
use crate::sys::Opaque;

pub type ncclResult_t = c_int;
pub type ncclDataType_t = c_int;
pub type ncclRedOp_t = c_int;
pub type ncclComm_t = *mut Opaque;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ncclUniqueId {
    pub internal: [c_char; 128],
}

/// The members up to NCCL 2.27. Later versions have more behind these and take shorter structures by their length.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ncclConfig_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cgaClusterSize: c_int,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    pub netName: *const c_char,
    pub splitShare: c_int,
    pub trafficClass: c_int,
    pub commName: *const c_char,
    pub collnetEnable: c_int,
    pub CTAPolicy: c_int,
    pub shrinkShare: c_int,
    pub nvlsCTAs: c_int,
}

structures!(ncclUniqueId, ncclConfig_t);

macro_rules! constants {
    ($($name:ident = $value:expr;)*) => {
        $(pub const $name: c_int = $value;)*
        /// All of them, for the test that reads the headers.
        pub const CONSTANTS: &[(&str, i64)] = &[$((stringify!($name), $name as i64)),*];
    };
}

constants! {
    ncclSuccess = 0;
    ncclUnhandledCudaError = 1;
    ncclSystemError = 2;
    ncclInternalError = 3;
    ncclInvalidArgument = 4;
    ncclInvalidUsage = 5;
    ncclRemoteError = 6;
    ncclInProgress = 7;
    ncclInt8 = 0;
    ncclUint8 = 1;
    ncclInt32 = 2;
    ncclUint32 = 3;
    ncclInt64 = 4;
    ncclUint64 = 5;
    ncclFloat16 = 6;
    ncclFloat32 = 7;
    ncclFloat64 = 8;
    ncclBfloat16 = 9;
    ncclSum = 0;
    ncclProd = 1;
    ncclMax = 2;
    ncclMin = 3;
    ncclAvg = 4;
    NCCL_UNIQUE_ID_BYTES = 128;
    NCCL_CONFIG_UNDEF_INT = c_int::MIN;
    NCCL_SPLIT_NOCOLOR = -1;
}

/// What every configuration begins with.
pub const NCCL_API_MAGIC: c_uint = 0xcafe_beef;

/// A library without one of these is not used. The others are younger, or the vendor's own.
pub const CORE: &[&str] = &[
    "ncclGetVersion",
    "ncclGetUniqueId",
    "ncclCommInitRank",
    "ncclCommDestroy",
    "ncclCommAbort",
    "ncclCommGetAsyncError",
    "ncclCommCount",
    "ncclCommCuDevice",
    "ncclCommUserRank",
    "ncclGetErrorString",
    "ncclGetLastError",
    "ncclReduce",
    "ncclBroadcast",
    "ncclAllReduce",
    "ncclReduceScatter",
    "ncclAllGather",
    "ncclSend",
    "ncclRecv",
    "ncclGroupStart",
    "ncclGroupEnd",
];

table! {
    /// The functions of RCCL and NCCL, as far as the library has them.
    pub struct Functions;

    ncclGetVersion: rocm "ncclGetVersion", Collectives "ncclGetVersion", (*mut c_int) -> ncclResult_t;
    ncclGetUniqueId: rocm "ncclGetUniqueId", Collectives "ncclGetUniqueId", (*mut ncclUniqueId) -> ncclResult_t;
    ncclCommInitRank: rocm "ncclCommInitRank", Collectives "ncclCommInitRank", (*mut ncclComm_t, c_int, ncclUniqueId, c_int) -> ncclResult_t;
    ncclCommInitRankConfig: rocm "ncclCommInitRankConfig", Collectives "ncclCommInitRankConfig", (*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> ncclResult_t;
    ncclCommFinalize: rocm "ncclCommFinalize", Collectives "ncclCommFinalize", (ncclComm_t) -> ncclResult_t;
    ncclCommDestroy: rocm "ncclCommDestroy", Collectives "ncclCommDestroy", (ncclComm_t) -> ncclResult_t;
    ncclCommAbort: rocm "ncclCommAbort", Collectives "ncclCommAbort", (ncclComm_t) -> ncclResult_t;
    ncclCommSplit: rocm "ncclCommSplit", Collectives "ncclCommSplit", (ncclComm_t, c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t) -> ncclResult_t;
    ncclCommShrink: rocm "ncclCommShrink", Collectives "ncclCommShrink", (ncclComm_t, *mut c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t, c_int) -> ncclResult_t;
    ncclCommRevoke: rocm "ncclCommRevoke", Collectives "ncclCommRevoke", (ncclComm_t, c_int) -> ncclResult_t;
    ncclCommGetAsyncError: rocm "ncclCommGetAsyncError", Collectives "ncclCommGetAsyncError", (ncclComm_t, *mut ncclResult_t) -> ncclResult_t;
    ncclCommCount: rocm "ncclCommCount", Collectives "ncclCommCount", (ncclComm_t, *mut c_int) -> ncclResult_t;
    ncclCommCuDevice: rocm "ncclCommCuDevice", Collectives "ncclCommCuDevice", (ncclComm_t, *mut c_int) -> ncclResult_t;
    ncclCommUserRank: rocm "ncclCommUserRank", Collectives "ncclCommUserRank", (ncclComm_t, *mut c_int) -> ncclResult_t;
    ncclCommRegister: rocm "ncclCommRegister", Collectives "ncclCommRegister", (ncclComm_t, *mut c_void, usize, *mut *mut c_void) -> ncclResult_t;
    ncclCommDeregister: rocm "ncclCommDeregister", Collectives "ncclCommDeregister", (ncclComm_t, *mut c_void) -> ncclResult_t;
    ncclMemAlloc: rocm "ncclMemAlloc", Collectives "ncclMemAlloc", (*mut *mut c_void, usize) -> ncclResult_t;
    ncclMemFree: rocm "ncclMemFree", Collectives "ncclMemFree", (*mut c_void) -> ncclResult_t;
    ncclGetErrorString: rocm "ncclGetErrorString", Collectives "ncclGetErrorString", (ncclResult_t) -> *const c_char;
    ncclGetLastError: rocm "ncclGetLastError", Collectives "ncclGetLastError", (ncclComm_t) -> *const c_char;
    ncclReduce: rocm "ncclReduce", Collectives "ncclReduce", (*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, c_int, ncclComm_t, cudaStream_t) -> ncclResult_t;
    ncclBroadcast: rocm "ncclBroadcast", Collectives "ncclBroadcast", (*const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> ncclResult_t;
    ncclAllReduce: rocm "ncclAllReduce", Collectives "ncclAllReduce", (*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) -> ncclResult_t;
    ncclReduceScatter: rocm "ncclReduceScatter", Collectives "ncclReduceScatter", (*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t) -> ncclResult_t;
    ncclAllGather: rocm "ncclAllGather", Collectives "ncclAllGather", (*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, cudaStream_t) -> ncclResult_t;
    ncclAlltoAll: rocm "ncclAllToAll", Collectives "ncclAlltoAll", (*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, cudaStream_t) -> ncclResult_t;
    ncclSend: rocm "ncclSend", Collectives "ncclSend", (*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> ncclResult_t;
    ncclRecv: rocm "ncclRecv", Collectives "ncclRecv", (*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> ncclResult_t;
    ncclGroupStart: rocm "ncclGroupStart", Collectives "ncclGroupStart", () -> ncclResult_t;
    ncclGroupEnd: rocm "ncclGroupEnd", Collectives "ncclGroupEnd", () -> ncclResult_t;
}
