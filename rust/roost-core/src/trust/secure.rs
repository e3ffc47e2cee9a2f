use std::fmt;
use std::io::{self, IoSlice, Read, Write};

use rustls::Connection;

/// Carries the bytes of a connection whose two sides have proved themselves: in TLS, or as they are.
///
/// Sockets are handed in, and must not block. What is held here is bounded: at most
/// [`SECURE_UNSENT_BYTES_MAX`](crate::limits::SECURE_UNSENT_BYTES_MAX) of plaintext to be sent, and one record and a
/// half of what was received.
pub struct Secure {
    /// None: plain TCP.
    tls: Option<Box<Tls>>,
}

struct Tls {
    connection: Connection,
    /// Plaintext that was received and not read.
    buffered: usize,
    /// The peer's end was received, which [`Secure::read`] has to tell.
    ended: bool,
    /// Nothing more can be received, which [`Secure::read`] has to tell when what came before it was read.
    failed: Option<io::Error>,
}

impl Secure {
    /// A connection in clear.
    pub fn plain() -> Self {
        Self { tls: None }
    }

    /// Goes on with what the handshake has received beyond its own end.
    pub(super) fn tls(connection: Connection) -> Self {
        let mut tls = Tls {
            connection,
            buffered: 0,
            ended: false,
            failed: None,
        };
        tls.process();
        Self {
            tls: Some(Box::new(tls)),
        }
    }

    /// Whether nothing is encrypted.
    pub fn is_plain(&self) -> bool {
        self.tls.is_none()
    }

    /// Reads plaintext: as much as fits and is there. 0 when the peer has said that it sends no more (or `into` is empty).
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] when nothing is there; [`io::ErrorKind::UnexpectedEof`] when TLS was cut off, which
    /// also an attacker can do; [`io::ErrorKind::InvalidData`] when bytes were changed; whatever `from` fails with.
    pub fn read(&mut self, from: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => from.read(into),
            Some(tls) => tls.read(from, into),
        }
    }

    /// Takes plaintext to be sent, and sends what it can; says how many bytes of the pieces were taken. Those are gone for
    /// the caller, but not all of them may be on their way: while [`flush`](Self::flush) says so, call it when the socket
    /// can be written. Nothing is taken while something of before waits.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] when nothing was taken; whatever `to` fails with, after which the connection is of no
    /// more use.
    pub fn write(&mut self, to: &mut dyn Write, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(tls) = &mut self.tls else {
            return to.write_vectored(pieces);
        };
        if !tls.send(to)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = tls.connection.writer().write_vectored(pieces)?;
        tls.send(to)?;
        Ok(taken)
    }

    /// Sends what was taken, and what TLS itself has to say. Says whether all is written.
    ///
    /// # Errors
    ///
    /// Whatever `to` fails with.
    pub fn flush(&mut self, to: &mut dyn Write) -> io::Result<bool> {
        self.tls.as_mut().map_or(Ok(true), |tls| tls.send(to))
    }

    /// Whether something can be read without the socket: ask before waiting for it.
    pub fn has_buffered(&self) -> bool {
        self.tls
            .as_ref()
            .is_some_and(|tls| tls.buffered > 0 || tls.ended || tls.failed.is_some())
    }

    /// Takes new keys, and has the peer take some too, as TLS does by itself after some hundred GiB.
    #[cfg(test)]
    pub(super) fn refresh_keys(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.connection
                .refresh_traffic_keys()
                .expect("the handshake is done");
        }
    }

    /// Says to the peer that nothing more comes, so that it can tell this end from one that somebody else has made. Flush
    /// afterwards.
    pub fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.connection.send_close_notify();
        }
    }
}

impl fmt::Debug for Secure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_plain() {
            "Secure(plain)"
        } else {
            "Secure(TLS 1.3)"
        })
    }
}

impl Tls {
    fn read(&mut self, from: &mut dyn Read, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            match self.connection.reader().read(&mut into[filled..]) {
                Ok(0) => {
                    self.ended &= filled > 0;
                    break;
                }
                Ok(count) => {
                    filled += count;
                    self.buffered = self.buffered.saturating_sub(count);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if let Err(error) = self.receive(from) {
                        match error.kind() {
                            io::ErrorKind::WouldBlock if filled == 0 => return Err(error),
                            io::ErrorKind::WouldBlock => break,
                            // What came before it is as good as ever.
                            _ if filled > 0 => {
                                self.failed = Some(error);
                                break;
                            }
                            _ => return Err(error),
                        }
                    }
                }
                // Cut off; TLS remembers it.
                Err(_) if filled > 0 => break,
                Err(error) => {
                    self.ended = false;
                    return Err(error);
                }
            }
        }
        Ok(filled)
    }

    /// Reads once from the socket.
    fn receive(&mut self, from: &mut dyn Read) -> io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        match self.connection.read_tls(from) {
            Ok(count) => {
                self.ended |= count == 0;
                self.process();
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn process(&mut self) {
        match self.connection.process_new_packets() {
            Ok(state) => {
                self.buffered = state.plaintext_bytes_to_read();
                self.ended |= state.peer_has_closed();
            }
            // There may be good records before the bad one: they are read first.
            Err(error) => self.failed = Some(io::Error::new(io::ErrorKind::InvalidData, error)),
        }
    }

    /// Writes as much as can be written; says whether that was all.
    fn send(&mut self, to: &mut dyn Write) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(to) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
