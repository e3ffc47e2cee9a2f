//! Bytes made and read: a frame encoded into the session's log, a frame decoded, each beside a bare copy.

use std::hint::black_box;
use std::ops::ControlFlow;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use roost_benches::{MemoryPair, PAYLOADS, new_session, push_call, target, write_to};
use roost_core::credit::{Amount, SendWindow};
use roost_core::wire::{Frame, Run, RunsBuffer};

/// A frame with this payload, as it lies on the wire.
fn frame(bytes: usize) -> Vec<u8> {
    let (mut session, mut wire) = (new_session(), Vec::new());
    push_call(&mut session, 1, &vec![7; bytes]);
    write_to(&mut session, &mut wire);
    wire
}

fn encode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("encode a call");
    for (label, bytes) in PAYLOADS {
        let payload = vec![7; bytes];
        let wire = frame(bytes);
        group.throughput(Throughput::Bytes(wire.len() as u64));
        group.bench_function(BenchmarkId::new("push", label), |bencher| {
            let mut session = new_session();
            bencher.iter(|| {
                push_call(&mut session, 1, black_box(&payload));
                let count = session.unsent_bytes();
                session.sent(count);
                // The peer's acknowledgement, so that the log is freed as in use.
                session
                    .resume(session.last_sequence())
                    .expect("all of it was sent");
            });
        });
        group.bench_function(BenchmarkId::new("floor", label), |bencher| {
            let mut out = Vec::with_capacity(wire.len());
            bencher.iter(|| {
                out.clear();
                out.extend_from_slice(black_box(&wire));
                black_box(&out);
            });
        });
    }
    group.finish();
}

fn decode(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("decode a call");
    for (label, bytes) in PAYLOADS {
        let wire = frame(bytes);
        group.bench_function(BenchmarkId::new("decode", label), |bencher| {
            bencher.iter(|| {
                Frame::decode(black_box(&wire))
                    .expect("the frame is whole")
                    .is_some()
            });
        });
    }
    let mut wire = Vec::new();
    let mut session = new_session();
    for call in 0..100 {
        push_call(&mut session, call, &[7; 16]);
    }
    write_to(&mut session, &mut wire);
    group.throughput(Throughput::Elements(100));
    group.bench_function("receive/100 calls in one read", |bencher| {
        bencher.iter_batched_ref(
            new_session,
            |receiver| {
                let mut bytes = 0;
                let visit = &mut |frame: Frame<'_>| {
                    bytes += frame.head.body_length;
                    ControlFlow::Continue(())
                };
                receiver
                    .receive(0, black_box(&wire), visit)
                    .expect("the frames are in order");
                bytes
            },
            criterion::BatchSize::SmallInput,
        );
    });
    group.finish();
}

fn routing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("route");
    let mut runs = RunsBuffer::new();
    runs.push(Run {
        slot: 0,
        count: 1024,
        slot_stride: 1,
        rank: 0,
        rank_stride: 1,
    })
    .expect("1,024 actors can be named");
    group.throughput(Throughput::Elements(1024));
    group.bench_function("targets/1,024 actors of one message", |bencher| {
        bencher.iter(|| {
            let targets = black_box(&runs).as_runs();
            targets
                .targets()
                .map(|(slot, rank)| u64::from(slot ^ rank))
                .sum::<u64>()
        });
    });
    let one = target();
    group.throughput(Throughput::Elements(1));
    group.bench_function("targets/1 actor", |bencher| {
        bencher.iter(|| black_box(&one).as_runs().targets().count());
    });
    group.bench_function("credit/take and grant", |bencher| {
        let mut window = SendWindow::default();
        let mut total = Amount::default();
        bencher.iter(|| {
            assert!(
                window.take(Amount::MAILBOX, black_box(16)),
                "the last one was granted"
            );
            total = Amount {
                messages: total.messages + 1,
                bytes: total.bytes + 16,
            };
            window.grant(Amount::MAILBOX, total).expect("as much was sent")
        });
    });
    group.finish();
}

fn memory(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("round trip over memory");
    for (label, bytes) in PAYLOADS {
        let payload = vec![7; bytes];
        group.bench_function(BenchmarkId::new("session", label), |bencher| {
            let mut pair = MemoryPair::default();
            bencher.iter(|| pair.round_trip(1, black_box(&payload)));
        });
        let wire = frame(bytes);
        group.bench_function(BenchmarkId::new("floor", label), |bencher| {
            let (mut there, mut back) = (Vec::new(), Vec::new());
            bencher.iter(|| {
                there.clear();
                there.extend_from_slice(black_box(&wire));
                back.clear();
                back.extend_from_slice(black_box(&there));
                black_box(&back);
            });
        });
    }
    group.throughput(Throughput::Elements(100));
    group.bench_function("session/100 calls at once", |bencher| {
        let mut pair = MemoryPair::default();
        bencher.iter(|| pair.round_trip(100, black_box(&[7; 16])));
    });
    group.finish();
}

criterion_group!(benches, encode, decode, routing, memory);
criterion_main!(benches);
