use super::*;
use crate::id::MeshId;
use crate::wire::{Cancel, Chain, Content, MessageHeader, OneRun};

fn message(run: &OneRun, call: u64) -> MessageHeader<'_> {
    MessageHeader {
        call,
        mesh: MeshId::new(7).unwrap(),
        deadline_ns: 0,
        flags: 0,
        runs: run.as_runs(),
        endpoint: "step",
        sizes: b"",
        chain: Chain::EMPTY,
    }
}

fn push(session: &mut Session, call: u64, payload: &[u8]) -> Result<u64, SessionError> {
    session.push(
        &message(&OneRun::new(0, 0).unwrap(), call),
        &[Part::Inline(payload)],
    )
}

fn drain(session: &mut Session) -> Vec<u8> {
    let bytes = session.unsent().collect::<Vec<_>>().concat();
    session.sent(bytes.len());
    bytes
}

/// Passes the bytes and returns the calls of the messages that were visited.
fn receive(session: &mut Session, bytes: &[u8]) -> Result<Vec<u64>, ProtocolError> {
    let mut calls = Vec::new();
    let consumed = session.receive(0, bytes, &mut |frame| {
        if let Content::Message(message, _) = frame.content {
            calls.push(message.call);
        }
        ControlFlow::Continue(())
    })?;
    assert_eq!(consumed, bytes.len());
    Ok(calls)
}

fn pair() -> (Session, Session) {
    (
        Session::new(SessionConfig::default()),
        Session::new(SessionConfig::default()),
    )
}

#[test]
fn messages_arrive_and_acknowledgements_free_the_log() {
    let (mut a, mut b) = pair();
    for call in 1..=300 {
        assert_eq!(push(&mut a, call, b"payload"), Ok(call));
    }
    let bytes = drain(&mut a);
    assert_eq!(receive(&mut b, &bytes).unwrap(), (1..=300).collect::<Vec<_>>());
    assert!(b.ack_due());
    b.push_ack();
    assert!(!b.ack_due());
    let bytes = drain(&mut b);
    assert_eq!(bytes.len(), FrameHead::BYTES);
    receive(&mut a, &bytes).unwrap();
    assert_eq!((a.acknowledged(), a.held_bytes()), (300, 0));
    // An acknowledgement frees its own memory once it is written.
    assert_eq!(b.held_bytes(), 0);
}

#[test]
fn a_reply_carries_the_acknowledgement() {
    let (mut a, mut b) = pair();
    push(&mut a, 1, b"x").unwrap();
    let bytes = drain(&mut a);
    receive(&mut b, &bytes).unwrap();
    push(&mut b, 1, b"y").unwrap();
    let bytes = drain(&mut b);
    receive(&mut a, &bytes).unwrap();
    assert_eq!((a.acknowledged(), a.held_bytes()), (1, 0));
}

#[test]
fn large_frames_and_small_ones_keep_their_order() {
    let (mut a, mut b) = pair();
    let large = vec![3; 200_000];
    for call in 1..=9 {
        push(&mut a, call, if call % 3 == 0 { &large } else { b"small" }).unwrap();
    }
    let bytes = drain(&mut a);
    assert_eq!(receive(&mut b, &bytes).unwrap(), (1..=9).collect::<Vec<_>>());
}

#[test]
fn a_full_session_asks_for_an_acknowledgement_and_goes_on() {
    let config = SessionConfig {
        replay_bytes_max: 1_000,
        ..SessionConfig::default()
    };
    let (mut a, mut b) = (Session::new(config), Session::new(config));
    push(&mut a, 1, b"small").unwrap();
    let bytes = drain(&mut a);
    receive(&mut b, &bytes).unwrap();
    assert!(!b.ack_due());
    // Larger than the bound, so it must go alone.
    assert!(matches!(
        push(&mut a, 2, &[0; 5_000]),
        Err(SessionError::Full { limit: 1_000, .. })
    ));
    assert_eq!(a.last_sequence(), 1);
    let bytes = drain(&mut a);
    receive(&mut b, &bytes).unwrap();
    assert!(b.ack_due());
    b.push_ack();
    let bytes = drain(&mut b);
    receive(&mut a, &bytes).unwrap();
    assert_eq!(push(&mut a, 2, &[0; 5_000]), Ok(2));
    assert!(push(&mut a, 3, b"").is_err());
    // What answers and grants always goes.
    assert_eq!(
        a.push(
            &Cancel {
                call: 2,
                rank: Cancel::ALL_RANKS,
                flags: 0
            },
            &[]
        ),
        Ok(3)
    );
}

#[test]
fn unsent_acknowledgements_do_not_pile_up() {
    let config = SessionConfig {
        replay_bytes_max: 1_000,
        ..SessionConfig::default()
    };
    let (mut a, mut b) = (Session::new(config), Session::new(config));
    push(&mut a, 1, b"small").unwrap();
    let bytes = drain(&mut a);
    receive(&mut b, &bytes).unwrap();
    assert!(push(&mut a, 2, &[0; 5_000]).is_err());
    for _ in 0..100 {
        a.push_ack();
    }
    assert_eq!(a.unsent_bytes(), FrameHead::BYTES);
    // The request for an acknowledgement is still in the one that is left.
    let bytes = a.unsent().collect::<Vec<_>>().concat();
    receive(&mut b, &bytes).unwrap();
    assert!(b.ack_due());
    a.sent(1);
    a.push_ack();
    assert_eq!(a.unsent_bytes(), FrameHead::BYTES * 2 - 1);
    a.resume(1).unwrap();
    a.push_ack();
    assert_eq!(a.unsent_bytes(), FrameHead::BYTES);
}

#[test]
fn a_frame_that_is_held_comes_again() {
    let (mut a, mut b) = pair();
    push(&mut a, 1, b"").unwrap();
    push(&mut a, 2, b"").unwrap();
    let bytes = drain(&mut a);
    let mut seen = 0;
    let consumed = b.receive(0, &bytes, &mut |frame| {
        seen += 1;
        if frame.head.sequence == 2 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert_eq!((consumed, seen, b.received()), (Ok(bytes.len() / 2), 2, 1));
    assert_eq!(receive(&mut b, &bytes[bytes.len() / 2..]), Ok(vec![2]));
}

#[test]
fn a_resumed_session_sends_from_the_first_frame_that_is_missing() {
    let (mut a, mut b) = pair();
    for call in 1..=5 {
        push(&mut a, call, b"abc").unwrap();
    }
    let bytes = a.unsent().collect::<Vec<_>>().concat();
    let frame = bytes.len() / 5;
    // Two frames arrive whole; the cut is within the fourth.
    a.sent(frame * 3 + 10);
    receive(&mut b, &bytes[..frame * 2]).unwrap();
    a.resume(b.received()).unwrap();
    assert_eq!(a.unsent_bytes(), frame * 3);
    let bytes = drain(&mut a);
    assert_eq!(receive(&mut b, &bytes), Ok(vec![3, 4, 5]));
    a.resume(5).unwrap();
    assert_eq!((a.held_bytes(), a.has_unsent()), (0, false));
    assert_eq!(
        a.resume(4),
        Err(ProtocolError::ResumeBehind {
            received: 4,
            acknowledged: 5
        })
    );
    assert_eq!(
        a.resume(6),
        Err(ProtocolError::AcknowledgedUnsent {
            acknowledged: 6,
            last: 5
        })
    );
}

#[test]
fn doubles_are_dropped_and_gaps_are_errors() {
    let (mut a, mut b) = pair();
    for call in 1..=3 {
        push(&mut a, call, b"").unwrap();
    }
    let bytes = drain(&mut a);
    let frame = bytes.len() / 3;
    receive(&mut b, &bytes[..frame]).unwrap();
    assert_eq!(receive(&mut b, &bytes[..frame]), Ok(vec![]));
    assert!(b.ack_due() && b.doubles() == 1);
    assert_eq!(
        receive(&mut b, &bytes[frame * 2..]),
        Err(ProtocolError::Gap { expected: 2, got: 3 })
    );
}

#[test]
fn a_peer_cannot_acknowledge_what_was_not_sent() {
    let (mut a, mut b) = pair();
    push(&mut b, 1, b"").unwrap();
    let bytes = drain(&mut b);
    receive(&mut a, &bytes).unwrap();
    a.push_ack();
    let bytes = drain(&mut a);
    let mut stranger = Session::new(SessionConfig::default());
    let error = ProtocolError::AcknowledgedUnsent {
        acknowledged: 1,
        last: 0,
    };
    assert_eq!(receive(&mut stranger, &bytes), Err(error));
}

#[test]
fn undelivered_frames_are_those_above_what_was_acknowledged() {
    let (mut a, mut b) = pair();
    push(&mut a, 1, b"").unwrap();
    let bytes = drain(&mut a);
    receive(&mut b, &bytes).unwrap();
    b.push_ack();
    for call in 2..=4 {
        push(&mut a, call, b"").unwrap();
    }
    let bytes = drain(&mut b);
    receive(&mut a, &bytes).unwrap();
    let undelivered = |above| {
        let mut sequences = Vec::new();
        a.undelivered(above, |frame| sequences.push(frame.head.sequence));
        sequences
    };
    assert_eq!(undelivered(0), [2, 3, 4]);
    assert_eq!(undelivered(3), [4]);
}

#[test]
fn an_acknowledgement_waits_for_its_time() {
    let config = SessionConfig {
        ack_delay_ns: Some(50),
        ..SessionConfig::default()
    };
    let (mut a, mut b) = (Session::new(config), Session::new(config));
    push(&mut a, 1, b"").unwrap();
    let bytes = drain(&mut a);
    assert_eq!(b.next_wakeup(), None);
    b.receive(100, &bytes, &mut |_| ControlFlow::Continue(()))
        .unwrap();
    assert_eq!(b.next_wakeup(), Some(150));
    assert!(!b.handle_timeout(149));
    assert!(b.handle_timeout(150));
    assert_eq!((b.next_wakeup(), b.unsent_bytes()), (None, FrameHead::BYTES));
}

#[test]
fn what_came_before_an_error_counts() {
    let (mut a, mut b) = pair();
    push(&mut a, 1, b"").unwrap();
    let bytes = drain(&mut a);
    receive(&mut b, &bytes).unwrap();
    push(&mut b, 1, b"").unwrap();
    let mut bytes = drain(&mut b);
    bytes.extend([0xff; FrameHead::BYTES]);
    assert!(matches!(
        receive(&mut a, &bytes),
        Err(ProtocolError::FrameTooLarge { .. })
    ));
    assert_eq!((a.received(), a.acknowledged(), a.held_bytes()), (1, 1, 0));
}
