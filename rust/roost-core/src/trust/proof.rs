use ring::hmac;

use super::authority::random;
use super::{PREAMBLE_BYTES, TrustError};
use crate::id::HostId;

/// Bytes of a proof: HMAC-SHA-256.
pub(super) const PROOF_BYTES: usize = 32;

/// Which of the two sides; its number is part of what it proves, so that nobody can be shown its own proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// It has dialled, and proves itself first.
    Dials = 1,
    /// It was dialled.
    Accepts = 2,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Dials => Self::Accepts,
            Self::Accepts => Self::Dials,
        }
    }
}

/// Which of the two kinds of connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Join,
    Lane,
}

impl Kind {
    /// Its name in the TLS handshake (ALPN).
    pub(super) const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Join => b"roost-join",
            Self::Lane => b"roost-lane",
        }
    }

    /// The label of the TLS exporter that gives the channel's binding.
    pub(super) const fn exporter(self) -> &'static [u8] {
        match self {
            Self::Join => b"EXPORTER-roost-join",
            Self::Lane => b"EXPORTER-roost-lane",
        }
    }

    const fn label(self) -> [u8; 16] {
        match self {
            Self::Join => *b"roost-join-proof",
            Self::Lane => *b"roost-lane-proof",
        }
    }
}

/// What both sides send first: that they speak this, and a number that was never used before.
#[derive(Clone, Copy)]
pub(super) struct Opening {
    nonce: [u8; 32],
}

impl Opening {
    pub(super) const BYTES: usize = 40;

    pub(super) const TAG: [u8; 8] = *b"ROOSTnon";

    pub(super) fn new() -> Result<Self, TrustError> {
        Ok(Self { nonce: random()? })
    }

    #[cfg(test)]
    pub(super) fn with(nonce: [u8; 32]) -> Self {
        Self { nonce }
    }

    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&Self::TAG);
        bytes[8..].copy_from_slice(&self.nonce);
        bytes
    }

    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Result<Self, TrustError> {
        let (first, nonce) = bytes.split_first_chunk().expect("40 bytes are more than 8");
        if *first != Self::TAG {
            return Err(TrustError::NotRoost { first: *first });
        }
        Ok(Self {
            nonce: nonce.try_into().expect("32 bytes are left of 40"),
        })
    }
}

/// What proofs of one connection are made of, before the peer's opening and the channel's binding are known.
pub(super) struct Terms {
    pub(super) kind: Kind,
    pub(super) side: Side,
    pub(super) key: hmac::Key,
    pub(super) preamble: [u8; PREAMBLE_BYTES],
    /// The host that is dialled; none where its name is not known yet.
    pub(super) called: Option<HostId>,
}

impl Terms {
    const BYTES: usize = 16 + 1 + 32 + 32 + PREAMBLE_BYTES + 8 + 32;

    /// This side's proof.
    pub(super) fn prove(&self, ours: Opening, theirs: Opening, binding: &[u8; 32]) -> [u8; PROOF_BYTES] {
        let tag = hmac::sign(&self.key, &self.message(self.side, ours, theirs, binding));
        tag.as_ref().try_into().expect("SHA-256 gives 32 bytes")
    }

    /// Whether this is the peer's proof; compared in constant time.
    pub(super) fn verify(&self, proof: &[u8], ours: Opening, theirs: Opening, binding: &[u8; 32]) -> bool {
        let message = self.message(self.side.other(), ours, theirs, binding);
        hmac::verify(&self.key, &message, proof).is_ok()
    }

    /// What a side signs; the nonces stand in the order dialler, acceptor on both.
    fn message(&self, signer: Side, ours: Opening, theirs: Opening, binding: &[u8; 32]) -> [u8; Self::BYTES] {
        let (dialler, acceptor) = match self.side {
            Side::Dials => (ours, theirs),
            Side::Accepts => (theirs, ours),
        };
        let mut message = [0; Self::BYTES];
        let mut rest = &mut message[..];
        let mut put = |bytes: &[u8]| {
            let (place, after) = std::mem::take(&mut rest).split_at_mut(bytes.len());
            place.copy_from_slice(bytes);
            rest = after;
        };
        put(&self.kind.label());
        put(&[signer as u8]);
        put(&dialler.nonce);
        put(&acceptor.nonce);
        put(&self.preamble);
        put(&self.called.map_or(0, HostId::get).to_le_bytes());
        put(binding);
        message
    }
}
