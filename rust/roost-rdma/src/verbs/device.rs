//! RDMA devices and their ports: what they can do is asked for, never assumed.

use super::gid::{self, Gid};
use super::result::{self, Error, Library};
use super::sys;
use super::topology::Place;
use std::ffi::{CStr, c_char};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

/// An open device.
pub(super) struct Context {
    library: Arc<Library>,
    raw: NonNull<sys::Context>,
    pub(super) name: String,
    /// Its folder under `/sys/class/infiniband`.
    pub(super) folder: PathBuf,
}

// SAFETY: "By default all verbs objects are safe for multi-threaded access" (ibv_alloc_td(3)); no thread domain is made here.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn gid(&self, port: u8, index: u8) -> Result<[u8; 16], i32> {
        // SAFETY: the context is open as long as `self`.
        unsafe { self.library.query_gid(self.raw, port, i32::from(index)) }
    }

    pub(super) fn gid_table(&self) -> Option<Vec<sys::GidEntry>> {
        // SAFETY: as above.
        unsafe { self.library.query_gid_table(self.raw) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: whatever is made from a context holds the device that holds it, so nothing is left.
        unsafe { self.library.close_device(self.raw) };
    }
}

/// What a device allows, as far as it matters to reads and writes.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of one memory region.
    pub region_bytes_max: u64,
    /// Memory regions.
    pub regions_max: u32,
    /// Work requests of one queue.
    pub requests_max: u32,
    /// Entries of one completion queue.
    pub completions_max: u32,
    /// Reads that a queue pair may have on the wire at once, as who asks. Some devices say 0.
    pub reads_asked_max: u8,
    /// The same as who answers.
    pub reads_answered_max: u8,
}

/// An RDMA device with a protection domain, in which all that is made here lives.
pub struct Device {
    // Fields are dropped in this order: `Drop` of the device itself comes before, and takes the domain.
    pd: NonNull<sys::ProtectionDomain>,
    pub(super) context: Context,
    /// Its place in the list of devices, by which peers name it.
    pub index: u8,
    /// What it allows.
    pub limits: Limits,
    /// Where it sits.
    pub place: Place,
    ports: u8,
}

// SAFETY: as for `Context`: verbs objects are safe for multi-threaded access.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: regions, queues and queue pairs hold the device in an Arc, so none is left.
        unsafe { self.library().dealloc_pd(self.pd) };
    }
}

/// A port that is ACTIVE and has an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// Its link layer is InfiniBand, else Ethernet.
    pub is_infiniband: bool,
    /// InfiniBand's local address; 0 on Ethernet.
    pub lid: u16,
    /// Its address.
    pub gid: Gid,
    /// The verbs' code of its active MTU: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Bytes of one message.
    pub message_bytes_max: u32,
}

impl Device {
    /// Opens each device whose name is wanted; with it those that will not do, and why.
    pub(super) fn open_all(
        library: &Arc<Library>,
        wanted: Option<&[String]>,
    ) -> Result<(Vec<Arc<Self>>, Vec<String>), Error> {
        library.with_devices(|list| {
            let (mut devices, mut left_out) = (Vec::new(), Vec::new());
            let mut seen = Vec::new();
            for &raw in list {
                // SAFETY: the library's list is good inside this closure.
                let name = unsafe { text(&raw const (*raw).name) };
                seen.push(name.clone());
                if wanted.is_some_and(|names| !names.contains(&name)) {
                    left_out.push(format!("{name} is not among the devices that were asked for"));
                    continue;
                }
                let Ok(index) = u8::try_from(devices.len()) else {
                    break;
                };
                // SAFETY: as above.
                match unsafe { Self::open(library, raw, name, index) } {
                    Ok(device) => devices.push(Arc::new(device)),
                    Err(reason) => left_out.push(reason),
                }
            }
            for name in wanted
                .unwrap_or_default()
                .iter()
                .filter(|name| !seen.contains(*name))
            {
                left_out.push(format!("{name}, which was asked for, is not on this host"));
            }
            (devices, left_out)
        })
    }

    /// # Safety
    /// `raw` is in the library's list at this moment.
    unsafe fn open(
        library: &Arc<Library>,
        raw: *mut sys::Device,
        name: String,
        index: u8,
    ) -> Result<Self, String> {
        // SAFETY: the caller's.
        let (node_type, transport, folder) = unsafe {
            (
                (*raw).node_type,
                (*raw).transport_type,
                text(&raw const (*raw).ibdev_path),
            )
        };
        if let Some(reason) = refusal(&name, node_type, transport) {
            return Err(format!("{name} {reason}"));
        }
        // SAFETY: the caller's.
        let opened = unsafe { library.open_device(raw) }.map_err(|errno| match errno {
            libc::EACCES | libc::EPERM => format!("{name} cannot be opened: no permission for /dev/infiniband (pass it into the container, or join its group)"),
            libc::ENOENT => format!("{name} cannot be opened: /dev/infiniband/uverbs* is not there (pass /dev/infiniband into the container)"),
            errno => result::failed("opening", &name, errno).to_string(),
        })?;
        let context = Context {
            library: Arc::clone(library),
            raw: opened,
            name,
            folder: PathBuf::from(folder),
        };
        // SAFETY: the context was just opened.
        let attributes = unsafe { library.query_device(opened) }
            .map_err(|errno| result::failed("asking the attributes", &context.name, errno).to_string())?;
        // SAFETY: as above.
        let pd = unsafe { library.alloc_pd(opened) }.map_err(|errno| {
            result::failed("making a protection domain", &context.name, errno).to_string()
        })?;
        let place = Place::of_rdma(Path::new(&context.folder));
        Ok(Self {
            pd,
            context,
            index,
            limits: Limits::of(&attributes),
            place,
            ports: attributes.phys_port_cnt,
        })
    }

    /// The kernel's name of it, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.context.name
    }

    pub(super) fn library(&self) -> &Library {
        &self.context.library
    }

    pub(super) fn raw(&self) -> NonNull<sys::Context> {
        self.context.raw
    }

    pub(super) fn pd(&self) -> NonNull<sys::ProtectionDomain> {
        self.pd
    }

    /// Its ports as they are now: those that can be used, and why the others cannot.
    pub fn ports(&self) -> (Vec<Port>, Vec<String>) {
        let (mut usable, mut left_out) = (Vec::new(), Vec::new());
        for number in 1..=self.ports {
            match self.port(number) {
                Ok(port) => usable.push(port),
                Err(reason) => left_out.push(format!("{} port {number}: {reason}", self.name())),
            }
        }
        (usable, left_out)
    }

    fn port(&self, number: u8) -> Result<Port, String> {
        // SAFETY: the context is open as long as the device.
        let attributes = unsafe { self.library().query_port(self.raw(), number) }
            .map_err(|errno| format!("it cannot be asked: error {errno}"))?;
        if attributes.state != sys::PORT_ACTIVE {
            let state = match attributes.state {
                1 => "DOWN",
                2 => "INIT (no subnet manager?)",
                3 => "ARMED",
                5 => "ACTIVE_DEFER",
                _ => "unknown",
            };
            return Err(format!("its state is {state}, not ACTIVE"));
        }
        if !matches!(
            attributes.link_layer,
            sys::LINK_LAYER_INFINIBAND | sys::LINK_LAYER_ETHERNET
        ) {
            return Err(format!(
                "its link layer is neither InfiniBand nor Ethernet: {}",
                attributes.link_layer
            ));
        }
        Ok(Port {
            number,
            is_infiniband: attributes.link_layer == sys::LINK_LAYER_INFINIBAND,
            lid: attributes.lid,
            gid: gid::choose(&self.context, number, &attributes)?,
            mtu: u8::try_from(attributes.active_mtu).unwrap_or(1).clamp(1, 5),
            // A device that says 0 does not say.
            message_bytes_max: if attributes.max_msg_sz == 0 {
                1 << 30
            } else {
                attributes.max_msg_sz
            },
        })
    }
}

impl Limits {
    fn of(attributes: &sys::DeviceAttr) -> Self {
        let byte = |value: i32| u8::try_from(value.clamp(0, 255)).unwrap_or(0);
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        Self {
            region_bytes_max: attributes.max_mr_size,
            regions_max: count(attributes.max_mr),
            requests_max: count(attributes.max_qp_wr),
            completions_max: count(attributes.max_cqe),
            reads_asked_max: byte(attributes.max_qp_init_rd_atom),
            reads_answered_max: byte(attributes.max_qp_rd_atom),
        }
    }
}

/// Devices that have no plain RC queue pairs are left out by name, before anything could time out on them.
fn refusal(name: &str, node_type: i32, transport: i32) -> Option<&'static str> {
    const TRANSPORT_IWARP: i32 = 1;
    const TRANSPORT_UNSPECIFIED: i32 = 4;
    match transport {
        TRANSPORT_UNSPECIFIED if name.starts_with("efa") => {
            Some("is an EFA device, which has no RC queue pairs")
        }
        sys::TRANSPORT_IB if node_type == sys::NODE_CA && !name.starts_with("efa") => None,
        TRANSPORT_IWARP => Some("speaks iWARP, whose connections are rdma_cm's alone"),
        _ if name.starts_with("efa") => Some("is an EFA device, which has no RC queue pairs"),
        _ => Some("has no RC queue pairs"),
    }
}

/// # Safety
/// `field` points to an array of characters with a zero in it.
unsafe fn text<const N: usize>(field: *const [c_char; N]) -> String {
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(field.cast()) }
        .to_string_lossy()
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::refusal;

    #[test]
    fn what_has_no_rc_queue_pairs_is_refused_by_name() {
        assert_eq!(refusal("mlx5_0", 1, 0), None);
        assert_eq!(refusal("rxe0", 1, 0), None);
        assert!(refusal("efa_0", 7, 4).unwrap().contains("EFA"));
        assert!(refusal("irdma0", 4, 1).unwrap().contains("iWARP"));
        assert!(refusal("usnic_0", 5, 2).unwrap().contains("no RC"));
    }
}
