use std::fmt;
use std::io::{self, Read, Write};

use super::channel::Channel;
use super::error::explain;
use super::proof::{Opening, PROOF_BYTES, Side, Terms};
use super::{Secure, TrustError};
use crate::limits::HANDSHAKE_BYTES_MAX;

/// Two sides that prove themselves to each other. Drive it while it is not done: call [`read`](Self::read) when there is
/// something to read, [`write`](Self::write) whenever it [wants to](Self::wants_write).
///
/// After an error, one more `write` sends the alert that tells the peer, where there is one; then close.
pub struct Handshake {
    channel: Channel,
    terms: Terms,
    /// Whom an error names.
    peer: String,
    ours: Opening,
    theirs: Option<Opening>,
    step: Step,
    /// What was read of the message that the step waits for.
    incoming: [u8; Opening::BYTES],
    filled: usize,
    /// Bytes that the peer may still send.
    left: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// TLS is being set up.
    Tls,
    /// The peer's opening is to come.
    Opening,
    /// The peer's proof is to come.
    Proof,
    Done,
    Failed,
}

impl Handshake {
    pub(super) fn new(channel: Channel, terms: Terms, peer: String) -> Result<Self, TrustError> {
        let ours = Opening::new()?;
        Ok(Self::with(channel, terms, peer, ours))
    }

    pub(super) fn with(mut channel: Channel, terms: Terms, peer: String, ours: Opening) -> Self {
        // TLS keeps it until there are keys.
        channel.send(&ours.encode());
        let step = match channel {
            Channel::Plain { .. } => Step::Opening,
            Channel::Tls(_) => Step::Tls,
        };
        Self {
            channel,
            terms,
            peer,
            ours,
            theirs: None,
            step,
            incoming: [0; Opening::BYTES],
            filled: 0,
            left: HANDSHAKE_BYTES_MAX,
        }
    }

    /// Reads until there is nothing more to read, or nothing more is wanted: what comes after the handshake stays where it
    /// is, or comes out of [`Secure::read`].
    ///
    /// # Errors
    ///
    /// [`TrustError`], for whatever is not the handshake that this side expects, and when the peer closes.
    pub fn read(&mut self, from: &mut dyn Read) -> Result<(), TrustError> {
        let result = self.read_all(from);
        if result.is_err() {
            self.step = Step::Failed;
        }
        result
    }

    /// Writes as much as can be written.
    ///
    /// # Errors
    ///
    /// [`TrustError::Io`], when the connection fails.
    pub fn write(&mut self, to: &mut dyn Write) -> Result<(), TrustError> {
        while self.wants_write() {
            match self.channel.write(to) {
                Ok(0) => return Err(TrustError::Io(io::ErrorKind::WriteZero.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(TrustError::Io(error)),
            }
        }
        Ok(())
    }

    /// Whether the peer has to say more.
    pub fn wants_read(&self) -> bool {
        !matches!(self.step, Step::Done | Step::Failed)
    }

    /// Whether there is something to write.
    pub fn wants_write(&self) -> bool {
        match &self.channel {
            Channel::Plain { unsent } => !unsent.is_empty() && self.step != Step::Failed,
            Channel::Tls(connection) => connection.wants_write(),
        }
    }

    /// Whether both sides have proved themselves, and all of it is written.
    pub fn is_done(&self) -> bool {
        self.step == Step::Done && !self.wants_write()
    }

    /// What carries the bytes from here on.
    ///
    /// # Panics
    ///
    /// When the handshake is not done: nothing may be said to a peer that has proved nothing.
    pub fn finish(self) -> Secure {
        assert!(self.is_done(), "a handshake is finished before it is done");
        match self.channel {
            Channel::Plain { .. } => Secure::plain(),
            Channel::Tls(connection) => Secure::tls(*connection),
        }
    }

    fn read_all(&mut self, from: &mut dyn Read) -> Result<(), TrustError> {
        if self.step == Step::Failed {
            return Err(TrustError::Over);
        }
        loop {
            self.advance()?;
            if self.step == Step::Done {
                return Ok(());
            }
            match self.receive(from) {
                Ok(0) => return Err(self.closed(false)),
                Ok(count) => self.left = self.left.saturating_sub(count),
                Err(TrustError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(TrustError::Io(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads once: in clear exactly what the step needs, of TLS some records.
    fn receive(&mut self, from: &mut dyn Read) -> Result<usize, TrustError> {
        match &mut self.channel {
            Channel::Plain { .. } => {
                let wanted = self.step.message_bytes();
                let count = from
                    .read(&mut self.incoming[self.filled..wanted])
                    .map_err(TrustError::Io)?;
                self.filled += count;
                Ok(count)
            }
            Channel::Tls(connection) => {
                if self.left == 0 {
                    return Err(TrustError::TooMuch);
                }
                let limit = self.left.try_into().unwrap_or(u64::MAX);
                let count = connection
                    .read_tls(&mut from.take(limit))
                    .map_err(TrustError::Io)?;
                if count > 0 {
                    let processed = connection.process_new_packets();
                    processed.map_err(|error| explain(error, &self.peer))?;
                }
                Ok(count)
            }
        }
    }

    /// Goes on as far as what was received allows.
    fn advance(&mut self) -> Result<(), TrustError> {
        loop {
            match self.step {
                Step::Tls => {
                    let Channel::Tls(connection) = &self.channel else {
                        unreachable!("only TLS begins with this step");
                    };
                    if connection.is_handshaking() {
                        return Ok(());
                    }
                    // A peer that names no kind is let through by TLS.
                    if connection.alpn_protocol() != Some(self.terms.kind.alpn()) {
                        return Err(TrustError::OtherKind);
                    }
                    self.step = Step::Opening;
                }
                Step::Opening => {
                    if !self.message()? {
                        return Ok(());
                    }
                    let theirs = Opening::decode(&self.incoming)?;
                    self.theirs = Some(theirs);
                    self.step = Step::Proof;
                    if self.terms.side == Side::Dials {
                        let proof =
                            self.terms
                                .prove(self.ours, theirs, &self.channel.binding(self.terms.kind)?);
                        self.channel.send(&proof);
                    }
                }
                Step::Proof => {
                    if !self.message()? {
                        return Ok(());
                    }
                    let theirs = self.theirs.expect("the opening came before the proof");
                    self.check(theirs)?;
                    self.step = Step::Done;
                }
                Step::Done | Step::Failed => return Ok(()),
            }
        }
    }

    fn check(&mut self, theirs: Opening) -> Result<(), TrustError> {
        let (binding, proof) = (
            self.channel.binding(self.terms.kind)?,
            &self.incoming[..PROOF_BYTES],
        );
        if !self.terms.verify(proof, self.ours, theirs, &binding) {
            self.channel.close();
            return Err(TrustError::OtherKey);
        }
        if self.terms.side == Side::Accepts {
            let proof = self.terms.prove(self.ours, theirs, &binding);
            self.channel.send(&proof);
        }
        Ok(())
    }

    /// Whether the message that the step waits for is there; it is then the beginning of `incoming`.
    fn message(&mut self) -> Result<bool, TrustError> {
        let wanted = self.step.message_bytes();
        if let Channel::Tls(connection) = &mut self.channel {
            while self.filled < wanted {
                match connection.reader().read(&mut self.incoming[self.filled..wanted]) {
                    Ok(0) => return Err(self.closed(true)),
                    Ok(count) => self.filled += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                    Err(_) => return Err(self.closed(false)),
                }
            }
        } else if self.step == Step::Opening && self.filled >= 2 && is_tls(&self.incoming) {
            return Err(TrustError::PeerWantsTls);
        }
        if self.filled < wanted {
            return Ok(false);
        }
        self.filled = 0;
        Ok(true)
    }

    /// Why the connection has ended. Who has shown its proof and then hears the end said was refused; in clear nobody can
    /// say so, and a cut looks the same.
    fn closed(&self, is_said: bool) -> TrustError {
        let is_plain = matches!(self.channel, Channel::Plain { .. });
        match (self.step, self.terms.side) {
            (Step::Proof, Side::Dials) if is_said || is_plain => TrustError::Refused,
            (Step::Tls, _) => TrustError::Closed {
                during: "in the TLS handshake",
            },
            _ => TrustError::Closed {
                during: "before it proved itself",
            },
        }
    }
}

impl Step {
    fn message_bytes(self) -> usize {
        match self {
            Self::Opening => Opening::BYTES,
            Self::Proof => PROOF_BYTES,
            Self::Tls | Self::Done | Self::Failed => 0,
        }
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake")
            .field("peer", &self.peer)
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}

/// Whether these are the first bytes of TLS: an alert or a handshake, of version 3.
fn is_tls(bytes: &[u8]) -> bool {
    matches!(bytes, [0x15 | 0x16, 3, ..])
}
