//! What it costs to be sure of the other side: a handshake of both ends in one thread, and 64 KiB through TLS beside the
//! same in clear.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roost_core::id::{HostId, JobId};
use roost_core::trust::{Authority, Credentials, Door, DoorConfig, Handshake, PREAMBLE_BYTES, Secure, Trust};

const PREAMBLE: [u8; PREAMBLE_BYTES] = [7; PREAMBLE_BYTES];
const BLOCK: usize = 64 << 10;

/// One direction of a socket, in memory.
#[derive(Default)]
struct Pipe {
    bytes: Vec<u8>,
    read: usize,
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.bytes.len() - self.read);
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        into[..count].copy_from_slice(&self.bytes[self.read..self.read + count]);
        self.read += count;
        if self.read == self.bytes.len() {
            self.bytes.clear();
            self.read = 0;
        }
        Ok(count)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn write_vectored(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let before = self.bytes.len();
        for piece in pieces {
            self.bytes.extend_from_slice(piece);
        }
        Ok(self.bytes.len() - before)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn shake(mut dialler: Handshake, mut acceptor: Handshake) -> (Secure, Secure) {
    let (mut up, mut down) = (Pipe::default(), Pipe::default());
    while !(dialler.is_done() && acceptor.is_done()) {
        dialler.write(&mut up).expect("a pipe takes all");
        acceptor.read(&mut up).expect("the dialler is right");
        acceptor.write(&mut down).expect("a pipe takes all");
        dialler.read(&mut down).expect("the acceptor is right");
    }
    (dialler.finish(), acceptor.finish())
}

fn host(number: u64) -> HostId {
    HostId::new(number).expect("not zero")
}

fn credentials(plaintext: bool) -> [Credentials; 2] {
    let authority = Authority::new(JobId([1; 16])).expect("random numbers");
    [host(1), host(2)].map(|host| {
        let mut credentials = authority.issue(host).expect("random numbers");
        credentials.plaintext = plaintext;
        credentials
    })
}

fn lane(plaintext: bool) -> (Secure, Secure) {
    let [one, two] = credentials(plaintext).map(|credentials| Trust::new(&credentials).expect("right ones"));
    shake(
        one.dial(&PREAMBLE, host(2)).expect("random numbers"),
        two.accept(&PREAMBLE).expect("random numbers"),
    )
}

fn handshakes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("handshake, both ends");
    for (label, plaintext) in [("TLS", false), ("in clear", true)] {
        let [one, two] =
            credentials(plaintext).map(|credentials| Trust::new(&credentials).expect("right ones"));
        group.bench_function(BenchmarkId::new("lane", label), |bencher| {
            bencher.iter(|| {
                let acceptor = two.accept(&PREAMBLE).expect("random numbers");
                shake(one.dial(&PREAMBLE, host(2)).expect("random numbers"), acceptor)
            });
        });
    }
    let door = Door::new(&DoorConfig::default()).expect("random numbers");
    group.bench_function(BenchmarkId::new("join", "TLS"), |bencher| {
        bencher.iter(|| {
            let acceptor = door.accept(&PREAMBLE).expect("random numbers");
            shake(
                door.dial(&PREAMBLE, "localhost").expect("random numbers"),
                acceptor,
            )
        });
    });
    let authority = Authority::new(JobId([1; 16])).expect("random numbers");
    group.bench_function(BenchmarkId::new("credentials", "issue"), |bencher| {
        bencher.iter(|| authority.issue(host(1)).expect("random numbers"));
    });
    group.finish();
}

/// One block through; both ends of the socket in this thread, so that no scheduler is in the figures.
fn carry(
    one: &mut Secure,
    two: &mut Secure,
    up: &mut impl Write,
    down: &mut impl Read,
    block: &[u8],
    into: &mut [u8],
) {
    let (mut sent, mut received) = (0, 0);
    while received < block.len() {
        if sent < block.len() {
            match one.write(up, &[IoSlice::new(&block[sent..])]) {
                Ok(count) => sent += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
        } else {
            one.flush(up).expect("the socket is good");
        }
        match two.read(down, &mut into[received..]) {
            Ok(count) => received += count,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

fn bulk(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("64 KiB between hosts");
    group.throughput(Throughput::Bytes(BLOCK as u64));
    let (block, mut into) = (vec![7; BLOCK], vec![0; BLOCK]);
    for (label, plaintext) in [("TLS", false), ("in clear", true)] {
        group.bench_function(BenchmarkId::new("over TCP", label), |bencher| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
            let address = listener.local_addr().expect("bound");
            let mut up = TcpStream::connect(address).expect("somebody listens");
            let (mut down, _) = listener.accept().expect("somebody calls");
            up.set_nodelay(true).expect("a TCP socket");
            up.set_nonblocking(true).expect("a socket");
            down.set_nonblocking(true).expect("a socket");
            let (mut one, mut two) = lane(plaintext);
            bencher.iter(|| carry(&mut one, &mut two, &mut up, &mut down, &block, &mut into));
        });
    }
    let (mut one, mut two) = lane(false);
    let mut wire = Pipe::default();
    group.bench_function(BenchmarkId::new("in memory", "TLS"), |bencher| {
        bencher.iter(|| {
            let mut sent = 0;
            while sent < BLOCK {
                sent += one
                    .write(&mut wire, &[IoSlice::new(&block[sent..])])
                    .expect("a pipe takes all");
            }
            let mut received = 0;
            while received < BLOCK {
                received += two.read(&mut wire, &mut into[received..]).expect("all was sent");
            }
        });
    });
    group.finish();
}

criterion_group!(benches, handshakes, bulk);
criterion_main!(benches);
