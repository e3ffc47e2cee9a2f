//! Contexts, modules and launches, virtual memory, dma-buf, IPC.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Api, Result, call};
use crate::error::GpuError;
use crate::platform::Platform;
use crate::rocm_compat as rt;

/// How many threads a kernel is started with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
}

impl Api {
    /// Runs `work` with the device's context current on this thread; the thread's own is put back after.
    ///
    /// CUDA's driver needs one for what follows, and taking the primary context would create it where there is none:
    /// that is refused. HIP keeps contexts to itself.
    pub(crate) fn with_context<T>(
        &self,
        device: c_int,
        doing: &'static str,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if self.platform == Platform::Rocm {
            return work();
        }
        let (mut flags, mut active) = (0 as c_uint, 0 as c_int);
        let (mut before, mut primary) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: writes two integers.
        unsafe {
            call!(
                self,
                cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active)
            )
        }?;
        if active == 0 {
            return Err(GpuError::NoContext { device, doing });
        }
        // SAFETY: writes one handle.
        unsafe { call!(self, cuCtxGetCurrent(&raw mut before)) }?;
        // SAFETY: writes one handle, which is held until it is released below.
        unsafe { call!(self, cuDevicePrimaryCtxRetain(&raw mut primary, device)) }?;
        // SAFETY: a context that was just retained.
        let done = unsafe { call!(self, cuCtxSetCurrent(primary)) }.and_then(|()| work());
        // SAFETY: the context that this thread had before, or none. A failure leaves the primary one, which is harmless.
        let _ = unsafe { call!(self, cuCtxSetCurrent(before)) };
        // SAFETY: retained above. It stays alive by whoever made it active.
        let _ = unsafe { call!(self, cuDevicePrimaryCtxRelease(device)) };
        done
    }

    /// # Safety
    ///
    /// `image` is a whole code object, cubin or PTX text that ends in a zero byte.
    pub(crate) unsafe fn load_module(&self, image: &[u8]) -> Result<rt::CUmodule> {
        let mut module = std::ptr::null_mut();
        // SAFETY: writes one handle; the image is copied.
        unsafe { call!(self, cuModuleLoadData(&raw mut module, image.as_ptr().cast())) }?;
        Ok(module)
    }

    /// # Safety
    ///
    /// `module` is live, its kernels have ended, and nobody uses it again.
    pub(crate) unsafe fn unload_module(&self, module: rt::CUmodule) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cuModuleUnload(module)) }
    }

    /// # Safety
    ///
    /// `module` is live.
    pub(crate) unsafe fn module_function(&self, module: rt::CUmodule, name: &CStr) -> Result<rt::CUfunction> {
        let mut function = std::ptr::null_mut();
        // SAFETY: as the caller promises; writes one handle.
        unsafe {
            call!(
                self,
                cuModuleGetFunction(&raw mut function, module, name.as_ptr())
            )
        }?;
        Ok(function)
    }

    /// # Safety
    ///
    /// `function`'s module is live.
    pub(crate) unsafe fn function_attribute(
        &self,
        function: rt::CUfunction,
        attribute: c_int,
    ) -> Result<c_int> {
        let mut value = 0;
        // SAFETY: as the caller promises; writes one integer.
        unsafe { call!(self, cuFuncGetAttribute(&raw mut value, attribute, function)) }?;
        Ok(value)
    }

    /// How many blocks of so many threads run on a multiprocessor at a time.
    ///
    /// # Safety
    ///
    /// `function`'s module is live.
    pub(crate) unsafe fn blocks_per_multiprocessor(
        &self,
        function: rt::CUfunction,
        threads: u32,
    ) -> Result<c_int> {
        let mut blocks = 0;
        let threads = threads.cast_signed();
        // SAFETY: as the caller promises; writes one integer.
        unsafe {
            call!(
                self,
                cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, function, threads, 0)
            )
        }?;
        Ok(blocks)
    }

    /// # Safety
    ///
    /// `function` and `stream` are live; `arguments` has a pointer to each of the kernel's parameters; what these point
    /// to on the device lives until the stream has come to this point.
    pub(crate) unsafe fn launch(
        &self,
        function: rt::CUfunction,
        size: Launch,
        stream: rt::cudaStream_t,
        arguments: &mut [*mut c_void],
    ) -> Result<()> {
        let (blocks, threads, arguments) = (size.blocks, size.threads, arguments.as_mut_ptr());
        let none = std::ptr::null_mut();
        // SAFETY: as the caller promises; the parameters are copied before the call returns.
        unsafe {
            call!(
                self,
                cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, none)
            )
        }
    }

    /// The allocation that an address lies in; none when it is not a live one.
    pub(crate) fn address_range(&self, address: *mut c_void) -> Option<(usize, usize)> {
        let (mut base, mut bytes) = (std::ptr::null_mut(), 0);
        // SAFETY: writes one pointer and one integer; the address is looked up, not followed.
        unsafe { call!(self, cuMemGetAddressRange(&raw mut base, &raw mut bytes, address)) }.ok()?;
        Some((base as usize, bytes))
    }

    /// A number that no other allocation of this process has had; none where the runtime has no such thing.
    pub(crate) fn buffer_id(&self, address: *mut c_void) -> Option<u64> {
        let mut id = 0_u64;
        let what = rt::CU_POINTER_ATTRIBUTE_BUFFER_ID;
        // SAFETY: writes eight bytes for this attribute; the address is looked up, not followed.
        unsafe { call!(self, cuPointerGetAttribute((&raw mut id).cast(), what, address)) }.ok()?;
        Some(id)
    }

    /// A dma-buf of a range and where in it the range begins: by the function that CUDA has, and ROCm since 7, else by
    /// that of the HSA library.
    pub(crate) fn dma_buf(&self, address: *mut c_void, bytes: usize) -> Result<(OwnedFd, u64)> {
        if self.table.cuMemGetHandleForAddressRange.is_some() {
            let mut descriptor: c_int = -1;
            let (to, kind) = (
                (&raw mut descriptor).cast(),
                rt::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
            );
            // SAFETY: writes one descriptor for this type of handle; the range is looked up, not followed.
            let done = unsafe { call!(self, cuMemGetHandleForAddressRange(to, address, bytes, kind, 0)) };
            match done {
                // SAFETY: a new descriptor that is this process's alone.
                Ok(()) if descriptor >= 0 => return Ok((unsafe { OwnedFd::from_raw_fd(descriptor) }, 0)),
                Err(error) if self.table.hsa_amd_portable_export_dmabuf.is_none() => return Err(error),
                _ => {}
            }
        }
        self.dma_buf_by_hsa(address, bytes)
    }

    fn dma_buf_by_hsa(&self, address: *mut c_void, bytes: usize) -> Result<(OwnedFd, u64)> {
        let wanted = "hsa_amd_portable_export_dmabuf";
        let function = self
            .table
            .hsa_amd_portable_export_dmabuf
            .ok_or_else(|| self.missing(wanted))?;
        let (mut descriptor, mut offset) = (-1, 0);
        // SAFETY: writes one descriptor and one offset; the range is looked up, not followed.
        let status = unsafe { function(address, bytes, &raw mut descriptor, &raw mut offset) };
        if status != 0 || descriptor < 0 {
            let text = "the HSA library exports no dma-buf of this memory".to_owned();
            return Err(GpuError::Failed {
                function: wanted,
                code: status.cast_signed(),
                name: "hsa_status_t".to_owned(),
                text,
            });
        }
        // SAFETY: a new descriptor that is this process's alone; closing it is what the library's own function does.
        Ok((unsafe { OwnedFd::from_raw_fd(descriptor) }, offset))
    }

    /// # Safety
    ///
    /// `address` is the base of a live allocation.
    pub(crate) unsafe fn ipc_handle(&self, address: *mut c_void) -> Result<rt::cudaIpcMemHandle_t> {
        let mut handle = rt::cudaIpcMemHandle_t { reserved: [0; 64] };
        // SAFETY: as the caller promises; writes 64 bytes.
        unsafe { call!(self, cudaIpcGetMemHandle(&raw mut handle, address)) }?;
        Ok(handle)
    }

    pub(crate) fn open_ipc(&self, handle: rt::cudaIpcMemHandle_t) -> Result<*mut c_void> {
        let mut address = std::ptr::null_mut();
        // SAFETY: writes one pointer; the handle's bytes are checked by the driver.
        unsafe {
            call!(
                self,
                cudaIpcOpenMemHandle(&raw mut address, handle, rt::cudaIpcMemLazyEnablePeerAccess)
            )
        }?;
        Ok(address)
    }

    /// # Safety
    ///
    /// `address` is from [`Self::open_ipc`] and nobody uses it again.
    pub(crate) unsafe fn close_ipc(&self, address: *mut c_void) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cudaIpcCloseMemHandle(address)) }
    }

    /// Copies that return before their bytes are there would break one-sided reads: the driver is told to wait.
    pub(crate) fn set_sync_memops(&self, address: *mut c_void) -> Result<()> {
        let flag: c_uint = 1;
        // SAFETY: reads one integer for this attribute; the address is looked up, not followed.
        unsafe {
            call!(
                self,
                cuPointerSetAttribute(
                    (&raw const flag).cast(),
                    rt::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                    address
                )
            )
        }
    }

    pub(crate) fn granularity(&self, wanted: &rt::CUmemAllocationProp) -> Result<usize> {
        let mut bytes = 0;
        // SAFETY: reads the structure, writes one integer.
        unsafe {
            call!(
                self,
                cuMemGetAllocationGranularity(
                    &raw mut bytes,
                    wanted,
                    rt::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
                )
            )
        }?;
        Ok(bytes)
    }

    pub(crate) fn create_physical(
        &self,
        bytes: usize,
        wanted: &rt::CUmemAllocationProp,
    ) -> Result<rt::CUmemGenericAllocationHandle> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: reads the structure, writes one handle.
        unsafe { call!(self, cuMemCreate(&raw mut handle, bytes, wanted, 0)) }?;
        Ok(handle)
    }

    /// # Safety
    ///
    /// `handle` is live and nobody uses it again; what is mapped of it stays.
    pub(crate) unsafe fn release_physical(&self, handle: rt::CUmemGenericAllocationHandle) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cuMemRelease(handle)) }
    }

    /// # Safety
    ///
    /// `handle` is live.
    pub(crate) unsafe fn export_physical(&self, handle: rt::CUmemGenericAllocationHandle) -> Result<OwnedFd> {
        let mut descriptor: c_int = -1;
        let kind = rt::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: as the caller promises; writes one descriptor for this type of handle.
        unsafe {
            call!(
                self,
                cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, kind, 0)
            )
        }?;
        if descriptor < 0 {
            return Err(GpuError::refused(
                "the driver exported memory as a negative descriptor",
            ));
        }
        // SAFETY: a new descriptor that is this process's alone.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    pub(crate) fn import_physical(
        &self,
        descriptor: BorrowedFd<'_>,
    ) -> Result<rt::CUmemGenericAllocationHandle> {
        let mut handle = std::ptr::null_mut();
        let kind = rt::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        let mut number = descriptor.as_raw_fd();
        // CUDA takes the descriptor's number in place of the pointer, and so does HIP since 7.1; before, it followed one.
        let old = self.platform == Platform::Rocm && self.versions()?.0 < 70_100_000;
        let number = if old {
            (&raw mut number).cast()
        } else {
            std::ptr::without_provenance_mut(number.unsigned_abs() as usize)
        };
        // SAFETY: writes one handle; the descriptor, and the integer where it is asked for, live during the call.
        unsafe {
            call!(
                self,
                cuMemImportFromShareableHandle(&raw mut handle, number, kind)
            )
        }?;
        Ok(handle)
    }

    pub(crate) fn reserve_addresses(&self, bytes: usize) -> Result<rt::CUdeviceptr> {
        let mut address = std::ptr::null_mut();
        // SAFETY: writes one address.
        unsafe {
            call!(
                self,
                cuMemAddressReserve(&raw mut address, bytes, 0, std::ptr::null_mut(), 0)
            )
        }?;
        Ok(address)
    }

    /// # Safety
    ///
    /// The range was reserved, nothing is mapped in it, and nobody uses it again.
    pub(crate) unsafe fn free_addresses(&self, address: rt::CUdeviceptr, bytes: usize) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cuMemAddressFree(address, bytes)) }
    }

    /// # Safety
    ///
    /// The range was reserved with nothing mapped in it, and `handle` is live and as long.
    pub(crate) unsafe fn map(
        &self,
        address: rt::CUdeviceptr,
        bytes: usize,
        handle: rt::CUmemGenericAllocationHandle,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cuMemMap(address, bytes, 0, handle, 0)) }
    }

    /// # Safety
    ///
    /// The range is mapped as a whole and no work that uses it is in flight.
    pub(crate) unsafe fn unmap(&self, address: rt::CUdeviceptr, bytes: usize) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cuMemUnmap(address, bytes)) }
    }

    /// # Safety
    ///
    /// The range is mapped as a whole.
    pub(crate) unsafe fn allow_access(
        &self,
        address: rt::CUdeviceptr,
        bytes: usize,
        device: c_int,
    ) -> Result<()> {
        let location = rt::CUmemLocation {
            r#type: rt::CU_MEM_LOCATION_TYPE_DEVICE,
            id: device,
        };
        let access = rt::CUmemAccessDesc {
            location,
            flags: rt::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: as the caller promises; reads one structure.
        unsafe { call!(self, cuMemSetAccess(address, bytes, &raw const access, 1)) }
    }
}
