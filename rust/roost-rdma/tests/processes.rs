//! An owner in a process of its own: it may be killed, and speeds are what they are between processes.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "a test may end where it stands"
)]

mod bed;

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use bed::{KINDS, Kind, Side, own, part, transfer};
use roost_core::id::HostId;
use roost_rdma::{Direction, Engine, Error, Handle, Memory, Options, Peer, Role, Switch};

/// Gives the one link that there is, and then says that the owner is dead.
struct Once {
    kind: Kind,
    engine: Mutex<Option<Weak<Engine>>>,
    lanes: Mutex<Option<Vec<OwnedFd>>>,
}

impl Switch for Once {
    fn ask(&self, peer: Peer, _host: HostId) {
        let Some(engine) = self.engine.lock().unwrap().as_ref().and_then(Weak::upgrade) else {
            return;
        };
        match self.lanes.lock().unwrap().take() {
            Some(lanes) => {
                let lanes = lanes.into_iter().map(|socket| self.kind.lane(socket)).collect();
                engine.adopt(peer, Role::Asks, 0, lanes);
            }
            None => engine.link_failed(peer, "its process has ended".into(), true),
        }
    }
}

struct Nobody;

impl Switch for Nobody {
    fn ask(&self, _peer: Peer, _host: HostId) {}
}

struct Owner {
    pid: libc::pid_t,
    handle: Handle,
    asker: Side,
    _engine: Arc<Engine>,
    /// The owner ends with it.
    _tell: UnixStream,
}

fn options(kind: Kind) -> Options {
    Options {
        forced: (kind == Kind::Unix).then_some(roost_rdma::Backend::Tcp),
        ..Options::default()
    }
}

/// On huge pages where there are some, all of them touched.
fn memory(bytes: usize, value: u8) -> Vec<u8> {
    let mut memory: Vec<u8> = Vec::with_capacity(bytes);
    let huge = 2 << 20;
    let start = memory.as_ptr().addr().next_multiple_of(huge);
    let length = (memory.as_ptr().addr() + bytes).saturating_sub(start) / huge * huge;
    // SAFETY: whole huge pages inside the vector's own memory; only how it is mapped changes.
    unsafe {
        libc::madvise(
            std::ptr::with_exposed_provenance_mut(start),
            length,
            libc::MADV_HUGEPAGE,
        )
    };
    memory.resize(bytes, value);
    memory
}

impl Owner {
    fn start(kind: Kind, bytes: usize) -> Self {
        let (near, far) = kind.lanes();
        let (mut tell, told) = UnixStream::pair().unwrap();
        // SAFETY: the child uses what glibc makes good after a fork, threads of its own, and ends without this process's
        // handlers.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            drop((near, tell));
            serve(kind, far, told, bytes);
        }
        drop((far, told));
        let mut encoded = [0; Handle::BYTES];
        tell.read_exact(&mut encoded).unwrap();
        let switch = Arc::new(Once {
            kind,
            engine: Mutex::default(),
            lanes: Mutex::new(Some(near)),
        });
        let peer = own(2, 0).peer;
        let engine = Engine::start(own(2, 0), options(kind), switch.clone()).unwrap();
        let kept = Arc::new(engine.clone());
        *switch.engine.lock().unwrap() = Some(Arc::downgrade(&kept));
        let handle = Handle::decode(&encoded).unwrap();
        Self {
            pid,
            handle,
            asker: Side::new(engine, peer),
            _engine: kept,
            _tell: tell,
        }
    }

    fn kill(&self) {
        // SAFETY: a signal to a child of this test that is not reaped.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.kill();
        // SAFETY: reaps that child.
        unsafe { libc::waitpid(self.pid, std::ptr::null_mut(), 0) };
    }
}

fn serve(kind: Kind, lanes: Vec<OwnedFd>, mut told: UnixStream, bytes: usize) -> ! {
    let engine = Engine::start(own(1, 0), options(kind), Arc::new(Nobody)).unwrap();
    let memory = memory(bytes, 3);
    let at = Memory::of(memory.as_ptr().expose_provenance(), bytes as u64);
    let handle = engine.register(at, Box::new(memory)).unwrap();
    let lanes = lanes.into_iter().map(|socket| kind.lane(socket)).collect();
    engine.adopt(own(2, 0).peer, Role::Serves, 0, lanes);
    std::io::Write::write_all(&mut told, &handle.encode()).unwrap();
    // Until the other end ends.
    let _ = told.read(&mut [0]);
    // SAFETY: ends this child alone.
    unsafe { libc::_exit(0) }
}

/// The stub's queue pairs end with their process (`tests/verbs` kills owners on soft-RoCE), and what TLS lanes prove
/// themselves by is one process' own.
fn across_processes() -> impl Iterator<Item = Kind> {
    let is_own = |kind: &Kind| matches!(kind, Kind::Nics | Kind::Tls);
    KINDS.into_iter().filter(move |kind| !is_own(kind))
}

#[test]
fn an_owner_is_killed_in_mid_transfer() {
    for kind in across_processes() {
        for direction in [Direction::Read, Direction::Write] {
            let bytes = 64 << 20;
            let owner = Owner::start(kind, bytes);
            let mut local = vec![0_u8; bytes];
            owner.asker.read(&owner.handle, &mut local[..10], 0).unwrap();
            let parts = vec![part(direction, &owner.handle, 0, &mut local)];
            let token = owner.asker.submit(transfer(parts)).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            let killed = Instant::now();
            owner.kill();
            match owner.asker.wait(token).result {
                Ok(_) => println!("{kind:?}: it was quicker"),
                Err(Error::PeerLost(_)) => println!("{kind:?}: heard after {:?}", killed.elapsed()),
                other => panic!("{kind:?}: {other:?}"),
            }
            let after = owner.asker.read(&owner.handle, &mut local[..10], 0);
            assert!(matches!(after, Err(Error::PeerLost(_))), "{kind:?}: {after:?}");
        }
    }
}

/// `cargo test --release --test processes -- --ignored --nocapture`, on a quiet machine.
#[test]
#[ignore = "a measurement"]
fn speeds() {
    for kind in across_processes() {
        for megabytes in [64, 256] {
            let bytes = megabytes << 20;
            let owner = Owner::start(kind, bytes);
            let mut local = memory(bytes, 0);
            let [mut read, mut write] = [0.0_f64; 2];
            for _ in 0..5 {
                let started = Instant::now();
                owner.asker.read(&owner.handle, &mut local, 0).unwrap();
                read = read.max(bytes as f64 / started.elapsed().as_secs_f64());
                let started = Instant::now();
                owner.asker.write(&owner.handle, &mut local, 0).unwrap();
                write = write.max(bytes as f64 / started.elapsed().as_secs_f64());
            }
            println!(
                "{kind:?} {megabytes} MiB: read {:.2} GB/s, write {:.2} GB/s",
                read / 1e9,
                write / 1e9
            );
        }
        let owner = Owner::start(kind, 4096);
        let mut local = vec![0_u8; 4096];
        let mut times: Vec<Duration> = (0..2_000)
            .map(|_| {
                let started = Instant::now();
                owner.asker.read(&owner.handle, &mut local, 0).unwrap();
                started.elapsed()
            })
            .collect();
        times.sort_unstable();
        println!("{kind:?} 4 KiB: {:?} median", times[1_000]);
    }
}
