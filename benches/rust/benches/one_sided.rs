//! Reads from a buffer on the same host, each way beside its floor: `process_vm_readv` and memcpy in this thread, both
//! sides on huge pages where the kernel has them.

use std::io::{PipeReader, Read};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roost_core::id::{HostId, Incarnation, ProcId};
use roost_rdma::local::pool::{Done, copy_now};
use roost_rdma::local::{Mappings, Place, Pool, Process, Segment, Way, Work};
use roost_rdma::{Direction, Handle, Part, Peer, Run};

const SIZES: [(&str, usize); 6] = [
    ("4 KiB", 4 << 10),
    ("64 KiB", 64 << 10),
    ("1 MiB", 1 << 20),
    ("16 MiB", 16 << 20),
    ("64 MiB", 64 << 20),
    ("256 MiB", 256 << 20),
];
const BYTES_MAX: usize = 256 << 20;
const BATCH: usize = 1000;
const BATCH_PART_BYTES: usize = 64 << 10;

/// A read up to this size is made by the thread that asks, as the engine does it.
const AT_ONCE_BYTES_MAX: usize = 256 << 10;

/// Memory on huge pages, never unmapped.
fn huge_pages(fill: u8) -> usize {
    // SAFETY: the kernel chooses the address; nobody else has the memory.
    unsafe {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let address = libc::mmap(std::ptr::null_mut(), BYTES_MAX, access, flags, -1, 0);
        assert_ne!(address, libc::MAP_FAILED, "there is memory");
        libc::madvise(address, BYTES_MAX, libc::MADV_HUGEPAGE);
        libc::memset(address, i32::from(fill), BYTES_MAX);
        address.expose_provenance()
    }
}

/// Another process with such memory: (its number, the address there). It ends with this one.
fn owner() -> (libc::pid_t, usize) {
    let (mut reader, writer) = std::io::pipe().expect("a pipe");
    // SAFETY: the child calls the kernel alone, and never returns.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // After the fork: pages that were inherited are no huge ones.
        let address = huge_pages(7);
        // SAFETY: the number outlives the call.
        unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            libc::write(
                writer.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<usize>(),
            );
            loop {
                libc::pause();
            }
        }
    }
    (pid, read_number(&mut reader))
}

fn read_number(reader: &mut PipeReader) -> usize {
    let mut bytes = [0; size_of::<usize>()];
    reader.read_exact(&mut bytes).expect("the owner has memory");
    usize::from_ne_bytes(bytes)
}

fn way_to(pid: libc::pid_t) -> Arc<Way> {
    let pid = rustix::process::Pid::from_raw(pid).expect("a process");
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
    let process = Process::of(pidfd.expect("it lives")).expect("it lives");
    Arc::new(Way::Calls(process))
}

/// So many parts of so many bytes each, side by side.
fn parts(count: usize, bytes: usize, local: usize) -> Arc<[Part]> {
    let handle = Arc::new(Handle {
        job: 1,
        host: HostId::new(1).expect("not zero"),
        owner: Peer {
            proc: ProcId::new(1).expect("not zero"),
            incarnation: Incarnation(0),
        },
        region: 1,
        key: [0; 16],
        size: BYTES_MAX as u64,
    });
    let part = |number: usize| Part {
        direction: Direction::Read,
        handle: Arc::clone(&handle),
        runs: vec![Run {
            remote: (number * bytes) as u64,
            local: local + number * bytes,
            bytes: bytes as u64,
        }],
    };
    (0..count).map(part).collect()
}

/// Read as the engine does, and wait for the end.
fn read(pool: &Pool, parts: &Arc<[Part]>, place: &Place) {
    let places = vec![place.clone(); parts.len()];
    let bytes: u64 = parts.iter().map(Part::bytes).sum();
    if bytes <= AT_ONCE_BYTES_MAX as u64 {
        // SAFETY: the memory is never unmapped.
        unsafe { copy_now(Arc::clone(parts), places) }.expect("the owner lives");
        return;
    }
    let (told, result) = sync_channel(1);
    let done: Done = Box::new(move |result| told.send(result).expect("this thread waits"));
    let work = Work {
        parts: Arc::clone(parts),
        places,
        done,
    };
    // SAFETY: the memory is never unmapped.
    let _ticket = unsafe { pool.submit(work) };
    result.recv().expect("the pool tells").expect("the owner lives");
}

fn read_floor(pid: libc::pid_t, local: usize, remote: usize, bytes: usize) {
    let mut done = 0;
    while done < bytes {
        let vector = |address: usize| libc::iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(address + done),
            iov_len: bytes - done,
        };
        let (here, there) = (vector(local), vector(remote));
        // SAFETY: the memory is never unmapped.
        let read = unsafe { libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0) };
        done += usize::try_from(read).expect("the owner lives");
    }
}

fn copy_floor(local: usize, from: *const u8, bytes: usize) {
    // SAFETY: the memory is never unmapped, and two different mappings.
    unsafe { std::ptr::copy_nonoverlapping(from, std::ptr::with_exposed_provenance_mut(local), bytes) };
}

fn group<'a>(criterion: &'a mut Criterion, name: &str) -> BenchmarkGroup<'a, WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(20);
    group.warm_up_time(Duration::from_millis(300));
    group.measurement_time(Duration::from_secs(2));
    group
}

fn pool() -> Pool {
    let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4));
    Pool::start(threads).expect("threads")
}

fn another_process(criterion: &mut Criterion) {
    let (pid, remote) = owner();
    let (way, local, pool) = (way_to(pid), huge_pages(1), pool());
    let place = Place::Process {
        way,
        base: remote as u64,
    };
    let mut group = group(criterion, "one-sided read, another process's memory");
    for (label, bytes) in SIZES {
        let whole = parts(1, bytes, local);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new("pool", label), |bencher| {
            bencher.iter(|| read(&pool, &whole, &place));
        });
        group.bench_function(BenchmarkId::new("floor", label), |bencher| {
            bencher.iter(|| read_floor(pid, local, remote, bytes));
        });
    }
    let bytes = BATCH * BATCH_PART_BYTES;
    let (batch, whole) = (parts(BATCH, BATCH_PART_BYTES, local), parts(1, bytes, local));
    group.throughput(Throughput::Bytes(bytes as u64));
    group.bench_function("batch/1,000 x 64 KiB", |bencher| {
        bencher.iter(|| read(&pool, &batch, &place));
    });
    group.bench_function("batch/one of the same bytes", |bencher| {
        bencher.iter(|| read(&pool, &whole, &place));
    });
    group.finish();
    // SAFETY: a process of ours, which nobody has waited for.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
}

fn shared_memory(criterion: &mut Criterion) {
    let segment = Segment::empty(BYTES_MAX).expect("memory");
    // SAFETY: the segment's own memory.
    unsafe { std::ptr::write_bytes(segment.pointer(), 7, segment.bytes()) };
    let mappings = Mappings::new();
    let mapped = mappings
        .map(segment.file(), BYTES_MAX as u64)
        .expect("it can be mapped");
    let (local, pool) = (huge_pages(1), pool());
    let place = Place::Shared {
        owner: None,
        mapped,
        base: 0,
    };
    let mut group = group(criterion, "one-sided read, shared memory");
    for (label, bytes) in SIZES {
        let whole = parts(1, bytes, local);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(BenchmarkId::new("pool", label), |bencher| {
            bencher.iter(|| read(&pool, &whole, &place));
        });
        group.bench_function(BenchmarkId::new("floor", label), |bencher| {
            bencher.iter(|| copy_floor(local, segment.pointer(), bytes));
        });
    }
    group.finish();
}

criterion_group!(benches, another_process, shared_memory);
criterion_main!(benches);
