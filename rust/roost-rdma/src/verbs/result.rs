//! From the library's codes to errors. The only caller of `sys`: the safe types beside it own the handles that come from here.

mod calls;

pub(super) use self::calls::{poll_cq, post_send, request_event};
use super::sys;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::path::Path;
use std::ptr::NonNull;
use thiserror::Error as ThisError;

/// Why RDMA cannot be used, or not for this.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// libibverbs is not to be had.
    #[error("libibverbs cannot be used: {0}")]
    NoLibrary(String),
    /// None of the devices will do; each reason is named.
    #[error("no RDMA device can be used: {0}")]
    NoDevice(String),
    /// A call of the library failed.
    #[error("{call} of {device} failed: {reason}")]
    Call {
        /// What was called.
        call: &'static str,
        /// For which device.
        device: String,
        /// The system's error.
        errno: i32,
        /// The same in words, with what to do about it where that is known.
        reason: String,
    },
    /// Memory cannot be registered with the device.
    #[error("registering {bytes} bytes at {address:#x} with {device} failed: {reason}")]
    Register {
        /// First address.
        address: usize,
        /// How many.
        bytes: u64,
        /// Which device.
        device: String,
        /// Why, and what to do.
        reason: String,
    },
    /// What a peer sent over the link about its ports and queue pairs makes no sense.
    #[error("the peer's {what} cannot be used: {reason}")]
    Peer {
        /// Card, offer, answer or region.
        what: &'static str,
        /// Why.
        reason: String,
    },
    /// The path cannot do what was asked of it.
    #[error("{0}")]
    Path(String),
}

/// The functions of the library, found by name when it is opened.
///
/// It is never closed again: providers leave threads and exit handlers behind that would run unmapped code.
pub(super) struct Library {
    table: Table,
}

macro_rules! table {
    (required { $($name:ident: $kind:ty,)* } optional { $($symbol:literal as $extra:ident: $other:ty,)* }) => {
        struct Table { $($name: $kind,)* $($extra: Option<$other>,)* }

        impl Table {
            /// # Safety
            /// `handle` is of libibverbs, or of a library whose functions of these names have the same types.
            unsafe fn find(handle: NonNull<c_void>) -> Result<Self, Error> {
                // SAFETY: the symbol's type is libibverbs' own, which the caller vouches for; a null symbol is no value of it and is
                // looked at before.
                unsafe {
                    Ok(Self {
                        $($name: {
                            let symbol = symbol(handle, stringify!($name));
                            if symbol.is_null() {
                                return Err(Error::NoLibrary(format!("it has no {}", stringify!($name))));
                            }
                            std::mem::transmute::<*mut c_void, $kind>(symbol)
                        },)*
                        $($extra: {
                            let symbol = symbol(handle, $symbol);
                            if symbol.is_null() { None } else { Some(std::mem::transmute::<*mut c_void, $other>(symbol)) }
                        },)*
                    })
                }
            }
        }
    };
}

table! {
    required {
        ibv_get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut sys::Device,
        ibv_free_device_list: unsafe extern "C" fn(*mut *mut sys::Device),
        ibv_open_device: unsafe extern "C" fn(*mut sys::Device) -> *mut sys::Context,
        ibv_close_device: unsafe extern "C" fn(*mut sys::Context) -> c_int,
        ibv_query_device: unsafe extern "C" fn(*mut sys::Context, *mut sys::DeviceAttr) -> c_int,
        ibv_query_port: unsafe extern "C" fn(*mut sys::Context, u8, *mut sys::PortAttr) -> c_int,
        ibv_query_gid: unsafe extern "C" fn(*mut sys::Context, u8, c_int, *mut sys::Gid) -> c_int,
        ibv_alloc_pd: unsafe extern "C" fn(*mut sys::Context) -> *mut sys::ProtectionDomain,
        ibv_dealloc_pd: unsafe extern "C" fn(*mut sys::ProtectionDomain) -> c_int,
        ibv_reg_mr: unsafe extern "C" fn(*mut sys::ProtectionDomain, *mut c_void, usize, c_int) -> *mut sys::MemoryRegion,
        ibv_dereg_mr: unsafe extern "C" fn(*mut sys::MemoryRegion) -> c_int,
        ibv_create_comp_channel: unsafe extern "C" fn(*mut sys::Context) -> *mut sys::CompletionChannel,
        ibv_destroy_comp_channel: unsafe extern "C" fn(*mut sys::CompletionChannel) -> c_int,
        ibv_create_cq: unsafe extern "C" fn(*mut sys::Context, c_int, *mut c_void, *mut sys::CompletionChannel, c_int) -> *mut sys::CompletionQueue,
        ibv_destroy_cq: unsafe extern "C" fn(*mut sys::CompletionQueue) -> c_int,
        ibv_get_cq_event: unsafe extern "C" fn(*mut sys::CompletionChannel, *mut *mut sys::CompletionQueue, *mut *mut c_void) -> c_int,
        ibv_ack_cq_events: unsafe extern "C" fn(*mut sys::CompletionQueue, u32),
        ibv_create_qp: unsafe extern "C" fn(*mut sys::ProtectionDomain, *mut sys::QueuePairInit) -> *mut sys::QueuePair,
        ibv_modify_qp: unsafe extern "C" fn(*mut sys::QueuePair, *mut sys::QueuePairAttr, c_int) -> c_int,
        ibv_destroy_qp: unsafe extern "C" fn(*mut sys::QueuePair) -> c_int,
        ibv_wc_status_str: unsafe extern "C" fn(c_int) -> *const c_char,
    }
    // Versioned symbols that libraries of some years ago do not have.
    optional {
        "ibv_fork_init" as fork_init: unsafe extern "C" fn() -> c_int,
        "_ibv_query_gid_table" as query_gid_table: unsafe extern "C" fn(*mut sys::Context, *mut sys::GidEntry, usize, u32, usize) -> isize,
        "ibv_reg_dmabuf_mr" as reg_dmabuf_mr: unsafe extern "C" fn(*mut sys::ProtectionDomain, u64, usize, u64, c_int, c_int) -> *mut sys::MemoryRegion,
    }
}

/// # Safety
/// `handle` is one that `dlopen` gave and that nobody closes.
unsafe fn symbol(handle: NonNull<c_void>, name: &str) -> *mut c_void {
    let name = CString::new(name).expect("a symbol's name has no zero in it");
    // SAFETY: the handle is open, by the caller; the name ends in zero.
    unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) }
}

impl Library {
    /// Opens libibverbs, or what stands at `path` instead of it.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, Error> {
        let wanted = path.map_or("libibverbs.so.1".into(), |path| {
            path.to_string_lossy().into_owned()
        });
        let name =
            CString::new(wanted.clone()).map_err(|_| Error::NoLibrary(format!("{wanted:?} is no path")))?;
        // SAFETY: the name ends in zero. Initialisers of the library run; that is what opening it means.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let Some(handle) = NonNull::new(handle) else {
            return Err(Error::NoLibrary(format!(
                "{} (Debian, Ubuntu: apt-get install libibverbs1 ibverbs-providers; Fedora: dnf install libibverbs)",
                last_dl_error(&wanted)
            )));
        };
        // SAFETY: this is libibverbs.so.1, whose functions have had these types since its first version, or what the user put in its place.
        let table = unsafe { Table::find(handle)? };
        let library = Self { table };
        if let Some(fork_init) = library.table.fork_init {
            // Before any memory is registered: on kernels before 5.12 a fork would otherwise move pinned pages to the child. Newer
            // kernels copy them, and there it does nothing. A failure leaves things as they were.
            // SAFETY: takes no arguments, and may be called at any time before the first registration.
            unsafe { fork_init() };
        }
        Ok(library)
    }

    pub(super) fn has_dma_buf(&self) -> bool {
        self.table.reg_dmabuf_mr.is_some()
    }

    /// All devices that the system has. The pointers are good until the closure returns.
    pub(super) fn with_devices<T>(&self, look: impl FnOnce(&[*mut sys::Device]) -> T) -> Result<T, Error> {
        let mut count = 0;
        // SAFETY: `count` may be written.
        let list = unsafe { (self.table.ibv_get_device_list)(&raw mut count) };
        if list.is_null() {
            let error = io::Error::last_os_error();
            return Err(Error::NoDevice(match error.raw_os_error() {
                // The kernel has no verbs at all: the library says so in this way.
                Some(libc::ENOSYS | libc::ENOENT) => {
                    "the kernel module ib_uverbs is not loaded (modprobe ib_uverbs)".into()
                }
                _ => format!("the devices cannot be listed: {error}"),
            }));
        }
        // SAFETY: the library gave an array of `count` pointers, which lives until it is freed below.
        let devices = unsafe { std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) };
        let result = look(devices);
        // SAFETY: the list came from the function's counterpart; opened devices stay good, the library counts them.
        unsafe { (self.table.ibv_free_device_list)(list) };
        Ok(result)
    }

    /// What the library calls a completion's status.
    pub(super) fn status(&self, status: c_int) -> String {
        // SAFETY: any number may be asked for; the answer is a constant of the library.
        let text = unsafe { (self.table.ibv_wc_status_str)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: a C string that lives as long as the library, which is never closed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

fn last_dl_error(wanted: &str) -> String {
    // SAFETY: no arguments; the text is the calling thread's until its next dl call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return format!("{wanted} cannot be opened");
    }
    // SAFETY: a C string, see above.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Functions that make something set errno when they give null.
fn made<T>(pointer: *mut T) -> Result<NonNull<T>, i32> {
    NonNull::new(pointer).ok_or_else(|| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// The others return the error number, some providers its negative, and -1 means errno.
fn zero(code: c_int) -> Result<(), i32> {
    match code {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
        code => Err(code.abs()),
    }
}

/// An error of a call, in the system's words.
pub(super) fn failed(call: &'static str, device: &str, errno: i32) -> Error {
    let reason = io::Error::from_raw_os_error(errno).to_string();
    Error::Call {
        call,
        device: device.to_owned(),
        errno,
        reason,
    }
}
