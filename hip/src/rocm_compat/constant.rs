//! Constants that have the same value in HIP and in CUDA, under their CUDA names.

use std::ffi::{c_int, c_uint};

/// A constant's name in CUDA, its name in HIP, and its value.
#[derive(Debug, Clone, Copy)]
pub struct Constant {
    /// In CUDA's headers.
    pub cuda: &'static str,
    /// In HIP's headers.
    pub hip: &'static str,
    /// In both.
    pub value: i64,
}

macro_rules! constants {
    ($($cuda:ident = $hip:literal: $kind:ty = $value:expr;)*) => {
        $(pub const $cuda: $kind = $value;)*
        /// All of them, for the test that reads the headers.
        pub const CONSTANTS: &[Constant] =
            &[$(Constant { cuda: stringify!($cuda), hip: $hip, value: $cuda as i64 }),*];
    };
}

constants! {
    cudaSuccess = "hipSuccess": c_int = 0;
    cudaErrorInvalidValue = "hipErrorInvalidValue": c_int = 1;
    cudaErrorMemoryAllocation = "hipErrorOutOfMemory": c_int = 2;
    cudaErrorInitializationError = "hipErrorNotInitialized": c_int = 3;
    cudaErrorCudartUnloading = "hipErrorDeinitialized": c_int = 4;
    cudaErrorInvalidMemcpyDirection = "hipErrorInvalidMemcpyDirection": c_int = 21;
    cudaErrorInsufficientDriver = "hipErrorInsufficientDriver": c_int = 35;
    cudaErrorInvalidDeviceFunction = "hipErrorInvalidDeviceFunction": c_int = 98;
    cudaErrorNoDevice = "hipErrorNoDevice": c_int = 100;
    cudaErrorInvalidDevice = "hipErrorInvalidDevice": c_int = 101;
    cudaErrorInvalidKernelImage = "hipErrorInvalidImage": c_int = 200;
    cudaErrorDeviceUninitialized = "hipErrorInvalidContext": c_int = 201;
    cudaErrorNoKernelImageForDevice = "hipErrorNoBinaryForGpu": c_int = 209;
    cudaErrorInvalidSource = "hipErrorInvalidSource": c_int = 300;
    cudaErrorInvalidResourceHandle = "hipErrorInvalidHandle": c_int = 400;
    cudaErrorSymbolNotFound = "hipErrorNotFound": c_int = 500;
    cudaErrorNotReady = "hipErrorNotReady": c_int = 600;
    cudaErrorIllegalAddress = "hipErrorIllegalAddress": c_int = 700;
    cudaErrorLaunchOutOfResources = "hipErrorLaunchOutOfResources": c_int = 701;
    cudaErrorLaunchTimeout = "hipErrorLaunchTimeOut": c_int = 702;
    cudaErrorPeerAccessAlreadyEnabled = "hipErrorPeerAccessAlreadyEnabled": c_int = 704;
    cudaErrorAssert = "hipErrorAssert": c_int = 710;
    cudaErrorHostMemoryAlreadyRegistered = "hipErrorHostMemoryAlreadyRegistered": c_int = 712;
    cudaErrorHostMemoryNotRegistered = "hipErrorHostMemoryNotRegistered": c_int = 713;
    cudaErrorLaunchFailure = "hipErrorLaunchFailure": c_int = 719;
    cudaErrorNotSupported = "hipErrorNotSupported": c_int = 801;
    cudaErrorUnknown = "hipErrorUnknown": c_int = 999;
    cudaMemcpyHostToHost = "hipMemcpyHostToHost": c_int = 0;
    cudaMemcpyHostToDevice = "hipMemcpyHostToDevice": c_int = 1;
    cudaMemcpyDeviceToHost = "hipMemcpyDeviceToHost": c_int = 2;
    cudaMemcpyDeviceToDevice = "hipMemcpyDeviceToDevice": c_int = 3;
    cudaMemcpyDefault = "hipMemcpyDefault": c_int = 4;
    cudaStreamDefault = "hipStreamDefault": c_uint = 0;
    cudaStreamNonBlocking = "hipStreamNonBlocking": c_uint = 1;
    cudaEventDefault = "hipEventDefault": c_uint = 0;
    cudaEventBlockingSync = "hipEventBlockingSync": c_uint = 1;
    cudaEventDisableTiming = "hipEventDisableTiming": c_uint = 2;
    cudaEventInterprocess = "hipEventInterprocess": c_uint = 4;
    cudaHostAllocDefault = "hipHostMallocDefault": c_uint = 0;
    cudaHostAllocPortable = "hipHostMallocPortable": c_uint = 1;
    cudaHostAllocMapped = "hipHostMallocMapped": c_uint = 2;
    cudaHostAllocWriteCombined = "hipHostMallocWriteCombined": c_uint = 4;
    cudaHostRegisterDefault = "hipHostRegisterDefault": c_uint = 0;
    cudaHostRegisterPortable = "hipHostRegisterPortable": c_uint = 1;
    cudaHostRegisterMapped = "hipHostRegisterMapped": c_uint = 2;
    cudaIpcMemLazyEnablePeerAccess = "hipIpcMemLazyEnablePeerAccess": c_uint = 1;
    cudaMemoryTypeUnregistered = "hipMemoryTypeUnregistered": c_int = 0;
    cudaMemoryTypeHost = "hipMemoryTypeHost": c_int = 1;
    cudaMemoryTypeDevice = "hipMemoryTypeDevice": c_int = 2;
    cudaMemoryTypeManaged = "hipMemoryTypeManaged": c_int = 3;
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = "HIP_POINTER_ATTRIBUTE_MEMORY_TYPE": c_int = 2;
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = "HIP_POINTER_ATTRIBUTE_SYNC_MEMOPS": c_int = 6;
    CU_POINTER_ATTRIBUTE_BUFFER_ID = "HIP_POINTER_ATTRIBUTE_BUFFER_ID": c_int = 7;
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = "HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL": c_int = 9;
    CU_MEM_LOCATION_TYPE_DEVICE = "hipMemLocationTypeDevice": c_int = 1;
    CU_MEM_ALLOCATION_TYPE_PINNED = "hipMemAllocationTypePinned": c_int = 1;
    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = "hipMemHandleTypePosixFileDescriptor": c_int = 1;
    CU_MEM_ALLOC_GRANULARITY_MINIMUM = "hipMemAllocationGranularityMinimum": c_int = 0;
    CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = "hipMemAllocationGranularityRecommended": c_int = 1;
    CU_MEM_ACCESS_FLAGS_PROT_READWRITE = "hipMemAccessFlagsProtReadWrite": c_int = 3;
    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = "hipMemRangeHandleTypeDmaBufFd": c_int = 1;
    CU_STREAM_WAIT_VALUE_GEQ = "hipStreamWaitValueGte": c_uint = 0;
    CU_STREAM_WAIT_VALUE_EQ = "hipStreamWaitValueEq": c_uint = 1;
    CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK = "HIP_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK": c_int = 0;
    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES = "HIP_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES": c_int = 1;
    CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES = "HIP_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES": c_int = 3;
    CU_FUNC_ATTRIBUTE_NUM_REGS = "HIP_FUNC_ATTRIBUTE_NUM_REGS": c_int = 4;
}
