//! What strangers send, and what happens to a handshake on a bad line: refused, with nothing told and nothing held.

use super::super::*;
use super::{Ends, Harm, KINDS, Numbers, Pipe, both_ends, converse, shake, shake_over, step};
use crate::limits::HANDSHAKE_BYTES_MAX;

/// What the accepting side says to these bytes, and what it sends.
fn accept(kind: usize, bytes: &[u8]) -> (TrustError, Vec<u8>) {
    let (_, mut acceptor) = both_ends(kind);
    let (mut from, mut to) = (Pipe::of(bytes), Pipe::wide());
    let error = loop {
        match step(&mut acceptor, &mut from, &mut to) {
            Ok(()) => assert!(acceptor.wants_read() && !acceptor.is_done()),
            Err(error) => break error,
        }
    };
    acceptor.write(&mut to).unwrap();
    assert!(!acceptor.wants_read() && !acceptor.wants_write() && !acceptor.is_done());
    assert!(matches!(acceptor.read(&mut from), Err(TrustError::Over)));
    (error, to.log)
}

/// Nothing but one alert, or in clear nothing but the opening.
fn assert_tells_nothing(kind: usize, sent: &[u8]) {
    if kind % 2 == 1 {
        assert!(sent.starts_with(b"ROOSTnon") && sent.len() == 40);
    } else {
        assert!(
            sent.is_empty() || (sent.starts_with(&[0x15, 3]) && sent.len() == 7),
            "{sent:02x?}"
        );
    }
}

#[test]
fn http_is_refused() {
    for kind in 0..KINDS {
        let (error, sent) = accept(kind, b"GET / HTTP/1.1\r\nHost: trainer-7:7000\r\n\r\n");
        assert_tells_nothing(kind, &sent);
        match error {
            TrustError::NotRoost { first } => assert_eq!(first, *b"GET / HT"),
            TrustError::NotTls => assert_eq!(kind % 2, 0),
            error => panic!("{error:?}"),
        }
    }
}

#[test]
fn random_bytes_are_refused() {
    let mut numbers = Numbers(1);
    for round in 0..2_000 {
        let length = numbers.below(600);
        let mut bytes = numbers.bytes(length);
        // Some that begin as TLS does, so that more of it is read.
        if round % 2 == 0 && length > 16 {
            bytes[..3].copy_from_slice(&[0x16, 3, 1]);
            bytes[3] = 0;
            bytes[4..6].copy_from_slice(&[200, 1]);
        }
        let (_, sent) = accept(round % KINDS, &bytes);
        assert_tells_nothing(round % KINDS, &sent);
    }
}

#[test]
fn huge_announcements_are_refused() {
    let records = [
        [0x16, 3, 1, 0xff, 0xff, 1, 0, 0xff, 0xff].as_slice(),
        &[0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff],
        &[0x17, 3, 3, 0xff, 0xff],
    ];
    for record in records {
        for kind in [0, 2] {
            let (error, sent) = accept(kind, record);
            assert!(
                matches!(error, TrustError::Tls(_) | TrustError::Closed { .. }),
                "{error:?}"
            );
            assert_tells_nothing(kind, &sent);
        }
    }
}

/// A hello of 60,000 bytes, in full records: as long as TLS allows it to go on, and longer than roost does.
#[test]
fn an_endless_hello_is_refused() {
    let mut bytes = Vec::new();
    for number in 0..4 {
        bytes.extend([0x16, 3, 1, 0x3a, 0x98]);
        let from = bytes.len();
        bytes.resize(from + 15_000, 0);
        if number == 0 {
            bytes[from..from + 4].copy_from_slice(&[1, 0, 0xea, 0x60 - 4]);
        }
    }
    let (error, sent) = accept(0, &bytes);
    assert!(matches!(error, TrustError::TooMuch), "{error:?}");
    assert!(sent.is_empty());
    assert!(bytes.len() > HANDSHAKE_BYTES_MAX);
}

/// Both ends of a connection with a fault at one byte of one direction.
fn with_fault(kind: usize, upwards: bool, harm: Harm) -> Ends {
    let (dialler, acceptor) = both_ends(kind);
    let (bad, good) = (Pipe::harmful(harm), Pipe::wide());
    let (up, down) = if upwards { (bad, good) } else { (good, bad) };
    shake_over(dialler, acceptor, up, down)
}

fn lengths(kind: usize) -> [(bool, usize); 2] {
    let (dialler, acceptor) = both_ends(kind);
    let ends = shake(dialler, acceptor);
    [(true, ends.up.log.len()), (false, ends.down.log.len())]
}

/// Whether this byte of a TLS stream is the version of a record, which means nothing and is not protected.
fn is_version(stream: &[u8], place: usize) -> bool {
    let mut record = 0;
    while record + 5 <= place {
        let length = u16::from_be_bytes([stream[record + 3], stream[record + 4]]);
        record += 5 + usize::from(length);
    }
    matches!(place.checked_sub(record), Some(1 | 2))
}

#[test]
fn a_byte_changed_anywhere_is_refused() {
    for kind in 0..KINDS {
        for (upwards, length) in lengths(kind) {
            for place in 0..length {
                let ends = with_fault(kind, upwards, Harm::Flip(place));
                let sent = if upwards { &ends.up.log } else { &ends.down.log };
                if place >= sent.len() {
                    // Certificates differ in length by some bytes, now and then.
                    converse(ends);
                } else if ends.dialler.is_ok() && ends.acceptor.is_ok() {
                    assert!(
                        kind % 2 == 0 && is_version(sent, place),
                        "{kind} {upwards} {place}"
                    );
                    converse(ends);
                } else {
                    // The acceptor is done when it has sent the last proof; its peer is not.
                    assert!(ends.dialler.is_err(), "{kind} {upwards} {place}");
                }
            }
        }
    }
}

#[test]
fn a_connection_cut_anywhere_ends_both() {
    for kind in 0..KINDS {
        for (upwards, length) in lengths(kind) {
            // Certificates differ in length by some bytes, now and then.
            for place in 0..length.saturating_sub(if kind % 2 == 1 { 0 } else { 8 }) {
                let ends = with_fault(kind, upwards, Harm::Cut(place));
                assert!(ends.dialler.is_err(), "{kind} {upwards} {place}");
                assert!(!upwards || ends.acceptor.is_err(), "{kind} {upwards} {place}");
            }
        }
    }
}

/// A peer that dies before its proof has refused nobody: calling it again may help.
#[test]
fn a_peer_that_goes_away_is_no_refusal() {
    for kind in [0, 2] {
        let (dialler, acceptor) = both_ends(kind);
        let down = lengths(kind)[1].1;
        let ends = shake_over(
            dialler,
            acceptor,
            Pipe::wide(),
            Pipe::harmful(Harm::Cut(down - 20)),
        );
        let error = ends.dialler.unwrap_err();
        assert!(
            matches!(error, TrustError::Closed { .. }) && !error.is_authentication(),
            "{error:?}"
        );
    }
}
