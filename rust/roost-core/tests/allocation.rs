//! What a session takes from the allocator: next to nothing for the usual message, and never what a peer has merely
//! announced.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ops::ControlFlow;

use roost_core::id::MeshId;
use roost_core::session::{Session, SessionConfig};
use roost_core::wire::{Chain, Content, FrameHead, MessageHeader, OneRun, Part, ReplyHeader, ReplyStatus};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counting what each thread asks of it.
struct Counting;

// SAFETY: every call goes on to `System` with the arguments it came with; the counters are plain cells of the calling
// thread, which need no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        BYTES.set(BYTES.get() + layout.size());
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System` with this layout, through `alloc` above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations and bytes that `work` asks for.
fn count(work: impl FnOnce()) -> (u64, usize) {
    let before = (ALLOCATIONS.get(), BYTES.get());
    work();
    (ALLOCATIONS.get() - before.0, BYTES.get() - before.1)
}

/// One call and its answer between two ends, over a buffer that is used again.
fn round_trip(caller: &mut Session, callee: &mut Session, buffer: &mut Vec<u8>) {
    let run = OneRun::new(0, 0).expect("a slot");
    let message = MessageHeader {
        call: 1,
        mesh: MeshId::new(1).expect("not zero"),
        deadline_ns: 0,
        flags: 0,
        runs: run.as_runs(),
        endpoint: "step",
        sizes: b"",
        chain: Chain::EMPTY,
    };
    caller
        .push(&message, &[Part::Inline(&[1; 100])])
        .expect("there is room");
    carry(caller, callee, buffer);
    let reply = ReplyHeader {
        call: 1,
        rank: 0,
        status: ReplyStatus::Value,
        flags: 0,
    };
    callee
        .push(&reply, &[Part::Inline(&[2; 100])])
        .expect("there is room");
    carry(callee, caller, buffer);
}

fn carry(from: &mut Session, to: &mut Session, buffer: &mut Vec<u8>) {
    buffer.clear();
    from.unsent().for_each(|piece| buffer.extend_from_slice(piece));
    from.sent(buffer.len());
    let mut payload = 0;
    let consumed = to.receive(0, buffer, &mut |frame| {
        if let Content::Message(_, parts) | Content::Reply(_, parts) = frame.content {
            payload += parts.iter().map(|part| part.length()).sum::<u64>();
        }
        ControlFlow::Continue(())
    });
    assert_eq!((consumed, payload), (Ok(buffer.len()), 100));
}

#[test]
fn a_call_and_its_answer_allocate_nothing() {
    let (mut caller, mut callee) = (
        Session::new(SessionConfig::default()),
        Session::new(SessionConfig::default()),
    );
    let mut buffer = Vec::with_capacity(1_000);
    round_trip(&mut caller, &mut callee, &mut buffer);
    let rounds = count(|| (0..1_000).for_each(|_| round_trip(&mut caller, &mut callee, &mut buffer)));
    assert_eq!(rounds, (0, 0));
}

#[test]
fn what_is_announced_takes_no_memory() {
    let mut session = Session::new(SessionConfig::default());
    let mut head = [0; FrameHead::BYTES];
    head[..4].copy_from_slice(&(64_u32 << 20).to_le_bytes());
    head[4] = 1;
    head[8] = 1;
    let taken = count(|| {
        let consumed = session.receive(0, &head, &mut |_| ControlFlow::Continue(()));
        assert_eq!(consumed, Ok(0));
    });
    assert_eq!(taken, (0, 0));
}

#[test]
fn an_idle_session_holds_little() {
    let (allocations, bytes) = count(|| {
        let (mut caller, mut callee) = (
            Session::new(SessionConfig::default()),
            Session::new(SessionConfig::default()),
        );
        round_trip(&mut caller, &mut callee, &mut Vec::new());
    });
    assert!(
        allocations < 20 && bytes < 16 << 10,
        "{allocations} allocations of {bytes} bytes for two ends"
    );
}
