//! What flows back, and what needs no mailbox: replies, cancels, credit, ports, the goodbye.

use super::bytes::{put, u16_at, u32_at, u64_at};
use super::frame::{FrameHeader, Kind, Tail, sealed};
use super::{EncodeError, Parts, ProtocolError};
use crate::id::MeshId;

/// What a reply says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReplyStatus {
    /// The endpoint's result.
    Value = 0,
    /// The exception that the endpoint raised.
    Error = 1,
    /// One value of several; more follow.
    Item = 2,
    /// No more values follow.
    End = 3,
    /// The message was dropped before its endpoint started.
    Dropped = 4,
}

impl ReplyStatus {
    #[inline]
    fn decode(value: u8) -> Result<Self, ProtocolError> {
        Ok(match value {
            0 => Self::Value,
            1 => Self::Error,
            2 => Self::Item,
            3 => Self::End,
            4 => Self::Dropped,
            value => {
                return Err(ProtocolError::UnknownValue {
                    field: "status of a reply",
                    value,
                });
            }
        })
    }
}

/// One rank's answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplyHeader {
    /// The call that is answered.
    pub call: u64,
    /// The rank that answers.
    pub rank: u32,
    /// What the parts hold.
    pub status: ReplyStatus,
    /// Bits for the layer above; the core only carries them.
    pub flags: u8,
}

/// The caller no longer waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cancel {
    /// The call that is given up.
    pub call: u64,
    /// The rank that need not answer; [`Cancel::ALL_RANKS`] for all of them.
    pub rank: u32,
    /// Bits for the layer above; the core only carries them.
    pub flags: u8,
}

impl Cancel {
    /// Every rank of the call.
    pub const ALL_RANKS: u32 = u32::MAX;
}

/// Where credit is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CreditTarget {
    /// The mailbox of an actor of the proc that grants.
    Actor {
        /// The actor's mesh.
        mesh: MeshId,
        /// The actor's slot.
        slot: u32,
    },
    /// A port of the proc that grants, as it numbered it.
    Port(u64),
}

/// What was taken out of a mailbox or port, of all that this peer ever sent it in this session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credit {
    /// Which mailbox or port.
    pub target: CreditTarget,
    /// Messages taken out.
    pub messages: u64,
    /// Bytes of those messages, shared segments included.
    pub bytes: u64,
}

/// A value for a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortItem {
    /// The port, as its receiver numbered it.
    pub port: u64,
    /// Bits for the layer above; the core only carries them.
    pub flags: u8,
}

/// The receiver of a port is closed: nothing more is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortClose {
    /// The port, as its receiver numbered it.
    pub port: u64,
    /// Why, in a number of the layer above.
    pub reason: u8,
    /// Bits for the layer above; the core only carries them.
    pub flags: u8,
}

/// The sender stops: it takes no message with a higher number, and its peer returns those to their senders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Goodbye {
    /// The last sequence number that was taken.
    pub taken: u64,
    /// Why, in a number of the layer above.
    pub reason: u8,
}

const REPLY_BYTES: usize = 16;
const CANCEL_BYTES: usize = 16;
const CREDIT_BYTES: usize = 32;
const PORT_ITEM_BYTES: usize = 16;
const PORT_CLOSE_BYTES: usize = 16;
const GOODBYE_BYTES: usize = 16;

/// The slot in a credit that says that it is for a port.
const PORT_SLOT: u32 = u32::MAX;

impl sealed::Sealed for ReplyHeader {}

impl FrameHeader for ReplyHeader {
    const KIND: Kind = Kind::Reply;
    const TAIL: Tail = Tail::Parts;

    #[inline]
    fn flags(&self) -> u8 {
        self.flags
    }

    #[inline]
    fn length(&self) -> Result<usize, EncodeError> {
        Ok(REPLY_BYTES)
    }

    #[inline]
    fn write(&self, part_count: u16, out: &mut Vec<u8>) {
        let mut fixed = [0; REPLY_BYTES];
        put(&mut fixed, 0, self.call.to_le_bytes());
        put(&mut fixed, 8, self.rank.to_le_bytes());
        put(&mut fixed, 12, part_count.to_le_bytes());
        put(&mut fixed, 14, [self.status as u8]);
        out.extend_from_slice(&fixed);
    }
}

impl ReplyHeader {
    #[inline]
    pub(super) fn decode<'a>(
        flags: u8,
        header: &'a [u8],
        inline: &'a [u8],
    ) -> Result<(Self, Parts<'a>), ProtocolError> {
        let (fixed, table) = fixed::<REPLY_BYTES>(header, "reply header")?;
        let parts = Parts::decode(u16_at(fixed, 12), table, inline)?;
        let status = ReplyStatus::decode(fixed[14])?;
        Ok((
            Self {
                call: u64_at(fixed, 0),
                rank: u32_at(fixed, 8),
                status,
                flags,
            },
            parts,
        ))
    }
}

impl sealed::Sealed for Cancel {}

impl FrameHeader for Cancel {
    const KIND: Kind = Kind::Cancel;

    fn flags(&self) -> u8 {
        self.flags
    }

    fn length(&self) -> Result<usize, EncodeError> {
        Ok(CANCEL_BYTES)
    }

    fn write(&self, _: u16, out: &mut Vec<u8>) {
        let mut fixed = [0; CANCEL_BYTES];
        put(&mut fixed, 0, self.call.to_le_bytes());
        put(&mut fixed, 8, self.rank.to_le_bytes());
        out.extend_from_slice(&fixed);
    }
}

impl Cancel {
    pub(super) fn decode(flags: u8, header: &[u8]) -> Result<Self, ProtocolError> {
        let (fixed, _) = fixed::<CANCEL_BYTES>(header, "cancel header")?;
        Ok(Self {
            call: u64_at(fixed, 0),
            rank: u32_at(fixed, 8),
            flags,
        })
    }
}

impl sealed::Sealed for Credit {}

impl FrameHeader for Credit {
    const KIND: Kind = Kind::Credit;

    fn length(&self) -> Result<usize, EncodeError> {
        Ok(CREDIT_BYTES)
    }

    fn write(&self, _: u16, out: &mut Vec<u8>) {
        let (number, slot) = match self.target {
            CreditTarget::Actor { mesh, slot } => (mesh.get(), slot),
            CreditTarget::Port(port) => (port, PORT_SLOT),
        };
        let mut fixed = [0; CREDIT_BYTES];
        put(&mut fixed, 0, number.to_le_bytes());
        put(&mut fixed, 8, self.messages.to_le_bytes());
        put(&mut fixed, 16, self.bytes.to_le_bytes());
        put(&mut fixed, 24, slot.to_le_bytes());
        out.extend_from_slice(&fixed);
    }
}

impl Credit {
    pub(super) fn decode(header: &[u8]) -> Result<Self, ProtocolError> {
        let (fixed, _) = fixed::<CREDIT_BYTES>(header, "credit header")?;
        let target = match u32_at(fixed, 24) {
            PORT_SLOT => CreditTarget::Port(u64_at(fixed, 0)),
            slot => {
                let mesh = MeshId::new(u64_at(fixed, 0)).ok_or(ProtocolError::ZeroId { field: "mesh" })?;
                CreditTarget::Actor { mesh, slot }
            }
        };
        Ok(Self {
            target,
            messages: u64_at(fixed, 8),
            bytes: u64_at(fixed, 16),
        })
    }
}

impl sealed::Sealed for PortItem {}

impl FrameHeader for PortItem {
    const KIND: Kind = Kind::PortItem;
    const TAIL: Tail = Tail::Parts;

    fn flags(&self) -> u8 {
        self.flags
    }

    fn length(&self) -> Result<usize, EncodeError> {
        Ok(PORT_ITEM_BYTES)
    }

    fn write(&self, part_count: u16, out: &mut Vec<u8>) {
        let mut fixed = [0; PORT_ITEM_BYTES];
        put(&mut fixed, 0, self.port.to_le_bytes());
        put(&mut fixed, 8, part_count.to_le_bytes());
        out.extend_from_slice(&fixed);
    }
}

impl PortItem {
    pub(super) fn decode<'a>(
        flags: u8,
        header: &'a [u8],
        inline: &'a [u8],
    ) -> Result<(Self, Parts<'a>), ProtocolError> {
        let (fixed, table) = fixed::<PORT_ITEM_BYTES>(header, "port item header")?;
        let parts = Parts::decode(u16_at(fixed, 8), table, inline)?;
        Ok((
            Self {
                port: u64_at(fixed, 0),
                flags,
            },
            parts,
        ))
    }
}

impl sealed::Sealed for PortClose {}

impl FrameHeader for PortClose {
    const KIND: Kind = Kind::PortClose;

    fn flags(&self) -> u8 {
        self.flags
    }

    fn length(&self) -> Result<usize, EncodeError> {
        Ok(PORT_CLOSE_BYTES)
    }

    fn write(&self, _: u16, out: &mut Vec<u8>) {
        let mut fixed = [0; PORT_CLOSE_BYTES];
        put(&mut fixed, 0, self.port.to_le_bytes());
        put(&mut fixed, 8, [self.reason]);
        out.extend_from_slice(&fixed);
    }
}

impl PortClose {
    pub(super) fn decode(flags: u8, header: &[u8]) -> Result<Self, ProtocolError> {
        let (fixed, _) = fixed::<PORT_CLOSE_BYTES>(header, "port close header")?;
        Ok(Self {
            port: u64_at(fixed, 0),
            reason: fixed[8],
            flags,
        })
    }
}

impl sealed::Sealed for Goodbye {}

impl FrameHeader for Goodbye {
    const KIND: Kind = Kind::Goodbye;

    fn length(&self) -> Result<usize, EncodeError> {
        Ok(GOODBYE_BYTES)
    }

    fn write(&self, _: u16, out: &mut Vec<u8>) {
        let mut fixed = [0; GOODBYE_BYTES];
        put(&mut fixed, 0, self.taken.to_le_bytes());
        put(&mut fixed, 8, [self.reason]);
        out.extend_from_slice(&fixed);
    }
}

impl Goodbye {
    pub(super) fn decode(header: &[u8]) -> Result<Self, ProtocolError> {
        let (fixed, _) = fixed::<GOODBYE_BYTES>(header, "goodbye header")?;
        Ok(Self {
            taken: u64_at(fixed, 0),
            reason: fixed[8],
        })
    }
}

#[inline]
fn fixed<'a, const BYTES: usize>(
    header: &'a [u8],
    field: &'static str,
) -> Result<(&'a [u8; BYTES], &'a [u8]), ProtocolError> {
    header
        .split_first_chunk()
        .ok_or(ProtocolError::Truncated { field })
}
