//! The messages and their bytes, all little-endian.
//!
//! A message is a head of 8 bytes (length of the body, kind, descriptors that go with it, two zeros) and a body. `Data` and
//! `Write` are followed by as many bytes as they say, and those by a trailer: whether the bytes are worth anything is known
//! only when the last of them was taken from memory.

use roost_core::id::HostId;

use crate::handle::{Key, Peer};
use crate::limits::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX};

/// The version of all this. Both ends are of one job, and so of one installation.
pub(crate) const PROTOCOL: u16 = 1;

/// What begins each message.
pub(crate) const HEAD_BYTES: usize = 8;

/// What ends each chunk.
pub(crate) const TRAILER_BYTES: usize = 8;

/// Bytes that no engine sends: the link is of no more use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer sent what is no message: {0}")]
pub(crate) struct Broken(pub(crate) &'static str);

/// Adjacent bytes of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) region: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Whether a request or a chunk went well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Status {
    Good = 0,
    /// No lease, or none any more.
    Gone = 1,
    /// The memory's pages were taken away.
    Unmapped = 2,
    /// Not inside the region.
    OutOfBounds = 3,
    /// Whoever sends it wants it no more.
    GivenUp = 4,
    /// Memory of a device, which no CPU reads.
    Device = 5,
}

/// Why a lease is not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Reason {
    /// There was such a region.
    Gone = 0,
    /// There was none, or the key is another.
    Forged = 1,
    /// It was of another life of this process.
    OtherLife = 2,
    /// Text says what hinders.
    Hindered = 3,
}

/// Who speaks, and how it can be reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) job: u64,
    pub(crate) host: HostId,
    pub(crate) peer: Peer,
    /// As its host counts; zero when it does not matter.
    pub(crate) pid: u32,
    /// The NICs' ports that it has; none where it has no NICs.
    pub(crate) card: Option<Vec<u8>>,
}

/// Where a leased region is, for who can reach it without the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Address {
    /// Only by asking.
    Asked,
    /// In the owner's memory; descriptors: the process, its stamps, and its memory where that was wanted.
    Process { base: u64, stamp: u32, has_memory: bool },
    /// In a segment; descriptors: the process, its stamps, the segment.
    Segment { offset: u64, bytes: u64, stamp: u32 },
}

/// A region's sequence and version; an odd sequence: in change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) sequence: u64,
    pub(crate) version: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    Hello(Hello),
    Open {
        request: u64,
        region: u64,
        key: Key,
        owner: Peer,
        wants_memory: bool,
    },
    /// Keys: what a NIC needs to reach it, where there is one.
    Opened {
        request: u64,
        bytes: u64,
        address: Address,
        keys: Vec<u8>,
    },
    Refused {
        request: u64,
        reason: Reason,
        text: String,
    },
    Revoke {
        region: u64,
    },
    Revoked {
        region: u64,
    },
    /// Answered when none of them is in change.
    Look {
        request: u64,
        regions: Vec<u64>,
    },
    Looked {
        request: u64,
        stamps: Vec<Stamp>,
    },
    Read {
        request: u64,
        pieces: Vec<Piece>,
    },
    Data {
        request: u64,
        bytes: u64,
    },
    Write {
        request: u64,
        pieces: Vec<Piece>,
    },
    /// The end of a request that has no other answer, or could not have it.
    Ended {
        request: u64,
        status: Status,
        piece: u32,
    },
    /// For the sums of some parts' bytes, each of which ends behind so many of the pieces; the first goes on where the last
    /// question of the same slot ended, when it says so.
    Sum {
        request: u64,
        slot: u8,
        goes_on: bool,
        pieces: Vec<Piece>,
        ends: Vec<u32>,
    },
    /// Of the parts that end there.
    Sums {
        request: u64,
        sums: Vec<u64>,
    },
    /// Queue pairs that the asker has, and wants counterparts for.
    Offer {
        offer: Vec<u8>,
    },
    /// Those, or why there are none.
    Answer {
        answer: Vec<u8>,
        failure: Option<String>,
    },
}

/// What begins a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) body_bytes: usize,
    pub(crate) kind: u8,
    pub(crate) descriptors: usize,
}

impl Head {
    pub(crate) fn decode(bytes: [u8; HEAD_BYTES]) -> Result<Self, Broken> {
        let [a, b, c, d, kind, descriptors, zero, also_zero] = bytes;
        let head = Self {
            body_bytes: u32::from_le_bytes([a, b, c, d]) as usize,
            kind,
            descriptors: usize::from(descriptors),
        };
        if head.body_bytes > MESSAGE_BYTES_MAX {
            return Err(Broken("a message that is too long"));
        }
        if head.descriptors > DESCRIPTORS_MAX || (zero, also_zero) != (0, 0) {
            return Err(Broken("a head that is none"));
        }
        Ok(head)
    }
}

/// What ends a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) status: Status,
    /// The piece that went wrong.
    pub(crate) piece: u32,
}

impl Trailer {
    pub(crate) fn encode(self) -> [u8; TRAILER_BYTES] {
        let [a, b, c, d] = self.piece.to_le_bytes();
        [self.status as u8, 0, 0, 0, a, b, c, d]
    }

    pub(crate) fn decode(bytes: [u8; TRAILER_BYTES]) -> Result<Self, Broken> {
        let [status, 0, 0, 0, a, b, c, d] = bytes else {
            return Err(Broken("a chunk's end that is none"));
        };
        Ok(Self {
            status: Status::decode(status)?,
            piece: u32::from_le_bytes([a, b, c, d]),
        })
    }
}

impl Status {
    pub(super) fn decode(byte: u8) -> Result<Self, Broken> {
        Ok(match byte {
            0 => Self::Good,
            1 => Self::Gone,
            2 => Self::Unmapped,
            3 => Self::OutOfBounds,
            4 => Self::GivenUp,
            5 => Self::Device,
            _ => return Err(Broken("an unknown status")),
        })
    }
}

impl Reason {
    pub(super) fn decode(byte: u8) -> Result<Self, Broken> {
        Ok(match byte {
            0 => Self::Gone,
            1 => Self::Forged,
            2 => Self::OtherLife,
            3 => Self::Hindered,
            _ => return Err(Broken("an unknown reason")),
        })
    }
}
