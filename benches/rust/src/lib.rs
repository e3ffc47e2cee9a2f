//! What the benches and the instruction counter share: a caller and a callee, each with its end of a session.

#![allow(
    clippy::missing_panics_doc,
    reason = "a bench whose two ends disagree must end"
)]

use std::ops::ControlFlow;

use roost_core::id::MeshId;
use roost_core::session::{Session, SessionConfig};
use roost_core::wire::{Chain, Content, MessageHeader, OneRun, Part, ReplyHeader, ReplyStatus};

/// Payloads that stand for a small call, a small array, and a large one that still travels inside its frame.
pub const PAYLOADS: [(&str, usize); 4] = [
    ("16 B", 16),
    ("1 KiB", 1 << 10),
    ("64 KiB", 1 << 16),
    ("1 MiB", 1 << 20),
];

/// A session with nothing sent or received yet.
#[must_use]
pub fn new_session() -> Session {
    Session::new(SessionConfig::default())
}

/// The one actor that every message goes to.
#[must_use]
pub fn target() -> OneRun {
    OneRun::new(0, 0).expect("slot 0 can be named")
}

/// The header of a usual call.
#[must_use]
pub fn call_header(run: &OneRun, call: u64) -> MessageHeader<'_> {
    MessageHeader {
        call,
        mesh: MeshId::new(7).expect("7 is not zero"),
        deadline_ns: 0,
        flags: 0,
        runs: run.as_runs(),
        endpoint: "step",
        sizes: b"",
        chain: Chain::EMPTY,
    }
}

/// Puts a call at the end of what the session has to send.
pub fn push_call(session: &mut Session, call: u64, payload: &[u8]) {
    session
        .push(&call_header(&target(), call), &[Part::Inline(payload)])
        .expect("the callee acknowledges with each answer");
}

fn push_reply(session: &mut Session, call: u64, payload: &[u8]) {
    let header = ReplyHeader {
        call,
        rank: 0,
        status: ReplyStatus::Value,
        flags: 0,
    };
    session
        .push(&header, &[Part::Inline(payload)])
        .expect("the caller acknowledges with each call");
}

/// Copies all unsent bytes to the end of `wire`, as a socket would.
pub fn write_to(session: &mut Session, wire: &mut Vec<u8>) {
    let count = session.unsent_bytes();
    session.unsent().for_each(|piece| wire.extend_from_slice(piece));
    session.sent(count);
}

/// What the callee has read and not yet taken, with the calls that it must answer.
#[derive(Debug, Default)]
pub struct Callee {
    calls: Vec<(u64, usize, usize)>,
}

impl Callee {
    /// Takes all whole frames and pushes an answer to each call with the payload that came. Returns the bytes taken.
    pub fn answer(&mut self, session: &mut Session, bytes: &[u8]) -> usize {
        let base = bytes.as_ptr().addr();
        let consumed = session
            .receive(0, bytes, &mut |frame| {
                if let Content::Message(message, parts) = frame.content
                    && let Some(payload) = parts.single_inline()
                {
                    // The visitor's slice ends with the visit; the bytes that it lies in do not.
                    self.calls
                        .push((message.call, payload.as_ptr().addr() - base, payload.len()));
                }
                ControlFlow::Continue(())
            })
            .expect("the caller keeps the protocol");
        for (call, at, length) in self.calls.drain(..) {
            push_reply(session, call, &bytes[at..at + length]);
        }
        consumed
    }
}

/// Takes all whole frames; returns how many answers there were and the bytes taken.
pub fn take_replies(session: &mut Session, bytes: &[u8]) -> (usize, usize) {
    let mut replies = 0;
    let consumed = session
        .receive(0, bytes, &mut |frame| {
            replies += usize::from(matches!(frame.content, Content::Reply(..)));
            ControlFlow::Continue(())
        })
        .expect("the callee keeps the protocol");
    (replies, consumed)
}

/// Caller and callee in one thread, with two buffers for wires.
#[derive(Debug)]
pub struct MemoryPair {
    caller: Session,
    callee: Session,
    answering: Callee,
    there: Vec<u8>,
    back: Vec<u8>,
    calls: u64,
}

impl Default for MemoryPair {
    fn default() -> Self {
        Self {
            caller: new_session(),
            callee: new_session(),
            answering: Callee::default(),
            there: Vec::new(),
            back: Vec::new(),
            calls: 0,
        }
    }
}

impl MemoryPair {
    /// Sends so many calls together, answers them together, and takes the answers.
    pub fn round_trip(&mut self, window: usize, payload: &[u8]) {
        for _ in 0..window {
            self.calls += 1;
            push_call(&mut self.caller, self.calls, payload);
        }
        self.there.clear();
        write_to(&mut self.caller, &mut self.there);
        self.answering.answer(&mut self.callee, &self.there);
        self.back.clear();
        write_to(&mut self.callee, &mut self.back);
        let (replies, _) = take_replies(&mut self.caller, &self.back);
        assert_eq!(replies, window, "every call is answered");
    }
}
