//! Engines in one process, and links between them.
#![allow(
    dead_code,
    clippy::cast_possible_truncation,
    reason = "each test file uses its own part, and has its own lints"
)]

mod lanes;
mod library;

use std::collections::HashMap;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, Weak};
use std::time::{Duration, Instant};

use roost_core::id::{HostId, Incarnation, ProcId};
use roost_rdma::{
    Backend, Completion, Direction, Done, Engine, Error, Handle, Lane, Memory, Options, Own, Part, Peer,
    Plain, Role, Run, Switch, Transfer,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub const JOB: u64 = 7;

/// A process that is not there. The engine that asks for it does nothing until somebody comes to the exchange's gate.
pub const AT_THE_GATE: u64 = 99;

/// How two engines reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The kernel copies between processes.
    SameHost,
    /// Chunks over the Unix link.
    Unix,
    /// Chunks over one TCP connection.
    Tcp,
    /// Chunks over several.
    Striped,
    /// The same in TLS.
    Tls,
    /// NICs of a stub of libibverbs.
    Nics,
}

pub const KINDS: [Kind; 6] = [
    Kind::SameHost,
    Kind::Unix,
    Kind::Tcp,
    Kind::Striped,
    Kind::Tls,
    Kind::Nics,
];

/// In the machine of `make test-rdma`, where libibverbs is the real one.
pub fn on_soft_roce() -> bool {
    std::env::var_os("ROOST_TEST_SOFT_ROCE").is_some()
}

/// The ways that are tried: in that machine NICs alone, the others are tried without it.
pub fn kinds() -> &'static [Kind] {
    if on_soft_roce() { &[Kind::Nics] } else { &KINDS }
}

impl Kind {
    pub fn backend(self) -> Backend {
        match self {
            Self::SameHost => Backend::SameHost,
            Self::Nics => Backend::Ibverbs,
            Self::Unix | Self::Tcp | Self::Striped | Self::Tls => Backend::Tcp,
        }
    }

    fn forced(self) -> Option<Backend> {
        match self {
            Self::Unix | Self::Tcp | Self::Striped | Self::Tls => Some(Backend::Tcp),
            Self::Nics => Some(Backend::Ibverbs),
            Self::SameHost => None,
        }
    }

    /// The lanes of one link, and of its other end.
    pub fn lanes(self) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
        match self {
            Self::SameHost | Self::Unix | Self::Nics => {
                let (one, other) = UnixStream::pair().unwrap();
                (vec![one.into()], vec![other.into()])
            }
            Self::Tcp => tcp(1),
            Self::Striped | Self::Tls => tcp(5),
        }
    }

    pub fn lane(self, socket: OwnedFd) -> Box<dyn Lane> {
        rustix::io::ioctl_fionbio(&socket, true).unwrap();
        match self {
            Self::SameHost | Self::Unix | Self::Nics => Box::new(Plain::unix(socket)),
            Self::Tcp | Self::Striped => Box::new(Plain::tcp(socket)),
            Self::Tls => unreachable!("both ends of it are made at once"),
        }
    }

    /// Both ends of a connection.
    fn ends(self, near: OwnedFd, far: OwnedFd) -> [Box<dyn Lane>; 2] {
        match self {
            Self::Tls => lanes::secured(near, far),
            _ => [self.lane(near), self.lane(far)],
        }
    }
}

fn tcp(count: usize) -> (Vec<OwnedFd>, Vec<OwnedFd>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pair = || {
        let one = TcpStream::connect(address).unwrap();
        let (other, _) = listener.accept().unwrap();
        one.set_nodelay(true).unwrap();
        other.set_nodelay(true).unwrap();
        (OwnedFd::from(one), OwnedFd::from(other))
    };
    (0..count).map(|_| pair()).unzip()
}

/// Makes links between the engines of this process, and cuts them.
pub struct Exchange {
    pub kind: Kind,
    engines: Mutex<HashMap<Peer, Engine>>,
    /// Duplicates of the askers' ends of all links.
    pub sockets: Mutex<Vec<OwnedFd>>,
    pub asked: AtomicU64,
    pub is_silent: AtomicBool,
    /// Where an engine stands that asks for a link to [`AT_THE_GATE`].
    pub gate: Barrier,
    /// The next link changes a byte that its asker reads, after so many; zero: none does.
    pub asker_flips: AtomicUsize,
    /// The same of what its owner reads.
    pub owner_flips: AtomicUsize,
}

struct Wire(Weak<Exchange>, Peer);

impl Switch for Wire {
    fn ask(&self, peer: Peer, _host: HostId) {
        let Some(exchange) = self.0.upgrade() else {
            return;
        };
        if peer.proc == ProcId::new(AT_THE_GATE).unwrap() {
            exchange.gate.wait();
            return;
        }
        exchange.asked.fetch_add(1, Ordering::Relaxed);
        if exchange.is_silent.load(Ordering::Relaxed) {
            return;
        }
        let asker = exchange.engines.lock().unwrap().get(&self.1).cloned();
        let owner = exchange.engines.lock().unwrap().get(&peer).cloned();
        let Some(asker) = asker else {
            return;
        };
        let Some(owner) = owner else {
            return asker.link_failed(peer, "there is no such process".into(), true);
        };
        let (near, far) = exchange.kind.lanes();
        let mut sockets = exchange.sockets.lock().unwrap();
        sockets.extend(near.iter().map(|socket| socket.try_clone().unwrap()));
        let (near, far) = near
            .into_iter()
            .zip(far)
            .map(|(near, far)| exchange.ends(near, far))
            .unzip();
        owner.adopt(self.1, Role::Serves, 0, far);
        asker.adopt(peer, Role::Asks, 0, near);
    }
}

impl Exchange {
    pub fn new(kind: Kind) -> Arc<Self> {
        Arc::new(Self {
            kind,
            engines: Mutex::default(),
            sockets: Mutex::default(),
            asked: AtomicU64::new(0),
            is_silent: AtomicBool::new(false),
            gate: Barrier::new(2),
            asker_flips: AtomicUsize::new(0),
            owner_flips: AtomicUsize::new(0),
        })
    }

    pub fn engine(self: &Arc<Self>, number: u64) -> Side {
        let own = own(number, 0);
        let options = Options {
            forced: self.kind.forced(),
            library: (!on_soft_roce()).then(library::stub),
            // One engine on each end of the machine's cable.
            devices: if on_soft_roce() {
                vec![format!("rxe{}", number % 2)]
            } else {
                Vec::new()
            },
            ..Options::default()
        };
        let wire = Arc::new(Wire(Arc::downgrade(self), own.peer));
        let engine = Engine::start(own, options, wire).unwrap();
        self.engines.lock().unwrap().insert(own.peer, engine.clone());
        Side::new(engine, own.peer)
    }

    fn ends(&self, near: OwnedFd, far: OwnedFd) -> (Box<dyn Lane>, Box<dyn Lane>) {
        let flips = [&self.asker_flips, &self.owner_flips].map(|flips| flips.swap(0, Ordering::Relaxed));
        match flips {
            [0, 0] => self.kind.ends(near, far).into(),
            [before, 0] => (Box::new(lanes::Flipping::new(near, before)), self.kind.lane(far)),
            [_, before] => (self.kind.lane(near), Box::new(lanes::Flipping::new(far, before))),
        }
    }

    pub fn remove(&self, peer: Peer) {
        self.engines.lock().unwrap().remove(&peer);
    }

    /// Cuts all links that there are.
    pub fn cut(&self) {
        for socket in self.sockets.lock().unwrap().drain(..) {
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.engines.lock().unwrap().clear();
    }
}

pub fn own(number: u64, incarnation: u32) -> Own {
    Own {
        job: JOB,
        host: HostId::new(1).unwrap(),
        peer: Peer {
            proc: ProcId::new(number).unwrap(),
            incarnation: Incarnation(incarnation),
        },
    }
}

/// One engine, and who waits for it.
pub struct Side {
    pub engine: Engine,
    pub peer: Peer,
    tokens: AtomicU64,
    early: Mutex<HashMap<u64, Completion>>,
}

pub const LONG: Duration = Duration::from_secs(20);

impl Side {
    pub fn new(engine: Engine, peer: Peer) -> Self {
        Self {
            engine,
            peer,
            tokens: AtomicU64::new(0),
            early: Mutex::default(),
        }
    }

    pub fn token(&self) -> u64 {
        self.tokens.fetch_add(1, Ordering::Relaxed)
    }

    pub fn wait(&self, token: u64) -> Completion {
        let end = Instant::now() + LONG;
        loop {
            let mut early = self.early.lock().unwrap();
            early.extend(self.engine.drain().into_iter().map(|done| (done.token, done)));
            if let Some(done) = early.remove(&token) {
                return done;
            }
            drop(early);
            assert!(Instant::now() < end, "no completion of {token}");
            let completions = self.engine.completions();
            let mut fds = [PollFd::new(&completions, PollFlags::IN)];
            let second = Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            };
            let _ = poll(&mut fds, Some(&second));
        }
    }

    /// Memory that is registered until it is dropped.
    pub fn register(&self, bytes: Vec<u8>) -> Handle {
        let memory = Memory::of(bytes.as_ptr().expose_provenance(), bytes.len() as u64);
        self.engine.register(memory, Box::new(bytes)).unwrap()
    }

    pub fn submit(&self, transfer: Transfer) -> Result<u64, Error> {
        let token = self.token();
        self.engine.submit(transfer, token)?;
        Ok(token)
    }

    pub fn run(&self, transfer: Transfer) -> Result<Done, Error> {
        let token = self.submit(transfer)?;
        self.wait(token).result
    }

    pub fn read(&self, handle: &Handle, into: &mut [u8], offset: u64) -> Result<Done, Error> {
        self.run(transfer(vec![part(Direction::Read, handle, offset, into)]))
    }

    pub fn write(&self, handle: &Handle, from: &mut [u8], offset: u64) -> Result<Done, Error> {
        self.run(transfer(vec![part(Direction::Write, handle, offset, from)]))
    }

    pub fn drop_region(&self, handle: &Handle) -> Completion {
        let token = self.token();
        self.engine.drop_region(handle.region, token).unwrap();
        self.wait(token)
    }
}

pub fn part(direction: Direction, handle: &Handle, offset: u64, local: &mut [u8]) -> Part {
    let run = Run {
        remote: offset,
        local: local.as_mut_ptr().expose_provenance(),
        bytes: local.len() as u64,
    };
    Part {
        direction,
        handle: Arc::new(handle.clone()),
        runs: vec![run],
    }
}

pub fn transfer(parts: Vec<Part>) -> Transfer {
    Transfer {
        parts,
        version: None,
        timeout: LONG,
        checksum: false,
        keep: Box::new(()),
    }
}

pub fn pattern(bytes: usize, seed: u8) -> Vec<u8> {
    (0..bytes)
        .map(|at| (at.wrapping_mul(31) ^ (at >> 8)).to_le_bytes()[0] ^ seed)
        .collect()
}

/// Two engines, the first an owner.
pub fn pair(kind: Kind) -> (Arc<Exchange>, Side, Side) {
    let exchange = Exchange::new(kind);
    let (owner, asker) = (exchange.engine(1), exchange.engine(2));
    (exchange, owner, asker)
}
