//! A socket in memory, that can do harm.

use std::collections::VecDeque;
use std::io::{self, Read, Write};

/// One direction of a socket: holds so many bytes, gives so many at once, and can do harm.
pub(super) struct Pipe {
    pub(super) bytes: VecDeque<u8>,
    room: usize,
    at_once: usize,
    /// The writer has closed it.
    pub(super) closed: bool,
    /// All that ever went in.
    pub(super) log: Vec<u8>,
    pub(super) harm: Harm,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Harm {
    None,
    /// This byte is changed.
    Flip(usize),
    /// The stream ends before this byte.
    Cut(usize),
}

impl Pipe {
    pub(super) fn new(room: usize, at_once: usize) -> Self {
        Self {
            bytes: VecDeque::new(),
            room,
            at_once,
            closed: false,
            log: Vec::new(),
            harm: Harm::None,
        }
    }

    pub(super) fn wide() -> Self {
        Self::new(1 << 20, 1 << 20)
    }

    pub(super) fn harmful(harm: Harm) -> Self {
        Self { harm, ..Self::wide() }
    }

    /// What somebody has sent, who then closes.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut pipe = Self::wide();
        pipe.write_all(bytes).expect("there is room");
        pipe.closed = true;
        pipe
    }

    fn put(&mut self, byte: u8) {
        let at = self.log.len();
        self.log.push(byte);
        match self.harm {
            Harm::Flip(place) if place == at => self.bytes.push_back(byte ^ 0x10),
            Harm::Cut(place) if place <= at => self.closed = true,
            _ => self.bytes.push_back(byte),
        }
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
        bytes[..count].iter().for_each(|&byte| self.put(byte));
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
