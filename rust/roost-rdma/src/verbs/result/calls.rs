//! The calls of libibverbs, each with its error.

use super::{Library, made, zero};
use crate::verbs::sys;
use std::ffi::c_int;
use std::ptr::{self, NonNull};

impl Library {
    /// # Safety
    /// `device` is in the list that `with_devices` shows at this moment.
    pub(in crate::verbs) unsafe fn open_device(
        &self,
        device: *mut sys::Device,
    ) -> Result<NonNull<sys::Context>, i32> {
        // SAFETY: the caller's.
        made(unsafe { (self.table.ibv_open_device)(device) })
    }

    /// # Safety
    /// `context` is open, nothing that was made from it is left, and nobody uses it again.
    pub(in crate::verbs) unsafe fn close_device(&self, context: NonNull<sys::Context>) {
        // SAFETY: the caller's. Nothing could be done about a failure.
        unsafe { (self.table.ibv_close_device)(context.as_ptr()) };
    }

    /// # Safety
    /// `context` is open.
    pub(in crate::verbs) unsafe fn query_device(
        &self,
        context: NonNull<sys::Context>,
    ) -> Result<sys::DeviceAttr, i32> {
        // SAFETY: plain numbers, of which zero is one.
        let mut attributes: sys::DeviceAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, by the caller; the attributes may be written.
        zero(unsafe { (self.table.ibv_query_device)(context.as_ptr(), &raw mut attributes) })?;
        Ok(attributes)
    }

    /// # Safety
    /// `context` is open.
    pub(in crate::verbs) unsafe fn query_port(
        &self,
        context: NonNull<sys::Context>,
        port: u8,
    ) -> Result<sys::PortAttr, i32> {
        // SAFETY: plain numbers, of which zero is one.
        let mut attributes: sys::PortAttr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, by the caller; the attributes may be written. The symbol fills an older, shorter struct.
        zero(unsafe { (self.table.ibv_query_port)(context.as_ptr(), port, &raw mut attributes) })?;
        Ok(attributes)
    }

    /// # Safety
    /// `context` is open.
    pub(in crate::verbs) unsafe fn query_gid(
        &self,
        context: NonNull<sys::Context>,
        port: u8,
        index: i32,
    ) -> Result<[u8; 16], i32> {
        let mut gid = sys::Gid { raw: [0; 16] };
        // SAFETY: the context is open, by the caller; the GID may be written.
        zero(unsafe { (self.table.ibv_query_gid)(context.as_ptr(), port, index, &raw mut gid) })?;
        Ok(gid.raw)
    }

    /// The valid GIDs of all ports with their types; None where the library or the kernel cannot say.
    ///
    /// # Safety
    /// `context` is open.
    pub(in crate::verbs) unsafe fn query_gid_table(
        &self,
        context: NonNull<sys::Context>,
    ) -> Option<Vec<sys::GidEntry>> {
        const ENTRIES: usize = 512;
        let query = self.table.query_gid_table?;
        let mut entries: Vec<sys::GidEntry> = Vec::with_capacity(ENTRIES);
        // SAFETY: the context is open, by the caller; there is room for as many entries of this size.
        let count = unsafe {
            query(
                context.as_ptr(),
                entries.as_mut_ptr(),
                ENTRIES,
                0,
                size_of::<sys::GidEntry>(),
            )
        };
        let count = usize::try_from(count).ok()?.min(ENTRIES);
        // SAFETY: the library wrote `count` entries.
        unsafe { entries.set_len(count) };
        Some(entries)
    }

    /// # Safety
    /// `context` is open.
    pub(in crate::verbs) unsafe fn alloc_pd(
        &self,
        context: NonNull<sys::Context>,
    ) -> Result<NonNull<sys::ProtectionDomain>, i32> {
        // SAFETY: the caller's.
        made(unsafe { (self.table.ibv_alloc_pd)(context.as_ptr()) })
    }

    /// # Safety
    /// Nothing that was made in `pd` is left, and nobody uses it again.
    pub(in crate::verbs) unsafe fn dealloc_pd(&self, pd: NonNull<sys::ProtectionDomain>) {
        // SAFETY: the caller's.
        unsafe { (self.table.ibv_dealloc_pd)(pd.as_ptr()) };
    }

    /// # Safety
    /// `pd` lives. The memory may be anything: what is not mapped is refused by the kernel.
    pub(in crate::verbs) unsafe fn reg_mr(
        &self,
        pd: NonNull<sys::ProtectionDomain>,
        address: usize,
        bytes: usize,
        access: c_int,
    ) -> Result<NonNull<sys::MemoryRegion>, i32> {
        // SAFETY: the caller's.
        made(unsafe {
            (self.table.ibv_reg_mr)(
                pd.as_ptr(),
                ptr::with_exposed_provenance_mut(address),
                bytes,
                access,
            )
        })
    }

    /// # Safety
    /// `pd` lives.
    pub(in crate::verbs) unsafe fn reg_dmabuf_mr(
        &self,
        pd: NonNull<sys::ProtectionDomain>,
        offset: u64,
        bytes: usize,
        address: u64,
        fd: c_int,
        access: c_int,
    ) -> Result<NonNull<sys::MemoryRegion>, i32> {
        let register = self.table.reg_dmabuf_mr.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: the caller's; the kernel refuses what is no dma-buf.
        made(unsafe { register(pd.as_ptr(), offset, bytes, address, fd, access) })
    }

    /// # Safety
    /// `region` is registered, and nobody uses it again.
    pub(in crate::verbs) unsafe fn dereg_mr(&self, region: NonNull<sys::MemoryRegion>) {
        // SAFETY: the caller's. A failure means that the device is gone, and its regions with it.
        unsafe { (self.table.ibv_dereg_mr)(region.as_ptr()) };
    }

    /// # Safety
    /// `context` is open.
    pub(in crate::verbs) unsafe fn create_channel(
        &self,
        context: NonNull<sys::Context>,
    ) -> Result<NonNull<sys::CompletionChannel>, i32> {
        // SAFETY: the caller's.
        made(unsafe { (self.table.ibv_create_comp_channel)(context.as_ptr()) })
    }

    /// # Safety
    /// No completion queue uses `channel`, and nobody uses it again.
    pub(in crate::verbs) unsafe fn destroy_channel(&self, channel: NonNull<sys::CompletionChannel>) {
        // SAFETY: the caller's.
        unsafe { (self.table.ibv_destroy_comp_channel)(channel.as_ptr()) };
    }

    /// # Safety
    /// `context` is open and `channel` is one of its.
    pub(in crate::verbs) unsafe fn create_cq(
        &self,
        context: NonNull<sys::Context>,
        entries: c_int,
        channel: NonNull<sys::CompletionChannel>,
    ) -> Result<NonNull<sys::CompletionQueue>, i32> {
        // SAFETY: the caller's; vector 0 is always there.
        made(unsafe {
            (self.table.ibv_create_cq)(context.as_ptr(), entries, ptr::null_mut(), channel.as_ptr(), 0)
        })
    }

    /// # Safety
    /// No queue pair uses `queue`, all its events are acknowledged, and nobody uses it again.
    pub(in crate::verbs) unsafe fn destroy_cq(&self, queue: NonNull<sys::CompletionQueue>) {
        // SAFETY: the caller's.
        unsafe { (self.table.ibv_destroy_cq)(queue.as_ptr()) };
    }

    /// Takes one event off the channel, and acknowledges it. False when there is none.
    ///
    /// # Safety
    /// `channel` lives, its descriptor does not block, and its queues live.
    pub(in crate::verbs) unsafe fn take_event(&self, channel: NonNull<sys::CompletionChannel>) -> bool {
        let (mut queue, mut data) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel lives, by the caller; both pointers may be written.
        if unsafe { (self.table.ibv_get_cq_event)(channel.as_ptr(), &raw mut queue, &raw mut data) } != 0 {
            return false;
        }
        // SAFETY: the library named a queue of this channel, which lives by the caller's word.
        unsafe { (self.table.ibv_ack_cq_events)(queue, 1) };
        true
    }

    /// # Safety
    /// `pd` lives, and so do the queues that `wanted` names.
    pub(in crate::verbs) unsafe fn create_qp(
        &self,
        pd: NonNull<sys::ProtectionDomain>,
        wanted: &mut sys::QueuePairInit,
    ) -> Result<NonNull<sys::QueuePair>, i32> {
        // SAFETY: the caller's.
        made(unsafe { (self.table.ibv_create_qp)(pd.as_ptr(), wanted) })
    }

    /// # Safety
    /// `pair` lives.
    pub(in crate::verbs) unsafe fn modify_qp(
        &self,
        pair: NonNull<sys::QueuePair>,
        attributes: &mut sys::QueuePairAttr,
        mask: c_int,
    ) -> Result<(), i32> {
        // SAFETY: the caller's.
        zero(unsafe { (self.table.ibv_modify_qp)(pair.as_ptr(), attributes, mask) })
    }

    /// # Safety
    /// `pair` lives, and nobody uses it again.
    pub(in crate::verbs) unsafe fn destroy_qp(&self, pair: NonNull<sys::QueuePair>) {
        // SAFETY: the caller's.
        unsafe { (self.table.ibv_destroy_qp)(pair.as_ptr()) };
    }
}

/// Hands requests to a queue pair; how many it took, and why not the others.
///
/// # Safety
/// `pair` lives; `first` leads a chain of requests that point to their scatter lists; the memory that these name lives until each completes.
pub(in crate::verbs) unsafe fn post_send(
    pair: NonNull<sys::QueuePair>,
    first: *mut sys::SendRequest,
) -> Result<(), (i32, *mut sys::SendRequest)> {
    let mut bad = ptr::null_mut();
    // SAFETY: the pair lives, and a context has all its functions from its opening to its end.
    let code = unsafe {
        let post = (*(*pair.as_ptr()).context)
            .ops
            .post_send
            .expect("a provider of RC queue pairs posts");
        post(pair.as_ptr(), first, &raw mut bad)
    };
    if code == 0 { Ok(()) } else { Err((code.abs(), bad)) }
}

/// Takes completions off the queue.
///
/// # Safety
/// `queue` lives.
pub(in crate::verbs) unsafe fn poll_cq(
    queue: NonNull<sys::CompletionQueue>,
    into: &mut [sys::WorkCompletion],
) -> Result<usize, i32> {
    let room = c_int::try_from(into.len()).unwrap_or(c_int::MAX);
    // SAFETY: as above; there is room for as many.
    let count = unsafe {
        let poll = (*(*queue.as_ptr()).context)
            .ops
            .poll_cq
            .expect("a provider polls");
        poll(queue.as_ptr(), room, into.as_mut_ptr())
    };
    usize::try_from(count).map_err(|_| count.abs())
}

/// Asks for an event at the next completion.
///
/// # Safety
/// `queue` lives.
pub(in crate::verbs) unsafe fn request_event(queue: NonNull<sys::CompletionQueue>) -> Result<(), i32> {
    // SAFETY: as above.
    zero(unsafe {
        let request = (*(*queue.as_ptr()).context)
            .ops
            .req_notify_cq
            .expect("a provider notifies");
        request(queue.as_ptr(), 0)
    })
}
