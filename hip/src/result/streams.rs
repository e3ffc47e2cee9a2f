//! Streams, events, functions of the host in a stream, and values that a stream writes or waits for.

use std::ffi::c_void;

use super::{Api, Result, call};
use crate::rocm_compat as rt;

impl Api {
    pub(crate) fn create_stream(&self) -> Result<rt::cudaStream_t> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe {
            call!(
                self,
                cudaStreamCreateWithFlags(&raw mut stream, rt::cudaStreamNonBlocking)
            )
        }?;
        Ok(stream)
    }

    /// # Safety
    ///
    /// `stream` is live and nobody uses it again.
    pub(crate) unsafe fn destroy_stream(&self, stream: rt::cudaStream_t) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cudaStreamDestroy(stream)) }
    }

    /// # Safety
    ///
    /// `stream` is live, or null for the default one.
    pub(crate) unsafe fn synchronize_stream(&self, stream: rt::cudaStream_t) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cudaStreamSynchronize(stream)) }
    }

    /// # Safety
    ///
    /// `stream` is live, or null for the default one.
    pub(crate) unsafe fn stream_is_idle(&self, stream: rt::cudaStream_t) -> Result<bool> {
        let query = self
            .table
            .cudaStreamQuery
            .ok_or_else(|| self.missing("cudaStreamQuery"))?;
        // SAFETY: as the caller promises.
        self.ready("cudaStreamQuery", unsafe { query(stream) })
    }

    /// # Safety
    ///
    /// Both are live.
    pub(crate) unsafe fn stream_waits(&self, stream: rt::cudaStream_t, event: rt::cudaEvent_t) -> Result<()> {
        // SAFETY: as the caller promises; the flags must be zero.
        unsafe { call!(self, cudaStreamWaitEvent(stream, event, 0)) }
    }

    /// # Safety
    ///
    /// `stream` is live; `function` is called once with `data`, on a thread of the runtime's, and neither unwinds nor
    /// calls the runtime.
    pub(crate) unsafe fn call_in_stream(
        &self,
        stream: rt::cudaStream_t,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cudaLaunchHostFunc(stream, Some(function), data)) }
    }

    pub(crate) fn create_event(&self, flags: u32) -> Result<rt::cudaEvent_t> {
        let mut event = std::ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { call!(self, cudaEventCreateWithFlags(&raw mut event, flags)) }?;
        Ok(event)
    }

    /// # Safety
    ///
    /// `event` is live and nobody uses it again.
    pub(crate) unsafe fn destroy_event(&self, event: rt::cudaEvent_t) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cudaEventDestroy(event)) }
    }

    /// # Safety
    ///
    /// Both are live.
    pub(crate) unsafe fn record(&self, event: rt::cudaEvent_t, stream: rt::cudaStream_t) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cudaEventRecord(event, stream)) }
    }

    /// # Safety
    ///
    /// `event` is live.
    pub(crate) unsafe fn event_has_come(&self, event: rt::cudaEvent_t) -> Result<bool> {
        let query = self
            .table
            .cudaEventQuery
            .ok_or_else(|| self.missing("cudaEventQuery"))?;
        // SAFETY: as the caller promises.
        self.ready("cudaEventQuery", unsafe { query(event) })
    }

    /// # Safety
    ///
    /// `event` is live.
    pub(crate) unsafe fn wait_for_event(&self, event: rt::cudaEvent_t) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cudaEventSynchronize(event)) }
    }

    /// # Safety
    ///
    /// Both are live, were made with timing, and have come.
    pub(crate) unsafe fn elapsed_ms(&self, start: rt::cudaEvent_t, end: rt::cudaEvent_t) -> Result<f32> {
        let mut elapsed_ms = 0.0;
        // SAFETY: as the caller promises; writes one float.
        unsafe { call!(self, cudaEventElapsedTime(&raw mut elapsed_ms, start, end)) }?;
        Ok(elapsed_ms)
    }

    /// # Safety
    ///
    /// `stream` is live, and `address` is four aligned bytes of memory that the device may write until the stream has
    /// come to this point.
    pub(crate) unsafe fn write_value(
        &self,
        stream: rt::cudaStream_t,
        address: *mut c_void,
        value: u32,
    ) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { call!(self, cuStreamWriteValue32(stream, address, value, 0)) }
    }

    /// The stream waits until the value is at least this one. HIP takes the mask that CUDA has not: all bits count.
    ///
    /// # Safety
    ///
    /// `stream` is live, and `address` is four aligned bytes of memory that live until the stream has come past this.
    pub(crate) unsafe fn wait_value(
        &self,
        stream: rt::cudaStream_t,
        address: *mut c_void,
        value: u32,
    ) -> Result<()> {
        let flags = rt::CU_STREAM_WAIT_VALUE_GEQ;
        match self.platform {
            // SAFETY: as the caller promises.
            crate::platform::Platform::Rocm => unsafe {
                call!(
                    self,
                    hipStreamWaitValue32(stream, address, value, flags, u32::MAX)
                )
            },
            // SAFETY: as the caller promises.
            crate::platform::Platform::Cuda => unsafe {
                call!(self, cuStreamWaitValue32(stream, address, value, flags))
            },
        }
    }
}
