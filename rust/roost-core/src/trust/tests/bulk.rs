//! What comes through after the handshake: everything, in order, at any speed, with little held.

use std::io::{self, IoSlice, Read, Write};

use super::super::*;
use super::{Harm, KINDS, Numbers, Pipe, both_ends, shake};
use crate::limits::SECURE_UNSENT_BYTES_MAX;

fn pair(kind: usize) -> (Secure, Secure) {
    let (dialler, acceptor) = both_ends(kind);
    shake(dialler, acceptor).both()
}

fn would_block<T: std::fmt::Debug>(result: io::Result<T>) {
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

/// One end that has all of `sends` to say, in pieces, and hears something else.
struct Talk {
    secure: Secure,
    sends: Vec<u8>,
    sent: usize,
    heard: Vec<u8>,
    /// How often it takes new keys. TLS allows a peer to do nothing but that only some times.
    refreshes: usize,
}

impl Talk {
    fn new(secure: Secure, sends: Vec<u8>) -> Self {
        Self {
            secure,
            sends,
            sent: 0,
            heard: Vec::new(),
            refreshes: 5,
        }
    }

    fn turn(&mut self, from: &mut Pipe, to: &mut Pipe, numbers: &mut Numbers) {
        let rest = &self.sends[self.sent..];
        let rest = &rest[..rest.len().min(1 + numbers.below(100_000))];
        let (first, second) = rest.split_at(numbers.below(rest.len() + 1));
        if rest.is_empty() {
            self.secure.flush(to).unwrap();
        } else {
            match self
                .secure
                .write(to, &[IoSlice::new(first), IoSlice::new(second)])
            {
                Ok(count) => self.sent += count,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        if self.refreshes > 0 && numbers.below(50) == 0 {
            self.refreshes -= 1;
            self.secure.refresh_keys();
        }
        let mut buffer = vec![0; 1 + numbers.below(50_000)];
        match self.secure.read(from, &mut buffer) {
            Ok(count) => {
                assert!(count > 0);
                self.heard.extend_from_slice(&buffer[..count]);
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                assert!(!self.secure.has_buffered());
            }
        }
    }
}

#[test]
fn bulk_goes_both_ways_through_small_pipes() {
    for kind in 0..KINDS {
        for (room, at_once, length) in [
            (1, 1, 3_000),
            (7, 3, 100_000),
            (5_000, 2_000, 1 << 20),
            (1 << 20, 1 << 20, 4 << 20),
        ] {
            let mut numbers = Numbers(7);
            let (one, two) = pair(kind);
            let (mut up, mut down) = (Pipe::new(room, at_once), Pipe::new(room, at_once));
            let mut one = Talk::new(one, numbers.bytes(length));
            let mut two = Talk::new(two, numbers.bytes(length));
            while one.heard.len() < length || two.heard.len() < length {
                one.turn(&mut down, &mut up, &mut numbers);
                two.turn(&mut up, &mut down, &mut numbers);
            }
            assert!(one.heard == two.sends && two.heard == one.sends);
        }
    }
}

#[test]
fn a_full_socket_makes_the_writer_wait() {
    let (mut one, mut two) = pair(0);
    let mut up = Pipe::new(1_000, 1_000);
    let block = vec![1; 1 << 20];
    let taken = one.write(&mut up, &[IoSlice::new(&block)]).unwrap();
    assert!(taken <= SECURE_UNSENT_BYTES_MAX, "{taken}");
    for _ in 0..10 {
        would_block(one.write(&mut up, &[IoSlice::new(&block)]));
        assert!(!one.flush(&mut up).unwrap());
    }
    let mut heard = vec![0; taken];
    let mut count = 0;
    while count < taken {
        let _ = one.flush(&mut up).unwrap();
        count += two.read(&mut up, &mut heard[count..]).unwrap_or(0);
    }
    assert!(one.flush(&mut up).unwrap());
    assert_eq!(heard, &block[..taken]);
}

/// The last proof and the first data may come in one packet: the handshake reads the data, and the next reader gets it.
#[test]
fn what_comes_right_behind_the_handshake_is_kept() {
    for kind in 0..KINDS {
        let (mut dialler, mut acceptor) = both_ends(kind);
        let (mut up, mut down) = (Pipe::wide(), Pipe::wide());
        while !acceptor.is_done() {
            dialler.write(&mut up).unwrap();
            acceptor.read(&mut up).unwrap();
            acceptor.write(&mut down).unwrap();
            if !acceptor.is_done() {
                dialler.read(&mut down).unwrap();
            }
        }
        let mut acceptor = acceptor.finish();
        acceptor.write(&mut down, &[IoSlice::new(b"first")]).unwrap();
        dialler.read(&mut down).unwrap();
        let mut dialler = dialler.finish();
        assert_eq!(dialler.has_buffered(), kind % 2 == 0);
        let mut heard = [0; 16];
        assert_eq!(dialler.read(&mut down, &mut heard).unwrap(), 5);
        assert_eq!(&heard[..5], b"first");
        assert!(!dialler.has_buffered());
        would_block(dialler.read(&mut down, &mut heard));
    }
}

#[test]
fn what_does_not_fit_is_buffered_and_said_so() {
    let (mut one, mut two) = pair(0);
    let mut up = Pipe::wide();
    one.write(&mut up, &[IoSlice::new(b"abcdef")]).unwrap();
    let mut heard = [0; 4];
    assert_eq!(two.read(&mut up, &mut []).unwrap(), 0);
    assert_eq!(two.read(&mut up, &mut heard).unwrap(), 4);
    assert!(two.has_buffered());
    assert_eq!(two.read(&mut up, &mut heard).unwrap(), 2);
    assert!(!two.has_buffered());
}

#[test]
fn an_end_that_was_said_differs_from_a_cut() {
    let (mut one, mut two) = pair(0);
    let mut up = Pipe::wide();
    one.write(&mut up, &[IoSlice::new(b"last")]).unwrap();
    one.close();
    assert!(one.flush(&mut up).unwrap());
    let mut heard = [0; 16];
    assert_eq!(two.read(&mut up, &mut heard).unwrap(), 4);
    assert!(two.has_buffered(), "the end is still to be told");
    assert_eq!(two.read(&mut up, &mut heard).unwrap(), 0);
    assert!(!two.has_buffered());

    let (mut one, mut two) = pair(0);
    let mut up = Pipe::wide();
    one.write(&mut up, &[IoSlice::new(b"last")]).unwrap();
    up.closed = true;
    assert_eq!(two.read(&mut up, &mut heard).unwrap(), 4);
    let error = two.read(&mut up, &mut heard).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_changed_byte_ends_the_connection_after_what_was_good() {
    let (mut one, mut two) = pair(0);
    let mut up = Pipe::wide();
    one.write(&mut up, &[IoSlice::new(b"good")]).unwrap();
    up.harm = Harm::Flip(up.log.len() + 7);
    one.write(&mut up, &[IoSlice::new(b"changed")]).unwrap();
    one.write(&mut up, &[IoSlice::new(b"more")]).unwrap();
    let mut heard = [0; 64];
    assert_eq!(two.read(&mut up, &mut heard).unwrap(), 4);
    assert!(two.has_buffered());
    for _ in 0..2 {
        let error = two.read(&mut up, &mut heard).unwrap_err();
        assert!(
            matches!(
                error.kind(),
                io::ErrorKind::InvalidData | io::ErrorKind::WouldBlock
            ),
            "{error:?}"
        );
    }
    assert_eq!(&heard[..4], b"good");
}

/// A socket that fails after it has given something.
struct Breaks<'a>(&'a mut Pipe);

impl Read for Breaks<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self.0.read(into) {
            Err(_) => Err(io::ErrorKind::ConnectionReset.into()),
            good => good,
        }
    }
}

#[test]
fn a_failure_is_told_after_what_came_before_it() {
    let (mut one, mut two) = pair(0);
    let mut up = Pipe::wide();
    one.write(&mut up, &[IoSlice::new(b"good")]).unwrap();
    let mut heard = [0; 64];
    assert_eq!(two.read(&mut Breaks(&mut up), &mut heard).unwrap(), 4);
    assert!(two.has_buffered());
    let error = two.read(&mut up, &mut heard).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    assert!(!two.has_buffered());
}

/// A socket that nobody reads any more.
struct Gone;

impl Write for Gone {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_broken_socket_is_told_to_the_writer() {
    for kind in 0..KINDS {
        let (mut one, _) = pair(kind);
        let error = one.write(&mut Gone, &[IoSlice::new(b"lost")]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
