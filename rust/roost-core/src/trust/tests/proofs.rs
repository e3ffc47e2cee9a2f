//! Proofs: their bytes, and that none can be used twice, given back, or carried on to somebody else.

use std::io::{Read, Write};

use ring::hmac;
use rustls::pki_types::{PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConnection, Connection, ServerConnection};

use super::super::authority::throw_away;
use super::super::proof::{Kind, Opening, Side, Terms};
use super::super::tls::{Identity, open_client, open_server};
use super::super::*;
use super::{PREAMBLE, Pipe, both_ends, door, host, hosts, key, shake, step};
use crate::id::HostId;

fn counting<const N: usize>(from: u8) -> [u8; N] {
    std::array::from_fn(|at| from + u8::try_from(at).expect("below 64"))
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

/// The vectors of `docs/wire.md`.
#[test]
fn proofs_are_those_of_the_page() {
    let terms = |kind, side, called| Terms {
        kind,
        side,
        key: hmac::Key::new(hmac::HMAC_SHA256, &counting::<32>(0)),
        preamble: counting(0x80),
        called,
    };
    let (dialler, acceptor) = (Opening::with(counting(0x20)), Opening::with(counting(0x40)));
    let called = HostId::new(0x0102_0304_0506_0708);
    let page = include_str!("../../../../../docs/wire.md");
    for (kind, called, binding) in [
        (Kind::Join, None, counting(0x60)),
        (Kind::Join, None, [0; 32]),
        (Kind::Lane, called, counting(0x60)),
    ] {
        let dials = terms(kind, Side::Dials, called);
        let accepts = terms(kind, Side::Accepts, called);
        let first = dials.prove(dialler, acceptor, &binding);
        let second = accepts.prove(acceptor, dialler, &binding);
        assert!(accepts.verify(&first, acceptor, dialler, &binding));
        assert!(dials.verify(&second, dialler, acceptor, &binding));
        assert!(!dials.verify(&first, dialler, acceptor, &binding));
        assert!(!accepts.verify(&second, acceptor, dialler, &binding));
        assert!(!accepts.verify(&first[..31], acceptor, dialler, &binding));
        for proof in [first, second] {
            assert!(page.contains(&hex(&proof)), "{kind:?}: {}", hex(&proof));
        }
    }
    assert!(page.contains("`52 4f 4f 53 54 6e 6f 6e`") && Opening::TAG == *b"ROOSTnon");
}

#[test]
fn a_replayed_handshake_is_refused() {
    for plaintext in [false, true] {
        let [one, two] = hosts(1, plaintext);
        let door = door(Some(key('a')), plaintext);
        let begin: [&dyn Fn() -> (Handshake, Handshake); 2] = [
            &|| {
                (
                    one.dial(&PREAMBLE, host(2)).unwrap(),
                    two.accept(&PREAMBLE).unwrap(),
                )
            },
            &|| {
                (
                    door.dial(&PREAMBLE, "localhost").unwrap(),
                    door.accept(&PREAMBLE).unwrap(),
                )
            },
        ];
        for begin in begin {
            let (dialler, acceptor) = begin();
            let ends = shake(dialler, acceptor);
            assert!(ends.dialler.is_ok() && ends.acceptor.is_ok());
            let (dialler, acceptor) = begin();
            for (mut side, log) in [(acceptor, &ends.up.log), (dialler, &ends.down.log)] {
                let (mut from, mut to) = (Pipe::of(log), Pipe::wide());
                let error = step(&mut side, &mut from, &mut to).unwrap_err();
                assert!(
                    matches!(error, TrustError::OtherKey | TrustError::Tls(_)),
                    "{error:?}"
                );
            }
        }
    }
}

/// Whoever gets back what it says does not take it for a peer that knows the key.
#[test]
fn a_reflected_handshake_is_refused() {
    for kind in [1, 3] {
        let (dialler, acceptor) = both_ends(kind);
        for (mut side, shows_first) in [(dialler, true), (acceptor, false)] {
            let (mut out, mut back) = (Pipe::wide(), Pipe::wide());
            let error = loop {
                if let Err(error) = step(&mut side, &mut back, &mut out) {
                    break error;
                }
                let mut said = vec![0; 1 << 10];
                match out.read(&mut said) {
                    Ok(count) => back.write_all(&said[..count]).unwrap(),
                    Err(_) => back.closed = true,
                }
            };
            if shows_first {
                assert!(matches!(error, TrustError::OtherKey), "{error:?}");
            } else {
                assert!(matches!(error, TrustError::Closed { .. }), "{error:?}");
            }
        }
    }
}

/// Two that dial each other, or two that accept, hear proofs of the wrong side.
#[test]
fn two_of_the_same_side_do_not_meet() {
    for kind in [1, 3] {
        let ((first, _), (second, _)) = (both_ends(kind), both_ends(kind));
        let ends = shake(first, second);
        assert!(ends.dialler.is_err() && ends.acceptor.is_err());
        let ((_, first), (_, second)) = (both_ends(kind), both_ends(kind));
        let ends = shake(first, second);
        assert!(ends.dialler.is_err() && ends.acceptor.is_err());
    }
}

/// Somebody in the middle, with a TLS session of its own to each side.
struct Middle {
    towards_dialler: Connection,
    towards_acceptor: Connection,
}

impl Middle {
    fn new() -> Self {
        let (certificate, key) = throw_away().unwrap();
        let identity = Identity {
            chain: vec![certificate.into()],
            key: PrivatePkcs8KeyDer::from(key).into(),
        };
        let alpn = Kind::Join.alpn();
        let server = open_server(identity, alpn).unwrap();
        let name = ServerName::try_from("roost").unwrap();
        Self {
            towards_dialler: ServerConnection::new(server).unwrap().into(),
            towards_acceptor: ClientConnection::new(open_client(alpn).unwrap(), name)
                .unwrap()
                .into(),
        }
    }

    /// Carries everything on, and says how much of it it has read in clear.
    fn carry(&mut self, dialler: (&mut Pipe, &mut Pipe), acceptor: (&mut Pipe, &mut Pipe)) -> usize {
        for (tls, pipes) in [
            (&mut self.towards_dialler, dialler),
            (&mut self.towards_acceptor, acceptor),
        ] {
            let _ = tls.read_tls(pipes.0);
            let _ = tls.process_new_packets();
            while tls.wants_write() {
                tls.write_tls(pipes.1).unwrap();
            }
        }
        let (one, other) = (&mut self.towards_dialler, &mut self.towards_acceptor);
        tell(one, other) + tell(other, one)
    }
}

fn tell(from: &mut Connection, to: &mut Connection) -> usize {
    let mut said = [0; 1 << 10];
    let count = from.reader().read(&mut said).unwrap_or(0);
    to.writer().write_all(&said[..count]).unwrap();
    count
}

/// The proof of the root is of no use to whoever has answered in the host's place: it holds another TLS session.
#[test]
fn who_sits_in_the_middle_cannot_carry_proofs_on() {
    let door = door(Some(key('a')), false);
    let (mut dialler, mut acceptor) = (
        door.dial(&PREAMBLE, "localhost").unwrap(),
        door.accept(&PREAMBLE).unwrap(),
    );
    let (mut a, mut b, mut c, mut d) = (Pipe::wide(), Pipe::wide(), Pipe::wide(), Pipe::wide());
    let (mut middle, mut read) = (Middle::new(), 0);
    let error = loop {
        assert!(!dialler.is_done() && !acceptor.is_done());
        step(&mut dialler, &mut b, &mut a).unwrap();
        read += middle.carry((&mut a, &mut b), (&mut d, &mut c));
        if let Err(error) = step(&mut acceptor, &mut c, &mut d) {
            break error;
        }
        read += middle.carry((&mut a, &mut b), (&mut d, &mut c));
    };
    assert!(matches!(error, TrustError::OtherKey), "{error:?}");
    assert_eq!(read, 40 + 40 + 32, "both openings and one proof");
}
