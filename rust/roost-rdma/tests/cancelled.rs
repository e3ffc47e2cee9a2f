//! Transfers that are cancelled at random moments: once the completion is there, nothing touches their memory.
#![allow(
    clippy::unwrap_used,
    unreachable_pub,
    reason = "a test may end where it stands"
)]

mod bed;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bed::{KINDS, Kind, LONG, Side, pair, pattern};
use roost_rdma::{Completion, Direction, Error, Handle, Part, Run, Transfer};

const BUFFER_BYTES: usize = 3 * 1024 * 1024;

/// What the memory of a transfer that is over is filled with.
const OVER: u8 = 0xA5;

/// Nothing is let run for longer before it is cancelled.
const WAIT_NS_MAX: u64 = 50_000_000;

/// Memories that are looked at again before they are freed.
const KEPT: usize = 4;

/// Numbers that look random and are the same in each run (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A batch of parts of the buffer, whose local memory is the transfer's own and comes back with its completion.
fn random_transfer(random: &mut Random, handle: &Handle, direction: Direction) -> Transfer {
    let mut memory = pattern(1 + usize::try_from(random.below(BUFFER_BYTES as u64)).unwrap(), 3);
    let parts = 1 + random.below(5).min(memory.len() as u64 - 1);
    let each = memory.len() as u64 / parts;
    let local = memory.as_mut_ptr().expose_provenance();
    let part = |number: u64| Part {
        direction,
        handle: handle.clone().into(),
        runs: vec![Run {
            remote: number * each,
            local: local + usize::try_from(number * each).unwrap(),
            bytes: each,
        }],
    };
    Transfer {
        parts: (0..parts).map(part).collect(),
        version: None,
        timeout: LONG,
        checksum: random.below(3) == 0,
        keep: Box::new(memory),
    }
}

/// The memory of a transfer that is over, and whether it was cancelled.
fn take_back(completion: Completion) -> (Vec<u8>, bool) {
    let is_cancelled = match completion.result {
        Ok(_) => false,
        Err(Error::Cancelled) => true,
        Err(error) => panic!("{error}"),
    };
    let mut memory = *completion.keep.downcast::<Vec<u8>>().unwrap();
    memory.fill(OVER);
    (memory, is_cancelled)
}

fn usual_time(asker: &Side, handle: &Handle) -> Duration {
    let mut into = vec![0; BUFFER_BYTES];
    asker.read(handle, &mut into, 0).unwrap(); // the first makes the link
    let started = Instant::now();
    asker.read(handle, &mut into, 0).unwrap();
    started.elapsed()
}

/// Returns how many of so many transfers were cancelled before their end.
fn cancel_many(kind: Kind, count: usize) -> usize {
    let (_exchange, owner, asker) = pair(kind);
    let handle = owner.register(pattern(BUFFER_BYTES, 1));
    let mut longest = u64::try_from(usual_time(&asker, &handle).as_nanos()).unwrap();
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut over: VecDeque<Vec<u8>> = VecDeque::new();
    let mut cancelled = 0;
    for number in 0..count {
        let direction = if number % 4 == 3 {
            Direction::Write
        } else {
            Direction::Read
        };
        let token = asker
            .submit(random_transfer(&mut random, &handle, direction))
            .unwrap();
        let moment = Instant::now() + Duration::from_nanos(random.below(longest + 1));
        while Instant::now() < moment {
            std::thread::yield_now();
        }
        asker.engine.cancel(token);
        let (memory, is_cancelled) = take_back(asker.wait(token));
        cancelled += usize::from(is_cancelled);
        // Half of them are to be caught, however busy the machine is now.
        longest = if is_cancelled {
            (longest + longest / 2 + 1).min(WAIT_NS_MAX)
        } else {
            longest / 2
        };
        over.push_back(memory);
        if over.len() > KEPT {
            let oldest = over.pop_front().unwrap();
            assert!(
                oldest.iter().all(|&byte| byte == OVER),
                "written after the completion of {number}"
            );
        }
    }
    assert_eq!(asker.engine.counts().transfers, 0);
    // The link is as good as before.
    let mut into = vec![0; BUFFER_BYTES];
    asker.read(&handle, &mut into, 0).unwrap();
    cancelled
}

#[test]
fn nothing_touches_the_memory_of_a_cancelled_transfer() {
    for kind in KINDS {
        let cancelled = cancel_many(kind, 100);
        println!("{kind:?}: {cancelled} of 100 cancelled before their end");
        assert!(cancelled > 0, "{kind:?}: no transfer was caught");
    }
}

#[test]
#[ignore = "minutes; `make asan` runs it"]
fn ten_thousand_cancelled_transfers() {
    let count = 10_000 / KINDS.len();
    for kind in KINDS {
        let cancelled = cancel_many(kind, count);
        println!("{kind:?}: {cancelled} of {count} cancelled before their end");
        assert!(cancelled > count / 10, "{kind:?}: too few were caught");
    }
}
