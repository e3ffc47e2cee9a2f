//! Two ends over pipes in memory: who is let in, who is not, and what comes through.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

use super::*;
use crate::id::{HostId, JobId};

pub(super) const PREAMBLE: [u8; PREAMBLE_BYTES] = [7; PREAMBLE_BYTES];

/// One direction of a socket: holds so many bytes, and gives so many at once.
pub(super) struct Pipe {
    bytes: VecDeque<u8>,
    room: usize,
    at_once: usize,
    /// The writer has closed it.
    closed: bool,
    /// All that ever went through.
    log: Vec<u8>,
}

impl Pipe {
    fn new(room: usize, at_once: usize) -> Self {
        Self {
            bytes: VecDeque::new(),
            room,
            at_once,
            closed: false,
            log: Vec::new(),
        }
    }

    fn wide() -> Self {
        Self::new(1 << 20, 1 << 20)
    }
}

impl Read for Pipe {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = into.len().min(self.at_once).min(self.bytes.len());
        if count == 0 && !self.closed && !into.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for byte in &mut into[..count] {
            *byte = self.bytes.pop_front().expect("counted before");
        }
        Ok(count)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(self.at_once).min(self.room - self.bytes.len());
        if count == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.bytes.extend(&bytes[..count]);
        self.log.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What became of both ends of a handshake.
pub(super) struct Ends {
    pub(super) dialler: Result<Secure, TrustError>,
    pub(super) acceptor: Result<Secure, TrustError>,
    pub(super) up: Pipe,
    pub(super) down: Pipe,
}

/// Drives both to their ends; who fails closes, after its alert.
pub(super) fn shake(dialler: Handshake, acceptor: Handshake, mut up: Pipe, mut down: Pipe) -> Ends {
    let (mut dialler, mut acceptor) = (End::Going(dialler), End::Going(acceptor));
    for _ in 0..100_000 {
        dialler = dialler.step(&mut down, &mut up);
        acceptor = acceptor.step(&mut up, &mut down);
        if let (End::Over(dialler), End::Over(acceptor)) = (&mut dialler, &mut acceptor) {
            let (dialler, acceptor) = (dialler.take(), acceptor.take());
            return Ends {
                dialler: dialler.expect("taken once"),
                acceptor: acceptor.expect("taken once"),
                up,
                down,
            };
        }
    }
    panic!("the handshake hangs");
}

#[expect(clippy::large_enum_variant, reason = "there are two of it")]
enum End {
    Going(Handshake),
    Over(Option<Result<Secure, TrustError>>),
}

impl End {
    fn step(self, from: &mut Pipe, to: &mut Pipe) -> Self {
        let Self::Going(mut handshake) = self else {
            return self;
        };
        let result = handshake
            .write(to)
            .and_then(|()| handshake.read(from))
            .and_then(|()| handshake.write(to));
        if let Err(error) = result {
            handshake.write(to).expect("the pipe is open");
            to.closed = true;
            return Self::Over(Some(Err(error)));
        }
        if handshake.is_done() {
            return Self::Over(Some(Ok(handshake.finish())));
        }
        Self::Going(handshake)
    }
}

pub(super) fn job(number: u8) -> JobId {
    JobId([number; 16])
}

pub(super) fn host(number: u64) -> HostId {
    HostId::new(number).expect("not zero")
}

#[test]
fn two_hosts_of_a_job_meet() {
    let authority = Authority::new(job(1)).unwrap();
    let one = Trust::new(&authority.issue(host(1)).unwrap()).unwrap();
    let two = Trust::new(&authority.issue(host(2)).unwrap()).unwrap();
    let ends = shake(
        one.dial(&PREAMBLE, host(2)).unwrap(),
        two.accept(&PREAMBLE).unwrap(),
        Pipe::wide(),
        Pipe::wide(),
    );
    assert!(!ends.dialler.unwrap().is_plain());
    assert!(!ends.acceptor.unwrap().is_plain());
}

#[test]
fn a_root_joins_a_host_by_a_key() {
    let key = JoinKey::parse(&"0a".repeat(32)).unwrap();
    let door = || {
        Door::new(&DoorConfig {
            key: Some(key.clone()),
            ..DoorConfig::default()
        })
        .unwrap()
    };
    let ends = shake(
        door().dial(&PREAMBLE, "localhost").unwrap(),
        door().accept(&PREAMBLE).unwrap(),
        Pipe::wide(),
        Pipe::wide(),
    );
    assert!(!ends.dialler.unwrap().is_plain());
    assert!(!ends.acceptor.unwrap().is_plain());
}
