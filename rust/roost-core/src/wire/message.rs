//! Messages to actors: calls and broadcasts.

use super::bytes::{put, u16_at, u64_at};
use super::frame::{FrameHeader, Kind, Tail, sealed};
use super::{Chain, EncodeError, Parts, ProtocolError, Runs};
use crate::id::MeshId;
use crate::limits;

const FIXED_BYTES: usize = 36;

/// A message to actors of one proc.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader<'a> {
    /// The call that replies name; 0 for a broadcast, which has none.
    pub call: u64,
    /// The mesh of the actors.
    pub mesh: MeshId,
    /// When the call ends unanswered, on the origin's monotonic clock; 0 for never.
    pub deadline_ns: i64,
    /// Bits for the layer above; the core only carries them.
    pub flags: u8,
    /// The actors, and the rank of each in the message's mesh.
    pub runs: Runs<'a>,
    /// The endpoint's name.
    pub endpoint: &'a str,
    /// Names and sizes of the message's mesh, as the layer above writes them.
    pub sizes: &'a [u8],
    /// The endpoints that wait for this call.
    pub chain: Chain<'a>,
}

impl sealed::Sealed for MessageHeader<'_> {}

impl FrameHeader for MessageHeader<'_> {
    const KIND: Kind = Kind::Message;
    const TAIL: Tail = Tail::Parts;

    #[inline]
    fn flags(&self) -> u8 {
        self.flags
    }

    #[inline]
    fn length(&self) -> Result<usize, EncodeError> {
        // Runs and chain were checked when they were made.
        let (name, sizes) = (self.endpoint.len() as u64, self.sizes.len() as u64);
        EncodeError::check(
            "bytes of the endpoint's name",
            name,
            limits::ENDPOINT_NAME_BYTES_MAX as u64,
        )?;
        EncodeError::check(
            "bytes of mesh sizes",
            sizes,
            limits::MESSAGE_SIZES_BYTES_MAX as u64,
        )?;
        let lists = self.runs.as_bytes().len() + self.chain.as_bytes().len();
        Ok(FIXED_BYTES + lists + self.endpoint.len() + self.sizes.len())
    }

    #[inline]
    fn write(&self, part_count: u16, out: &mut Vec<u8>) {
        let mut fixed = [0; FIXED_BYTES];
        put(&mut fixed, 0, self.call.to_le_bytes());
        put(&mut fixed, 8, self.mesh.get().to_le_bytes());
        put(&mut fixed, 16, self.deadline_ns.to_le_bytes());
        put(&mut fixed, 24, length16(self.runs.count()).to_le_bytes());
        put(&mut fixed, 26, length16(self.chain.count()).to_le_bytes());
        put(&mut fixed, 28, part_count.to_le_bytes());
        put(&mut fixed, 30, length16(self.sizes.len()).to_le_bytes());
        put(&mut fixed, 32, length16(self.endpoint.len()).to_le_bytes());
        out.extend_from_slice(&fixed);
        out.extend_from_slice(self.runs.as_bytes());
        out.extend_from_slice(self.endpoint.as_bytes());
        out.extend_from_slice(self.sizes);
        out.extend_from_slice(self.chain.as_bytes());
    }
}

impl<'a> MessageHeader<'a> {
    #[inline]
    pub(super) fn decode(
        flags: u8,
        header: &'a [u8],
        inline: &'a [u8],
    ) -> Result<(Self, Parts<'a>), ProtocolError> {
        let Some((fixed, rest)) = header.split_first_chunk::<FIXED_BYTES>() else {
            return Err(ProtocolError::Truncated {
                field: "message header",
            });
        };
        let call = u64_at(fixed, 0);
        let mesh = MeshId::new(u64_at(fixed, 8)).ok_or(ProtocolError::ZeroId { field: "mesh" })?;
        let deadline_ns = u64_at(fixed, 16).cast_signed();
        let (runs, rest) = split(rest, usize::from(u16_at(fixed, 24)) * Runs::BYTES_EACH, "runs")?;
        let (name, rest) = split(rest, usize::from(fixed[32]), "endpoint's name")?;
        let (sizes, rest) = split(rest, usize::from(u16_at(fixed, 30)), "mesh sizes")?;
        let (chain, table) = split(rest, usize::from(u16_at(fixed, 26)) * Chain::BYTES_EACH, "chain")?;
        let runs = Runs::decode(runs)?;
        let endpoint = std::str::from_utf8(name).map_err(|_| ProtocolError::NameNotText)?;
        let chain = Chain::decode(chain)?;
        let parts = Parts::decode(u16_at(fixed, 28), table, inline)?;
        Ok((
            Self {
                call,
                mesh,
                deadline_ns,
                flags,
                runs,
                endpoint,
                sizes,
                chain,
            },
            parts,
        ))
    }
}

#[inline]
fn split<'a>(
    bytes: &'a [u8],
    length: usize,
    field: &'static str,
) -> Result<(&'a [u8], &'a [u8]), ProtocolError> {
    bytes
        .split_at_checked(length)
        .ok_or(ProtocolError::Truncated { field })
}

/// A length that was checked against a limit of at most 65,535.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "checked where the list was made")]
fn length16(length: usize) -> u16 {
    debug_assert!(
        u16::try_from(length).is_ok(),
        "lengths are checked before they are written"
    );
    length as u16
}
