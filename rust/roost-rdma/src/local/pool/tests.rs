use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::local::testing::{Forked, PAGE, Pages, at, part, whole};
use crate::local::{Mapped, Mappings, Segment, Way};
use crate::plan::{Direction, Run};

const MIB: usize = 1024 * 1024;

type Result = std::result::Result<Moved, Error>;

/// Hand an operation in whose local memory the test keeps until it has the result.
fn start(pool: &Pool, parts: Arc<[Part]>, places: Vec<Place>) -> (Ticket, Receiver<Result>) {
    let (told, results) = sync_channel(1);
    let done: Done = Box::new(move |result| told.send(result).unwrap());
    let work = Work { parts, places, done };
    // SAFETY: the tests keep their pages until they have the result.
    (unsafe { pool.submit(work) }, results)
}

fn soon<T>(results: &Receiver<T>) -> T {
    results.recv_timeout(Duration::from_mins(1)).unwrap()
}

fn read(pool: &Pool, here: &Pages, place: Place) -> Result {
    soon(&start(pool, whole(Direction::Read, here), vec![place]).1)
}

#[test]
fn large_reads_are_whole_whatever_the_threads() {
    let mut there = Pages::new(33 * MIB + PAGE, 0);
    for (at, byte) in there.get_mut().iter_mut().enumerate() {
        *byte = u8::try_from((at / 7) % 253).unwrap();
    }
    let owner = Forked::new(|_| ());
    for threads in [1, 4] {
        let pool = Pool::start(threads).unwrap();
        let here = Pages::new(there.bytes(), 0);
        let (_ticket, results) = start(
            &pool,
            whole(Direction::Read, &here),
            vec![at(&owner.way(), there.address())],
        );
        let moved = soon(&results).unwrap();
        assert_eq!(moved.bytes, there.bytes() as u64);
        assert!(here.get() == there.get());
    }
}

#[test]
fn shared_memory_goes_both_ways() {
    let segment = Segment::empty(9 * MIB).unwrap();
    let mapped = Mappings::new().map(segment.file(), 9 * MIB as u64).unwrap();
    let pool = Pool::start(2).unwrap();
    let mut here = Pages::new(8 * MIB, 5);
    let place = |mapped: &Arc<Mapped>| Place::Shared {
        owner: None,
        mapped: Arc::clone(mapped),
        base: MIB as u64,
    };
    let written = start(&pool, whole(Direction::Write, &here), vec![place(&mapped)]);
    soon(&written.1).unwrap();
    here.fill(0);
    let own = Arc::new(Mapped::own(Arc::clone(&segment)));
    read(&pool, &here, place(&own)).unwrap();
    assert!(here.get().iter().all(|&byte| byte == 5));
    // SAFETY: the segment's own memory.
    let before = unsafe { *segment.pointer().add(MIB - 1) };
    assert_eq!(before, 0, "what is before the buffer is untouched");
}

#[test]
fn an_owner_killed_in_mid_read_is_lost_soon() {
    let there = Pages::new(64 * MIB, 7);
    for _ in 0..5 {
        let mut owner = Forked::new(|_| ());
        owner.wait_ready();
        let pool = Pool::start(2).unwrap();
        let here = Pages::new(there.bytes(), 0);
        // The same memory many times over, so that the end of the owner comes before the end of the read.
        let one = whole(Direction::Read, &here)[0].clone();
        let parts: Arc<[Part]> = vec![one; 200].into();
        let places = vec![at(&owner.way(), there.address()); 200];
        let (_ticket, results) = start(&pool, parts, places);
        wait_for_byte(&here);
        owner.strike();
        let struck = Instant::now();
        let error = soon(&results).unwrap_err();
        assert!(matches!(error, Error::PeerLost(_)), "{error}");
        assert!(struck.elapsed() < Duration::from_secs(5));
    }
}

/// Wait until a copy has begun.
fn wait_for_byte(here: &Pages) {
    let byte: *const u8 = std::ptr::with_exposed_provenance(here.address());
    // SAFETY: the first byte of pages that live.
    while unsafe { byte.read_volatile() } == 0 {
        thread::yield_now();
    }
}

#[test]
fn memory_unmapped_in_mid_read_is_gone() {
    let there = Pages::new(64 * MIB, 7);
    let mut owner = Forked::new(|words| {
        if words == 1 {
            there.punch(0, there.bytes());
        }
    });
    owner.wait_ready();
    let pool = Pool::start(2).unwrap();
    let here = Pages::new(there.bytes(), 0);
    let one = whole(Direction::Read, &here)[0].clone();
    let parts: Arc<[Part]> = vec![one; 200].into();
    let (_ticket, results) = start(&pool, parts, vec![at(&owner.way(), there.address()); 200]);
    wait_for_byte(&here);
    owner.tell();
    let error = soon(&results).unwrap_err();
    assert!(matches!(error, Error::Gone(_)), "{error}");
}

#[test]
fn nothing_is_written_after_a_cancellation_was_told() {
    let mut there = Pages::new(16 * MIB, 7);
    let owner = Forked::new(|_| ());
    there.fill(0);
    let pool = Pool::start(2).unwrap();
    for round in 0..200_u32 {
        let mut here = Pages::new(there.bytes(), 0);
        let place = vec![at(&owner.way(), there.address())];
        let (ticket, results) = start(&pool, whole(Direction::Read, &here), place);
        for _ in 0..round * 20 {
            thread::yield_now();
        }
        ticket.cancel();
        match soon(&results) {
            Err(Error::Cancelled) => {
                here.fill(1);
                // Whoever still wrote would be seen by the next operation's end.
                let other = Pages::new(4 * MIB, 0);
                read(&pool, &other, at(&owner.way(), there.address())).unwrap();
                assert!(here.get().iter().all(|&byte| byte == 1));
            }
            result => assert_eq!(result.unwrap().bytes, there.bytes() as u64),
        }
    }
}

#[test]
fn a_small_operation_does_not_wait_for_a_large_one() {
    let there = Pages::new(64 * MIB, 7);
    let owner = Forked::new(|_| ());
    let pool = Pool::start(1).unwrap();
    let large = Pages::new(there.bytes(), 0);
    let one = whole(Direction::Read, &large)[0].clone();
    let parts: Arc<[Part]> = vec![one; 100].into();
    let (ticket, large_results) = start(&pool, parts, vec![at(&owner.way(), there.address()); 100]);
    let small = Pages::new(PAGE, 0);
    read(&pool, &small, at(&owner.way(), there.address())).unwrap();
    assert!(
        large_results.try_recv().is_err(),
        "the large one is far from its end"
    );
    ticket.cancel();
    assert_eq!(soon(&large_results), Err(Error::Cancelled));
}

#[test]
fn the_end_of_the_pool_is_the_end_of_what_it_does() {
    let there = Pages::new(64 * MIB, 7);
    let owner = Forked::new(|_| ());
    let pool = Pool::start(2).unwrap();
    let here = Pages::new(there.bytes(), 0);
    let one = whole(Direction::Read, &here)[0].clone();
    let parts: Arc<[Part]> = vec![one; 200].into();
    let started: Vec<_> = (0..3)
        .map(|_| {
            start(
                &pool,
                Arc::clone(&parts),
                vec![at(&owner.way(), there.address()); 200],
            )
        })
        .collect();
    drop(pool);
    for (_, results) in started {
        assert_eq!(results.try_recv(), Ok(Err(Error::Cancelled)));
    }
}

#[test]
fn a_failure_names_its_part() {
    let there = Pages::new(8 * PAGE, 7);
    let mut owner = Forked::new(|_| there.punch(4 * PAGE, PAGE));
    owner.wait_ready();
    let pool = Pool::start(2).unwrap();
    let here = Pages::new(8 * PAGE, 0);
    let parts: Arc<[Part]> = (0..8)
        .map(|page| {
            let run = Run {
                remote: (page * PAGE) as u64,
                local: here.address() + page * PAGE,
                bytes: PAGE as u64,
            };
            part(Direction::Read, 8 * PAGE as u64, vec![run])
        })
        .collect();
    let (_ticket, results) = start(&pool, parts, vec![at(&owner.way(), there.address()); 8]);
    let error = soon(&results).unwrap_err();
    assert!(
        matches!(&error, Error::Gone(text) if text.contains("part 4")),
        "{error}"
    );
}

/// What a part of a batch is made of: shared or not, its runs as (gap before, bytes).
type Shape = (bool, Vec<(usize, usize)>);

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    let run = (0_usize..3 * PAGE, 1_usize..3 * PAGE);
    proptest::collection::vec((any::<bool>(), proptest::collection::vec(run, 1..20)), 1..30)
}

fn lay(shapes: &[Shape], base: usize) -> (Vec<(bool, Vec<Run>)>, usize) {
    let mut end = 0;
    let parts = shapes.iter().map(|(is_shared, runs)| {
        let runs = runs.iter().map(|&(gap, bytes)| {
            let local = base + end + gap;
            end += gap + bytes;
            Run {
                remote: (local - base) as u64,
                local,
                bytes: bytes as u64,
            }
        });
        (*is_shared, runs.collect())
    });
    (parts.collect(), end)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn batches_move_their_bytes_and_no_others(shapes in shapes(), threads in 1_usize..4) {
        let (_, bytes) = lay(&shapes, 0);
        let bytes = bytes.next_multiple_of(PAGE);
        let mut there = Pages::new(bytes, 0);
        let segment = Segment::empty(bytes).unwrap();
        for (at, byte) in there.get_mut().iter_mut().enumerate() {
            *byte = u8::try_from(1 + at % 250).unwrap();
        }
        // SAFETY: both are of so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(there.get().as_ptr(), segment.pointer(), bytes) };
        let here = Pages::new(bytes, 0);
        let (laid, _) = lay(&shapes, here.address());
        let way = Arc::new(Way::own().unwrap());
        let mapped = Arc::new(Mapped::own(segment));
        let places = laid.iter().map(|(is_shared, _)| if *is_shared {
            Place::Shared { owner: None, mapped: Arc::clone(&mapped), base: 0 }
        } else {
            at(&way, there.address())
        });
        let places = places.collect();
        let parts: Arc<[Part]> =
            laid.iter().map(|(_, runs)| part(Direction::Read, bytes as u64, runs.clone())).collect();
        let pool = Pool::start(threads).unwrap();
        soon(&start(&pool, Arc::clone(&parts), places).1).unwrap();
        let mut wanted = vec![0_u8; bytes];
        for run in laid.iter().flat_map(|(_, runs)| runs) {
            let range = usize::try_from(run.remote).unwrap()..usize::try_from(run.remote + run.bytes).unwrap();
            wanted[range.clone()].copy_from_slice(&there.get()[range]);
        }
        prop_assert!(here.get() == wanted);
    }
}
