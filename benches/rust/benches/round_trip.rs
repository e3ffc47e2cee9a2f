//! Calls over a Unix socket pair, the callee on a thread of its own, beside the same bytes without a session.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roost_benches::{Callee, new_session, push_call, take_replies, write_to};
use roost_core::session::Session;

const READ_BYTES: usize = 256 * 1024;
const WINDOWS: [(&str, usize); 3] = [("1 call", 1), ("100 calls", 100), ("1,000 calls", 1000)];
const PAYLOAD: [u8; 16] = [7; 16];

/// Reads what there is behind the bytes of a frame that came in part. None at the end of the stream.
struct Reader {
    buffer: Vec<u8>,
    held: usize,
}

impl Reader {
    fn new() -> Self {
        Self {
            buffer: vec![0; READ_BYTES],
            held: 0,
        }
    }

    fn read(&mut self, socket: &mut UnixStream) -> Option<&[u8]> {
        match socket.read(&mut self.buffer[self.held..]) {
            Ok(0) => None,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => None,
            read => {
                self.held += read.expect("the socket is good");
                Some(&self.buffer[..self.held])
            }
        }
    }

    fn taken(&mut self, count: usize) {
        self.buffer.copy_within(count..self.held, 0);
        self.held -= count;
    }
}

fn flush(session: &mut Session, socket: &mut UnixStream, scratch: &mut Vec<u8>) {
    scratch.clear();
    write_to(session, scratch);
    socket.write_all(scratch).expect("the peer reads on");
}

/// The callee: answers until the caller hangs up.
fn serve(mut socket: UnixStream) {
    let (mut session, mut callee) = (new_session(), Callee::default());
    let (mut reader, mut scratch) = (Reader::new(), Vec::new());
    while let Some(bytes) = reader.read(&mut socket) {
        let taken = callee.answer(&mut session, bytes);
        reader.taken(taken);
        flush(&mut session, &mut socket, &mut scratch);
    }
}

/// The floor's callee: gives back every byte.
fn echo(mut socket: UnixStream) {
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(count @ 1..) = socket.read(&mut buffer) {
        socket.write_all(&buffer[..count]).expect("the peer reads on");
    }
}

fn unix(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("round trip over a Unix socket");
    for (label, window) in WINDOWS {
        group.throughput(Throughput::Elements(window as u64));
        group.bench_function(BenchmarkId::new("session", label), |bencher| {
            let (mut socket, other) = UnixStream::pair().expect("a socket pair");
            let server = thread::spawn(move || serve(other));
            let (mut session, mut reader, mut scratch) = (new_session(), Reader::new(), Vec::new());
            let mut calls = 0;
            bencher.iter(|| {
                for _ in 0..window {
                    calls += 1;
                    push_call(&mut session, calls, &PAYLOAD);
                }
                flush(&mut session, &mut socket, &mut scratch);
                let mut answered = 0;
                while answered < window {
                    let bytes = reader.read(&mut socket).expect("the callee answers");
                    let (replies, taken) = take_replies(&mut session, bytes);
                    reader.taken(taken);
                    answered += replies;
                }
            });
            drop(socket);
            server.join().expect("the callee ends in order");
        });
        group.bench_function(BenchmarkId::new("floor", label), |bencher| {
            let (mut socket, other) = UnixStream::pair().expect("a socket pair");
            let server = thread::spawn(move || echo(other));
            let mut session = new_session();
            for call in 0..window {
                push_call(&mut session, call as u64, &PAYLOAD);
            }
            let mut wire = Vec::new();
            write_to(&mut session, &mut wire);
            let mut back = vec![0; wire.len()];
            bencher.iter(|| {
                socket.write_all(&wire).expect("the peer reads on");
                socket.read_exact(&mut back).expect("the peer answers");
            });
            drop(socket);
            server.join().expect("the peer ends in order");
        });
    }
    group.finish();
}

criterion_group!(benches, unix);
criterion_main!(benches);
