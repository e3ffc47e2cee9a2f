//! A connection over which records go before a trunk's frames do.

use std::io::{self, IoSlice};

use roost_core::control::ControlError;
use roost_core::trunk::{Greeting, RecordReader};
use serde::de::DeserializeOwned;

use super::stream::Stream;

/// See the module.
#[derive(Debug)]
pub(super) struct Records {
    pub(super) stream: Stream,
    /// Where it was reached.
    pub(super) address: String,
    pub(super) greeting: Option<Greeting>,
    reader: RecordReader,
}

impl Records {
    pub(super) fn new(stream: Stream, address: String) -> Self {
        Self {
            stream,
            address,
            greeting: None,
            reader: RecordReader::default(),
        }
    }

    /// Take in what is there. A record is small, and whoever is here has proved itself.
    pub(super) fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4 << 10];
        loop {
            match self.stream.read(&mut buffer)? {
                None => return Ok(()),
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(count) => self.reader.take(&buffer[..count]),
            }
        }
    }

    pub(super) fn record<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ControlError> {
        self.reader.record()
    }

    /// A record fits into what a fresh socket takes.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match self.stream.write(&[IoSlice::new(&bytes[written..])])? {
                Some(count) if count > 0 => written += count,
                _ => return Err(io::ErrorKind::WouldBlock.into()),
            }
        }
        self.stream.flush().and_then(|all| {
            if all {
                Ok(())
            } else {
                Err(io::ErrorKind::WouldBlock.into())
            }
        })
    }

    /// (connection, where it was reached, who is there, what came behind the records).
    pub(super) fn into_parts(self) -> (Stream, String, Option<Greeting>, Vec<u8>) {
        (self.stream, self.address, self.greeting, self.reader.rest())
    }
}
