//! Two ends over pipes in memory: who is let in (`pairs`, `pki`), what strangers get (`strangers`), what a proof is worth
//! (`proofs`), and what comes through afterwards (`bulk`).

mod bulk;
mod pairs;
mod pipe;
mod pki;
mod proofs;
mod strangers;

use std::io::IoSlice;

use self::pipe::{Harm, Pipe};
use super::*;
use crate::id::{HostId, JobId};

const PREAMBLE: [u8; PREAMBLE_BYTES] = [7; PREAMBLE_BYTES];

/// What became of both ends of a handshake.
struct Ends {
    dialler: Result<Secure, TrustError>,
    acceptor: Result<Secure, TrustError>,
    up: Pipe,
    down: Pipe,
}

impl Ends {
    fn both(self) -> (Secure, Secure) {
        (self.dialler.unwrap(), self.acceptor.unwrap())
    }

    fn errors(self) -> (TrustError, TrustError) {
        (self.dialler.unwrap_err(), self.acceptor.unwrap_err())
    }
}

/// Drives both to their ends; who fails closes, after its alert. When neither gets on (somebody waits for bytes that were
/// announced and never come) the connection ends, as it does at its deadline.
fn shake_over(dialler: Handshake, acceptor: Handshake, mut up: Pipe, mut down: Pipe) -> Ends {
    let (mut dialler, mut acceptor) = (End::Going(Box::new(dialler)), End::Going(Box::new(acceptor)));
    let mut moved = (usize::MAX, 0, 0, 0);
    loop {
        dialler = dialler.step(&mut down, &mut up);
        acceptor = acceptor.step(&mut up, &mut down);
        match (dialler, acceptor) {
            (End::Over(dialler), End::Over(acceptor)) => {
                return Ends {
                    dialler: *dialler,
                    acceptor: *acceptor,
                    up,
                    down,
                };
            }
            ends => (dialler, acceptor) = ends,
        }
        let now = (up.log.len(), up.bytes.len(), down.log.len(), down.bytes.len());
        if now == moved {
            assert!(
                !(up.closed && down.closed),
                "somebody goes on with what is closed"
            );
            (up.closed, down.closed) = (true, true);
        }
        moved = now;
    }
}

fn shake(dialler: Handshake, acceptor: Handshake) -> Ends {
    shake_over(dialler, acceptor, Pipe::wide(), Pipe::wide())
}

enum End {
    Going(Box<Handshake>),
    Over(Box<Result<Secure, TrustError>>),
}

impl End {
    fn step(self, from: &mut Pipe, to: &mut Pipe) -> Self {
        let Self::Going(mut handshake) = self else {
            return self;
        };
        match step(&mut handshake, from, to) {
            Err(error) => {
                handshake.write(to).expect("the pipe is open");
                to.closed = true;
                assert!(!handshake.is_done(), "who has failed is never done");
                Self::Over(Box::new(Err(error)))
            }
            Ok(()) if handshake.is_done() => Self::Over(Box::new(Ok(handshake.finish()))),
            Ok(()) => Self::Going(handshake),
        }
    }
}

fn step(handshake: &mut Handshake, from: &mut Pipe, to: &mut Pipe) -> Result<(), TrustError> {
    handshake.write(to)?;
    handshake.read(from)?;
    handshake.write(to)
}

fn job(number: u8) -> JobId {
    JobId([number; 16])
}

fn host(number: u64) -> HostId {
    HostId::new(number).expect("not zero")
}

fn key(digit: char) -> JoinKey {
    JoinKey::parse(&digit.to_string().repeat(64)).unwrap()
}

fn door(key: Option<JoinKey>, plaintext: bool) -> Door {
    Door::new(&DoorConfig {
        key,
        plaintext,
        pki: None,
    })
    .unwrap()
}

/// Two hosts, 1 and 2, of one job.
fn hosts(number: u8, plaintext: bool) -> [Trust; 2] {
    let authority = Authority::new(job(number)).unwrap();
    [host(1), host(2)].map(|host| {
        let credentials = Credentials {
            plaintext,
            ..authority.issue(host).unwrap()
        };
        Trust::new(&credentials).unwrap()
    })
}

/// A connection of each kind, both ends.
fn both_ends(kind: usize) -> (Handshake, Handshake) {
    let plaintext = kind % 2 == 1;
    if kind < 2 {
        let [one, two] = hosts(1, plaintext);
        (
            one.dial(&PREAMBLE, host(2)).unwrap(),
            two.accept(&PREAMBLE).unwrap(),
        )
    } else {
        let door = door(Some(key('a')), plaintext);
        (
            door.dial(&PREAMBLE, "localhost").unwrap(),
            door.accept(&PREAMBLE).unwrap(),
        )
    }
}

/// How many there are of [`both_ends`].
const KINDS: usize = 4;

/// Numbers that look random, and are the same each time.
struct Numbers(pub(super) u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % bound
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count)
            .map(|_| u8::try_from(self.below(256)).expect("below 256"))
            .collect()
    }
}

/// Says something in both directions, which arrives.
fn converse(ends: Ends) {
    let (mut dialler, mut acceptor) = ends.both();
    tell(&mut dialler, &mut acceptor);
    tell(&mut acceptor, &mut dialler);
}

fn tell(from: &mut Secure, to: &mut Secure) {
    let (mut pipe, mut said) = (Pipe::wide(), [0; 8]);
    assert_eq!(from.write(&mut pipe, &[IoSlice::new(b"well met")]).unwrap(), 8);
    assert_eq!(to.read(&mut pipe, &mut said).unwrap(), 8);
    assert_eq!(said, *b"well met");
}

#[test]
fn both_kinds_meet_with_and_without_tls() {
    for kind in 0..KINDS {
        let (dialler, acceptor) = both_ends(kind);
        let (dialler, acceptor) = shake(dialler, acceptor).both();
        assert_eq!(
            (dialler.is_plain(), acceptor.is_plain()),
            (kind % 2 == 1, kind % 2 == 1)
        );
    }
}

#[test]
fn a_handshake_goes_through_a_pipe_of_one_byte() {
    for kind in 0..KINDS {
        let (dialler, acceptor) = both_ends(kind);
        shake_over(dialler, acceptor, Pipe::new(1, 1), Pipe::new(1, 1)).both();
    }
}

#[test]
fn credentials_travel_and_keep_their_secrets_out_of_logs() {
    let credentials = Authority::new(job(1)).unwrap().issue(host(1)).unwrap();
    let bytes = postcard::to_stdvec(&credentials).unwrap();
    let again: Credentials = postcard::from_bytes(&bytes).unwrap();
    assert!(again == credentials);
    let trust = Trust::new(&again).unwrap();
    let text = format!(
        "{credentials:?} {trust:?} {:?} {:?}",
        key('a'),
        door(Some(key('a')), false)
    );
    assert!(!text.contains("secret") && !text.contains("aaaa"), "{text}");
}

#[test]
fn a_key_is_64_digits_and_is_never_repeated() {
    let text = " 00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF\r\n";
    let lower = text.to_lowercase();
    assert!(JoinKey::parse(text).unwrap() == JoinKey::parse(&lower).unwrap());
    for wrong in [
        "",
        "00",
        &"0g".repeat(32),
        &"0".repeat(65),
        &"é".repeat(32),
        &"0 ".repeat(32),
    ] {
        let error = JoinKey::parse(wrong).unwrap_err();
        assert!(wrong.len() < 2 || !error.to_string().contains(wrong), "{error}");
    }
}

#[test]
#[should_panic(expected = "before it is done")]
fn a_handshake_that_is_not_done_cannot_be_finished() {
    both_ends(0).0.finish();
}
