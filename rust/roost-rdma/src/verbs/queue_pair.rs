//! Queue pairs (RC) and the queues where their work completes.

use super::device::{Device, Port};
use super::offer::{Address, Half};
use super::result::{self, Error};
use super::sys;
use crate::plan::Direction;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Requests that one queue pair holds. More would only wait in the NIC instead of here, where they can still be taken back.
const REQUESTS_MAX: u32 = 128;
/// Requests that are handed over in one call.
pub(super) const CHAIN_MAX: usize = 32;

/// 4.096 µs × 2^14 = 67 ms without an answer, then again, six times: one lost packet of a hundred is ridden out, and a peer that
/// is silent ends in about half a second (devices may take up to four times as long). Each answer starts the count anew.
const TIMEOUT: u8 = 14;
/// Not 7, the most there is: soft-RoCE takes that for "for ever".
const RETRIES: u8 = 6;
/// Nothing here posts receives, so "receiver not ready" never comes from our own; 7 would mean for ever.
const RECEIVER_RETRIES: u8 = 6;
const RECEIVER_TIMER: u8 = 12;
/// Reads on the wire for each queue pair, where both devices allow as many.
const READS_MAX: u8 = 16;
/// Routers between the hosts.
const HOPS_MAX: u8 = 64;

/// A completion queue with a descriptor that becomes readable.
pub(super) struct Completions {
    device: Arc<Device>,
    channel: NonNull<sys::CompletionChannel>,
    queue: NonNull<sys::CompletionQueue>,
    /// An event was asked for, and has not been taken.
    is_armed: AtomicBool,
}

// SAFETY: "By default all verbs objects are safe for multi-threaded access" (ibv_alloc_td(3)).
unsafe impl Send for Completions {}
// SAFETY: as above.
unsafe impl Sync for Completions {}

impl Completions {
    pub(super) fn new(device: &Arc<Device>, entries: u32) -> Result<Self, Error> {
        let failed = |call, errno| result::failed(call, device.name(), errno);
        let library = device.library();
        let most = if device.limits.completions_max == 0 {
            entries
        } else {
            device.limits.completions_max
        };
        let entries = i32::try_from(entries.min(most)).unwrap_or(i32::MAX);
        // SAFETY: the device is open.
        let channel = unsafe { library.create_channel(device.raw()) }
            .map_err(|errno| failed("making a completion channel", errno))?;
        // SAFETY: as above, and the channel was just made.
        let queue = unsafe { library.create_cq(device.raw(), entries, channel) }.map_err(|errno| {
            // SAFETY: nobody else has seen the channel.
            unsafe { library.destroy_channel(channel) };
            failed("making a completion queue", errno)
        })?;
        let completions = Self {
            device: Arc::clone(device),
            channel,
            queue,
            is_armed: AtomicBool::new(false),
        };
        rustix::io::ioctl_fionbio(completions.fd(), true)
            .map_err(|errno| failed("making a descriptor that does not block", errno.raw_os_error()))?;
        Ok(completions)
    }

    /// Readable when an event is there.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and with it its descriptor, lives as long as `self`.
        unsafe { BorrowedFd::borrow_raw((*self.channel.as_ptr()).fd) }
    }

    /// The next completion makes the descriptor readable. One that is there already may not.
    pub(super) fn arm(&self) -> Result<(), Error> {
        if self.is_armed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // SAFETY: the queue lives as long as `self`.
        unsafe { result::request_event(self.queue) }
            .map_err(|errno| result::failed("asking for events", self.device.name(), errno))
    }

    /// Takes the event that made the descriptor readable, if it did; another one has to be asked for.
    pub(super) fn take_event(&self) {
        // SAFETY: the channel lives, its descriptor does not block, and its only queue is `self`'s.
        let take_event = || unsafe { self.device.library().take_event(self.channel) };
        if self.is_armed.load(Ordering::Relaxed) && take_event() {
            self.is_armed.store(false, Ordering::Relaxed);
        }
    }

    /// Takes all completions. The event of those that come meanwhile stays: the descriptor is readable, and the next look finds
    /// that another one has to be asked for.
    pub(super) fn drain(&self, mut each: impl FnMut(&sys::WorkCompletion)) -> Result<(), Error> {
        let failed = |errno| result::failed("polling completions", self.device.name(), errno);
        // SAFETY: plain numbers, of which zero is one.
        let mut some: [sys::WorkCompletion; CHAIN_MAX] = unsafe { std::mem::zeroed() };
        loop {
            // SAFETY: the queue lives as long as `self`.
            let count = unsafe { result::poll_cq(self.queue, &mut some) }.map_err(failed)?;
            some[..count].iter().for_each(&mut each);
            if count < some.len() {
                return Ok(());
            }
        }
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        // SAFETY: queue pairs hold their completions in an Arc, so none is left; each event was acknowledged when it was taken.
        unsafe {
            self.device.library().destroy_cq(self.queue);
            self.device.library().destroy_channel(self.channel);
        }
    }
}

/// One read or write of adjacent bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    /// Comes back with the completion.
    pub(super) number: u64,
    pub(super) direction: Direction,
    pub(super) local: u64,
    pub(super) local_key: u32,
    /// 0: asks for nothing but an answer.
    pub(super) bytes: u32,
    pub(super) remote: u64,
    pub(super) remote_key: u32,
}

/// A reliable connection's end.
pub(super) struct QueuePair {
    device: Arc<Device>,
    /// Has to outlive it.
    _completions: Arc<Completions>,
    raw: NonNull<sys::QueuePair>,
    /// Requests that it holds.
    pub(super) depth: u32,
}

// SAFETY: as for `Completions`: verbs objects are safe for multi-threaded access.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// How many requests a queue pair of this device can hold.
    pub(super) fn depth(device: &Device) -> u32 {
        match device.limits.requests_max {
            0 => REQUESTS_MAX,
            most => REQUESTS_MAX.min(most),
        }
    }

    pub(super) fn new(device: &Arc<Device>, completions: &Arc<Completions>) -> Result<Self, Error> {
        let mut depth = Self::depth(device);
        loop {
            let cap = sys::QueuePairCap {
                max_send_wr: depth,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            };
            let queue = completions.queue.as_ptr();
            let mut wanted = sys::QueuePairInit {
                qp_context: ptr::null_mut(),
                send_cq: queue,
                recv_cq: queue,
                srq: ptr::null_mut(),
                cap,
                qp_type: sys::QPT_RC,
                sq_sig_all: 0,
            };
            // SAFETY: the protection domain lives as long as the device, the queue as long as `completions`.
            match unsafe { device.library().create_qp(device.pd(), &mut wanted) } {
                Ok(raw) => {
                    return Ok(Self {
                        device: Arc::clone(device),
                        _completions: Arc::clone(completions),
                        raw,
                        depth,
                    });
                }
                // What a device says of its largest queue does not hold for every shape of request.
                Err(libc::EINVAL | libc::ENOMEM) if depth > 1 => depth /= 2,
                Err(errno) => return Err(result::failed("making a queue pair", device.name(), errno)),
            }
        }
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: the queue pair lives as long as `self`; its number never changes.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    fn modify(
        &self,
        step: &'static str,
        attributes: &mut sys::QueuePairAttr,
        mask: i32,
    ) -> Result<(), Error> {
        // SAFETY: the queue pair lives as long as `self`.
        unsafe { self.device.library().modify_qp(self.raw, attributes, mask) }
            .map_err(|errno| result::failed(step, self.device.name(), errno))
    }

    /// Connects it with its other half: INIT, then ready to receive, then ready to send.
    pub(super) fn connect(&self, port: &Port, first_packet: u32, other: &Half) -> Result<(), Error> {
        let limits = self.device.limits;
        let mut init = attributes(sys::QPS_INIT);
        init.port_num = port.number;
        init.qp_access_flags = (sys::ACCESS_REMOTE_READ | sys::ACCESS_REMOTE_WRITE).cast_unsigned();
        self.modify(
            "starting a queue pair",
            &mut init,
            sys::QP_STATE | sys::QP_PKEY_INDEX | sys::QP_PORT | sys::QP_ACCESS_FLAGS,
        )?;

        let mut receive = attributes(sys::QPS_RTR);
        receive.path_mtu = i32::from(port.mtu.min(other.address.mtu));
        receive.dest_qp_num = other.number;
        receive.rq_psn = other.first_packet;
        receive.max_dest_rd_atomic = reads(limits.reads_answered_max, other.address.reads_asked_max);
        receive.min_rnr_timer = RECEIVER_TIMER;
        receive.ah_attr = route(port, &other.address);
        let mask = sys::QP_STATE
            | sys::QP_AV
            | sys::QP_PATH_MTU
            | sys::QP_DEST_QPN
            | sys::QP_RQ_PSN
            | sys::QP_MAX_DEST_RD_ATOMIC
            | sys::QP_MIN_RNR_TIMER;
        self.modify("connecting a queue pair", &mut receive, mask)?;

        let mut send = attributes(sys::QPS_RTS);
        send.timeout = TIMEOUT;
        send.retry_cnt = RETRIES;
        send.rnr_retry = RECEIVER_RETRIES;
        send.sq_psn = first_packet;
        send.max_rd_atomic = reads(limits.reads_asked_max, other.address.reads_answered_max);
        let mask = sys::QP_STATE
            | sys::QP_TIMEOUT
            | sys::QP_RETRY_CNT
            | sys::QP_RNR_RETRY
            | sys::QP_SQ_PSN
            | sys::QP_MAX_QP_RD_ATOMIC;
        self.modify("opening a queue pair", &mut send, mask)
    }

    /// Whether reads can be asked of it: some devices have no resources for them.
    pub(super) fn can_read(device: &Device, other: &Address) -> bool {
        reads(device.limits.reads_asked_max, other.reads_answered_max) > 0
    }

    /// Everything posted comes back, as flushed, and nothing more is sent.
    pub(super) fn flush(&self) -> Result<(), Error> {
        self.modify(
            "stopping a queue pair",
            &mut attributes(sys::QPS_ERR),
            sys::QP_STATE,
        )
    }

    /// Hands over some work, at most [`CHAIN_MAX`], and says how much of it was taken.
    ///
    /// # Safety
    /// The memory of each work lives until its number has come back, or until the queue pair is dropped.
    pub(super) unsafe fn post(&self, works: &[Work]) -> Result<usize, Error> {
        debug_assert!(!works.is_empty() && works.len() <= CHAIN_MAX);
        // SAFETY: plain numbers and pointers, of which zero is one.
        let mut requests: [sys::SendRequest; CHAIN_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: plain numbers, of which zero is one.
        let mut pieces: [sys::ScatterGather; CHAIN_MAX] = unsafe { std::mem::zeroed() };
        let first = requests.as_mut_ptr();
        for (at, work) in works.iter().enumerate() {
            pieces[at] = sys::ScatterGather {
                addr: work.local,
                length: work.bytes,
                lkey: work.local_key,
            };
            // SAFETY: `at` and the one after it are inside the array, or at its end.
            let (request, next) = unsafe { (&mut *first.add(at), first.add(at + 1)) };
            request.wr_id = work.number;
            request.next = if at + 1 < works.len() {
                next
            } else {
                ptr::null_mut()
            };
            request.sg_list = &raw mut pieces[at];
            request.num_sge = i32::from(work.bytes > 0);
            request.opcode = match work.direction {
                Direction::Read => sys::WR_RDMA_READ,
                Direction::Write => sys::WR_RDMA_WRITE,
            };
            request.send_flags = sys::SEND_SIGNALED;
            request.remote_addr = work.remote;
            request.rkey = work.remote_key;
        }
        // SAFETY: the queue pair lives as long as `self`; the chain and its pieces live until the call returns, which is as long as
        // the library looks at them; the memory lives by the caller's word.
        match unsafe { result::post_send(self.raw, first) } {
            Ok(()) => Ok(works.len()),
            Err((errno, bad)) => {
                let taken = works
                    .len()
                    .min((bad as usize).saturating_sub(first as usize) / size_of::<sys::SendRequest>());
                if taken == 0 && errno != libc::ENOMEM {
                    return Err(result::failed("posting work", self.device.name(), errno));
                }
                Ok(taken)
            }
        }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: nobody else has the pointer. When it returns, the device has let go of all memory that was posted.
        unsafe { self.device.library().destroy_qp(self.raw) };
    }
}

fn attributes(state: i32) -> sys::QueuePairAttr {
    // SAFETY: plain numbers, of which zero is one; the mask says which ones count.
    let mut attributes: sys::QueuePairAttr = unsafe { std::mem::zeroed() };
    attributes.qp_state = state;
    attributes
}

/// Reads at once that one side may ask and the other will answer.
fn reads(asked: u8, answered: u8) -> u8 {
    asked.min(answered).min(READS_MAX)
}

fn route(port: &Port, other: &Address) -> sys::AddressAttr {
    // SAFETY: plain numbers, of which zero is one.
    let mut route: sys::AddressAttr = unsafe { std::mem::zeroed() };
    route.port_num = port.number;
    route.dlid = other.lid;
    // InfiniBand needs a global route only between subnets, whose prefix is the GID's upper half.
    if !port.is_infiniband || port.gid.raw[..8] != other.gid[..8] {
        route.is_global = 1;
        route.grh = sys::GlobalRoute {
            dgid: sys::Gid { raw: other.gid },
            flow_label: 0,
            sgid_index: port.gid.index,
            hop_limit: HOPS_MAX,
            traffic_class: 0,
        };
    }
    route
}
