//! Against the stub, which does what soft-RoCE cannot.

use crate::bed::{Bed, PATIENCE, open, pattern, read, wait, write};
use crate::{library, rules};
use roost_rdma::gpu::{Allocation, Exporter};
use roost_rdma::verbs::{Event, Failure, Options, Path, Verbs};
use roost_rdma::{Direction, Run};
use std::ffi::{CString, c_char, c_long, c_void};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The stub, compiled once, and its settings, which are the whole process': one test at a time.
struct Stub {
    path: PathBuf,
    set: unsafe extern "C" fn(*const c_char, c_long),
    get: unsafe extern "C" fn(*const c_char) -> c_long,
    _alone: MutexGuard<'static, ()>,
}

const DEFAULTS: [(&str, i64); 8] = [
    ("devices", 1),
    ("down", 0),
    ("max_rd_atomic", 16),
    ("max_qp_wr", 64),
    ("hold", 0),
    ("fail_in", -1),
    ("memlock", -1),
    ("most_out", 0),
];

impl Stub {
    fn new(settings: &[(&str, i64)]) -> Self {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = library::stub();
        let name = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the stub's symbols have these types; it is never closed.
        let (set, get) = unsafe {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            let symbol = |name: &'static std::ffi::CStr| libc::dlsym(handle, name.as_ptr());
            (
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char, c_long)>(symbol(
                    c"stub_set",
                )),
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*const c_char) -> c_long>(symbol(
                    c"stub_get",
                )),
            )
        };
        let stub = Self {
            path,
            set,
            get,
            _alone: alone,
        };
        for (name, value) in DEFAULTS.iter().chain(settings) {
            stub.set(name, *value);
        }
        stub
    }

    fn set(&self, name: &str, value: i64) {
        let name = CString::new(name).unwrap();
        // SAFETY: a C string.
        unsafe { (self.set)(name.as_ptr(), value) };
    }

    fn get(&self, name: &str) -> i64 {
        let name = CString::new(name).unwrap();
        // SAFETY: a C string.
        unsafe { (self.get)(name.as_ptr()) }
    }

    fn bed(&self) -> Bed {
        Bed {
            asker: open(Some(&self.path), &[]),
            owner: open(Some(&self.path), &[]),
        }
    }

    fn try_open(&self, devices: &[&str]) -> Result<Verbs, String> {
        let devices = Some(devices.iter().map(|name| (*name).to_owned()).collect());
        Verbs::open(&Options {
            library: Some(self.path.clone()),
            devices,
            exporter: None,
        })
        .map_err(|error| error.to_string())
    }
}

macro_rules! rules {
    ($($rule:ident)*) => { $(
        #[test]
        fn $rule() {
            let stub = Stub::new(&[("devices", 2)]);
            rules::$rule(&stub.bed());
            assert_eq!(["mrs", "qps", "cqs"].map(|name| stub.get(name)), [0; 3], "regions, queue pairs, queues that are left");
        }
    )* };
}

rules! {
    reads_and_writes_carry_every_byte_and_no_other
    a_batch_of_scattered_runs_is_one_operation
    a_wrong_key_writes_nothing_and_harms_no_other_path
    revoked_memory_is_out_of_reach
    what_does_not_fit_is_refused_before_anything_is_sent
    closing_tells_every_operation_and_lets_memory_go
    a_cancelled_operation_ends_and_the_path_goes_on
}

#[test]
fn two_nics_share_the_work() {
    let stub = Stub::new(&[("devices", 2)]);
    let bed = stub.bed();
    let mut owned = pattern(1, 16 << 20);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    stub.set("works0", 0);
    stub.set("works1", 0);
    let mut target = vec![0; 16 << 20];
    read(&mut path, &mut target, 0, &published).unwrap();
    assert!(target == pattern(1, 16 << 20));
    let (one, two) = (stub.get("works0"), stub.get("works1"));
    assert!(
        one + two == 64 && one.abs_diff(two) <= 8,
        "{one} and {two} of 64 chunks"
    );
}

#[test]
fn a_port_that_is_down_is_left_out_and_comes_back() {
    let stub = Stub::new(&[("devices", 2), ("down", 2)]);
    let bed = stub.bed();
    assert_eq!(
        bed.asker.left_out(),
        ["stub1 port 1: its state is DOWN, not ACTIVE"]
    );
    assert_eq!(bed.path().0.device_names(), ["stub0"]);
    stub.set("down", 0);
    assert_eq!(bed.path().0.device_names(), ["stub0", "stub1"]);
    stub.set("down", 3);
    let error = stub.try_open(&[]).err().unwrap();
    assert!(
        error.contains("stub0 port 1: its state is DOWN") && error.contains("stub1 port 1"),
        "{error}"
    );
    assert!(
        Path::ask(&bed.asker, &bed.owner.card())
            .err()
            .unwrap()
            .to_string()
            .contains("ACTIVE")
    );
}

#[test]
fn devices_are_chosen_by_name() {
    let stub = Stub::new(&[("devices", 2)]);
    assert_eq!(stub.try_open(&["stub1"]).unwrap().devices()[0].name(), "stub1");
    let error = stub.try_open(&["mlx5_9"]).err().unwrap();
    assert!(
        error.contains("mlx5_9, which was asked for, is not on this host"),
        "{error}"
    );
}

#[test]
fn without_the_library_what_was_tried_is_said() {
    let options = Options {
        library: Some("/nowhere/libibverbs.so.1".into()),
        ..Options::default()
    };
    let error = Verbs::open(&options).err().unwrap().to_string();
    assert!(
        error.contains("/nowhere/libibverbs.so.1") && error.contains("apt-get install"),
        "{error}"
    );
    let options = Options {
        library: Some("libc.so.6".into()),
        ..Options::default()
    };
    let error = Verbs::open(&options).err().unwrap().to_string();
    assert!(error.contains("it has no ibv_get_device_list"), "{error}");
}

#[test]
fn a_device_that_cannot_read_writes_and_says_so() {
    let stub = Stub::new(&[("max_rd_atomic", 0)]);
    let bed = stub.bed();
    let mut owned = pattern(1, 100_000);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    assert!(!path.can_read());
    let mut local = pattern(2, 100_000);
    let run = Run {
        remote: 0,
        local: local.as_mut_ptr().expose_provenance(),
        bytes: 100_000,
    };
    // SAFETY: it is refused.
    let refused = unsafe { path.post(1, Direction::Read, &[run], &published.remote()) }
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("stub0 cannot read") && refused.contains("max_rd_atomic"),
        "{refused}"
    );
    write(&mut path, &mut local, 0, &published).unwrap();
    drop(published);
    assert!(owned == local);
}

#[test]
fn only_the_guilty_operation_hears_of_an_error_and_the_others_may_be_done_again() {
    let stub = Stub::new(&[("hold", 0)]);
    let bed = stub.bed();
    let mut owned = pattern(1, 1 << 20);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    stub.set("hold", 1);
    stub.set("fail_in", 1);
    stub.set("fail_status", 12);
    let mut target = vec![0; 3000];
    let local = target.as_mut_ptr().expose_provenance();
    for id in 0..3_usize {
        // SAFETY: the target lives until the path has told of all of them.
        unsafe {
            path.post(
                id as u64,
                Direction::Read,
                &[Run {
                    remote: 0,
                    local: local + 1000 * id,
                    bytes: 1000,
                }],
                &published.remote(),
            )
        }
        .unwrap();
    }
    stub.set("hold", 0);
    let events = wait(&mut path, PATIENCE, 4);
    let unreachable = |event: &Event| matches!(event, Event::Failed { failure: Failure::Unreachable(reason), .. } if reason.contains("retries"));
    assert_eq!(
        events.iter().filter(|event| unreachable(event)).count(),
        1,
        "{events:?}"
    );
    let innocent = |event: &Event| {
        matches!(
            event,
            Event::Done { .. }
                | Event::Failed {
                    failure: Failure::Flushed,
                    ..
                }
        )
    };
    assert_eq!(
        events.iter().filter(|event| innocent(event)).count(),
        2,
        "{events:?}"
    );
    assert!(matches!(events.last(), Some(Event::Broken { .. })), "{events:?}");
}

#[test]
fn few_requests_are_out_however_many_wait() {
    let stub = Stub::new(&[("max_qp_wr", 8)]);
    let bed = stub.bed();
    let mut owned = vec![0; 1 << 20];
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    stub.set("hold", 1);
    stub.set("most_out", 0);
    let mut target = vec![0; 1 << 20];
    let local = target.as_mut_ptr().expose_provenance();
    let runs: Vec<Run> = (0..1000_usize)
        .map(|at| Run {
            remote: at as u64 * 100,
            local: local + 200 * at,
            bytes: 99,
        })
        .collect();
    // SAFETY: the target lives until the event has come.
    unsafe { path.post(1, Direction::Read, &runs, &published.remote()) }.unwrap();
    stub.set("hold", 0);
    assert_eq!(wait(&mut path, PATIENCE, 1), [Event::Done { id: 1 }]);
    assert_eq!(stub.get("most_out"), 8);
}

#[test]
fn memory_is_the_nics_until_the_flush() {
    let stub = Stub::new(&[]);
    let bed = stub.bed();
    let mut owned = pattern(1, 4096);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    stub.set("hold", 1);
    let mut target = vec![0; 4096];
    let run = Run {
        remote: 0,
        local: target.as_mut_ptr().expose_provenance(),
        bytes: 4096,
    };
    // SAFETY: the target lives until the event has come.
    unsafe { path.post(1, Direction::Read, &[run], &published.remote()) }.unwrap();
    path.cancel(1);
    assert_eq!(path.poll(), []);
    assert_eq!(bed.asker.regions(), 1);
    path.close();
    let events = wait(&mut path, PATIENCE, 2);
    assert!(
        matches!(
            &events[..],
            [
                Event::Failed {
                    id: 1,
                    failure: Failure::Cancelled
                },
                Event::Broken { .. }
            ]
        ),
        "{events:?}"
    );
    assert_eq!((target, bed.asker.regions()), (vec![0; 4096], 0));
}

/// Operations posted, cancelled and flushed at random moments: each is told of once, and after that nothing is written.
#[test]
fn nothing_is_written_after_an_operation_has_ended() {
    const SLOTS: usize = 16;
    let stub = Stub::new(&[("devices", 2)]);
    let bed = stub.bed();
    let mut owned = vec![1; 1 << 20];
    let published = bed.publish(&mut owned);
    let mut random = pattern(5, 1 << 17).into_iter();
    let mut random = || usize::from(random.next().unwrap_or(0));
    let (mut path, mut serving) = bed.path();
    let mut slots: Vec<Option<Vec<u8>>> = vec![None; SLOTS];
    let mut ended = Vec::new();
    let mut told = 0;
    let transfers = std::env::var_os("ROOST_TEST_TRANSFERS")
        .map_or(500, |count| count.to_str().unwrap().parse().unwrap());
    while told < transfers {
        let slot = random() % SLOTS;
        match random() % 8 {
            0..4 if slots[slot].is_none() => {
                let mut target = vec![0; 1 + random() * 3000];
                let (local, bytes) = (target.as_mut_ptr().expose_provenance(), target.len() as u64);
                slots[slot] = Some(target);
                let run = Run {
                    remote: random() as u64,
                    local,
                    bytes,
                };
                // SAFETY: the target stays in its slot until the operation's event.
                unsafe { path.post(slot as u64, Direction::Read, &[run], &published.remote()) }.unwrap();
            }
            4 => path.cancel(slot as u64),
            5 => stub.set("hold", i64::from(random() % 2 == 0)),
            6 if random() % 8 == 0 => path.close(),
            _ => {}
        }
        for event in path.poll() {
            match event {
                Event::Done { id } | Event::Failed { id, .. } => {
                    let mut target = slots[usize::try_from(id).unwrap()].take().unwrap();
                    assert!(!matches!(event, Event::Done { .. }) || target.iter().all(|byte| *byte == 1));
                    target.fill(9);
                    ended.push(target);
                    told += 1;
                }
                Event::Broken { .. } => {
                    assert!(slots.iter().all(Option::is_none));
                    stub.set("hold", 0);
                    (path, serving) = bed.path();
                }
                Event::Ready => {}
            }
        }
        assert!(
            ended
                .iter()
                .rev()
                .take(SLOTS)
                .all(|target| target.iter().all(|byte| *byte == 9))
        );
        ended.drain(..ended.len().saturating_sub(SLOTS));
    }
    drop((path, serving));
}

#[test]
fn registrations_are_shared_while_somebody_holds_them() {
    let stub = Stub::new(&[]);
    let bed = stub.bed();
    let mut owned = pattern(1, 1 << 20);
    let published = bed.publish(&mut owned);
    let (mut path, _serving) = bed.path();
    let mut target = vec![0; 1 << 20];
    let ranges: Vec<(usize, u64)> = (0..64)
        .map(|at| (target.as_mut_ptr().expose_provenance() + at * 16_384, 16_384))
        .collect();
    let before = stub.get("registered");
    // SAFETY: the target lives longer than the hold.
    let hold = unsafe { bed.asker.hold(Direction::Read, &ranges) }.unwrap();
    assert_eq!(stub.get("registered"), before + 1, "neighbours are one region");
    read(&mut path, &mut target[5..70_000], 5, &published).unwrap();
    read(&mut path, &mut target[100_000..], 100_000, &published).unwrap();
    assert_eq!(stub.get("registered"), before + 1);
    drop(hold);
    read(&mut path, &mut target[..10], 0, &published).unwrap();
    assert_eq!((stub.get("registered"), bed.asker.regions()), (before + 2, 0));
}

#[test]
fn rows_of_a_matrix_are_one_registration_and_a_hole_between_two_ranges_is_no_error() {
    let stub = Stub::new(&[]);
    let bed = stub.bed();
    let page = rustix::param::page_size();
    let mapping = map(5 * page);
    // SAFETY: nobody uses these pages; the others stay.
    unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(mapping + 2 * page), page) }.unwrap();
    let before = stub.get("registered");
    let ranges = [
        (mapping, page as u64),
        (mapping + page, page as u64),
        (mapping + 3 * page, 100),
    ];
    // SAFETY: these pages stay mapped to the end.
    let hold = unsafe { bed.asker.hold(Direction::Read, &ranges) }.unwrap();
    assert_eq!(stub.get("registered") - before, 2);
    drop(hold);
    let matrix = map(256 * page);
    let rows: Vec<(usize, u64)> = (0..64).map(|row| (matrix + row * 4 * page, 512)).collect();
    // SAFETY: as above.
    let hold = unsafe { bed.asker.hold(Direction::Read, &rows) }.unwrap();
    assert_eq!(stub.get("registered") - before, 3);
    drop(hold);
}

/// Pages that stay to the end of the process.
fn map(bytes: usize) -> usize {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    // SAFETY: a new mapping where nothing was.
    let mapped = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    mapped.unwrap().expose_provenance()
}

#[test]
fn too_little_memlock_is_said_with_its_fix() {
    let stub = Stub::new(&[("memlock", 65_536)]);
    let bed = stub.bed();
    let mut owned = vec![0; 1 << 20];
    // SAFETY: it is refused.
    let error = unsafe {
        bed.owner
            .register(owned.as_mut_ptr().expose_provenance(), 1 << 20)
    }
    .err()
    .unwrap()
    .to_string();
    assert!(
        error.contains("1048576 bytes") && error.contains("stub0"),
        "{error}"
    );
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    assert!(
        limit.is_none() || error.contains("ulimit -l unlimited"),
        "{error}"
    );
}

/// Says that this process' memory is a GPU's.
struct Gpu {
    allocation: Mutex<Allocation>,
    has_dma_buf: bool,
}

impl Exporter for Gpu {
    fn allocation(&self, address: usize) -> Option<Allocation> {
        let allocation = *self.allocation.lock().unwrap();
        allocation.offset_of(address, 0).map(|_| allocation)
    }

    fn dma_buf(&self, _base: usize, _bytes: u64) -> Result<(OwnedFd, u64), String> {
        let file = || std::fs::File::open("/dev/null").unwrap().into();
        if self.has_dma_buf {
            Ok((file(), 512))
        } else {
            Err("this kernel has none".into())
        }
    }

    fn pci_address(&self, _device: u32) -> Option<String> {
        None
    }
}

#[test]
fn gpu_memory_is_registered_by_allocation_and_looked_at_on_each_use() {
    let stub = Stub::new(&[]);
    let bed = stub.bed();
    let mut owned = pattern(1, 1 << 20);
    let published = bed.publish(&mut owned);
    for has_dma_buf in [true, false] {
        let mut memory = vec![0; 1 << 20];
        let base = memory.as_mut_ptr().expose_provenance();
        let allocation = Allocation {
            base,
            bytes: 1 << 20,
            device: 0,
            number: 1,
        };
        let gpu = Arc::new(Gpu {
            allocation: Mutex::new(allocation),
            has_dma_buf,
        });
        let options = Options {
            library: Some(stub.path.clone()),
            devices: None,
            exporter: Some(gpu.clone()),
        };
        let bed = Bed {
            asker: Verbs::open(&options).unwrap(),
            owner: bed.owner.clone(),
        };
        let (mut path, _serving) = bed.path();
        let (dma_bufs, registered) = (stub.get("dmabufs"), stub.get("registered"));
        read(&mut path, &mut memory[1000..2000], 0, &published).unwrap();
        read(&mut path, &mut memory[500_000..], 0, &published).unwrap();
        assert_eq!(
            (
                stub.get("dmabufs") - dma_bufs,
                stub.get("registered") - registered
            ),
            (i64::from(has_dma_buf), 1)
        );
        assert!(!has_dma_buf || stub.get("dmabuf_offset") == 512);
        // Freed, and another allocation at its place.
        gpu.allocation.lock().unwrap().number = 2;
        read(&mut path, &mut memory[1000..2000], 0, &published).unwrap();
        assert_eq!(
            (stub.get("dmabufs") - dma_bufs, bed.asker.regions()),
            (2 * i64::from(has_dma_buf), 1)
        );
        gpu.allocation.lock().unwrap().bytes = 1500;
        let run = Run {
            remote: 0,
            local: base + 1000,
            bytes: 1000,
        };
        // SAFETY: it is refused.
        let refused = unsafe { path.post(1, Direction::Read, &[run], &published.remote()) }
            .unwrap_err()
            .to_string();
        assert!(refused.contains("passes the end of its allocation"), "{refused}");
    }
}
