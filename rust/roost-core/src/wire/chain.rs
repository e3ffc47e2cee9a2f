//! The endpoints that wait for a call, so that a deadlock is found instead of suffered.

use super::bytes::{put, u32_at, u64_at};
use super::{EncodeError, ProtocolError};
use crate::id::{MeshId, ProcId};
use crate::limits;

const LINK_BYTES: usize = 28;

/// One endpoint that waits, directly or not, for the call that carries the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChainLink {
    /// The proc of the actor that waits.
    pub proc: ProcId,
    /// Its mesh.
    pub mesh: MeshId,
    /// Its slot.
    pub slot: u32,
    /// The number of the message that its endpoint is handling, in that proc.
    pub call: u64,
}

impl ChainLink {
    fn to_bytes(self) -> [u8; LINK_BYTES] {
        let mut bytes = [0; LINK_BYTES];
        put(&mut bytes, 0, self.proc.get().to_le_bytes());
        put(&mut bytes, 8, self.mesh.get().to_le_bytes());
        put(&mut bytes, 16, self.slot.to_le_bytes());
        put(&mut bytes, 20, self.call.to_le_bytes());
        bytes
    }

    #[inline]
    fn from_bytes(bytes: &[u8; LINK_BYTES]) -> Option<Self> {
        Some(Self {
            proc: ProcId::new(u64_at(bytes, 0))?,
            mesh: MeshId::new(u64_at(bytes, 8))?,
            slot: u32_at(bytes, 16),
            call: u64_at(bytes, 20),
        })
    }
}

/// A checked chain of waiting endpoints in its wire form, outermost first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Chain<'a> {
    bytes: &'a [u8],
}

impl<'a> Chain<'a> {
    /// The chain of a call that no endpoint waits for.
    pub const EMPTY: Self = Self { bytes: &[] };

    /// Bytes of each link.
    pub(super) const BYTES_EACH: usize = LINK_BYTES;

    #[inline]
    pub(super) fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    #[inline]
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, ProtocolError> {
        let links = bytes.len() / LINK_BYTES;
        ProtocolError::check("links of the chain", links as u64, limits::CHAIN_LINKS_MAX as u64)?;
        let chain = Self { bytes };
        if chain.iter().count() != links {
            return Err(ProtocolError::ZeroId {
                field: "id in the chain",
            });
        }
        Ok(chain)
    }

    /// Whether no endpoint waits.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// How many endpoints wait.
    #[inline]
    pub const fn count(&self) -> usize {
        self.bytes.len() / LINK_BYTES
    }

    /// The endpoints that wait, outermost first.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = ChainLink> + 'a {
        self.bytes.as_chunks().0.iter().filter_map(ChainLink::from_bytes)
    }

    /// A copy to keep while the call is handled.
    pub fn to_buffer(self) -> ChainBuffer {
        ChainBuffer {
            bytes: self.bytes.to_vec(),
        }
    }
}

/// A chain that is kept while a call is handled, to be sent with the calls below it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ChainBuffer {
    bytes: Vec<u8>,
}

impl ChainBuffer {
    /// A chain without links.
    pub const fn new() -> Self {
        Self { bytes: Vec::new() }
    }

    /// Adds the innermost link.
    ///
    /// # Errors
    ///
    /// [`EncodeError::TooMany`] when the chain is as long as it may be.
    pub fn push(&mut self, link: ChainLink) -> Result<(), EncodeError> {
        let links = (self.bytes.len() / LINK_BYTES + 1) as u64;
        EncodeError::check("links of the chain", links, limits::CHAIN_LINKS_MAX as u64)?;
        self.bytes.extend_from_slice(&link.to_bytes());
        Ok(())
    }

    /// The chain, to send or to read.
    #[inline]
    pub fn as_chain(&self) -> Chain<'_> {
        Chain { bytes: &self.bytes }
    }
}
