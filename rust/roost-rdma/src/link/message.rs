//! The messages and their bytes, all little-endian.
//!
//! A message is a head of 8 bytes (length of the body, kind, descriptors that go with it, two zeros) and a body. `Data` and
//! `Write` are followed by as many bytes as they say, and those by a trailer: whether the bytes are worth anything is known
//! only when the last of them was taken from memory.

use roost_core::id::{HostId, Incarnation, ProcId};

use super::bytes::{Reader, Writer};
use crate::handle::{Key, Peer};
use crate::limits::{
    CHUNK_PIECES_MAX, DESCRIPTORS_MAX, LOOK_REGIONS_MAX, MESSAGE_BYTES_MAX, SUM_BYTES_MAX, SUM_SLOTS,
    TEXT_BYTES_MAX,
};

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
    fn decode(byte: u8) -> Result<Self, Broken> {
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
    fn decode(byte: u8) -> Result<Self, Broken> {
        Ok(match byte {
            0 => Self::Gone,
            1 => Self::Forged,
            2 => Self::OtherLife,
            3 => Self::Hindered,
            _ => return Err(Broken("an unknown reason")),
        })
    }
}

impl Message {
    fn kind(&self) -> u8 {
        match self {
            Self::Hello(_) => 0,
            Self::Open { .. } => 1,
            Self::Opened { .. } => 2,
            Self::Refused { .. } => 3,
            Self::Revoke { .. } => 4,
            Self::Revoked { .. } => 5,
            Self::Look { .. } => 6,
            Self::Looked { .. } => 7,
            Self::Read { .. } => 8,
            Self::Data { .. } => 9,
            Self::Write { .. } => 10,
            Self::Ended { .. } => 11,
            Self::Offer { .. } => 12,
            Self::Answer { .. } => 13,
            Self::Sum { .. } => 14,
            Self::Sums { .. } => 15,
        }
    }

    /// Bytes that follow it, where a chunk does.
    pub(crate) fn chunk_bytes(&self) -> Option<u64> {
        match self {
            Self::Data { bytes, .. } => Some(*bytes),
            Self::Write { pieces, .. } => Some(pieces.iter().map(|piece| piece.bytes).sum()),
            _ => None,
        }
    }

    /// Head and body.
    pub(crate) fn encode(&self, descriptors: usize) -> Vec<u8> {
        let mut to = Writer::new(HEAD_BYTES);
        self.encode_body(&mut to);
        let mut bytes = to.finish();
        let body = u32::try_from(bytes.len() - HEAD_BYTES).expect("messages are far smaller");
        bytes[..4].copy_from_slice(&body.to_le_bytes());
        bytes[4] = self.kind();
        bytes[5] = u8::try_from(descriptors).expect("a few");
        bytes
    }

    fn encode_body(&self, to: &mut Writer) {
        match self {
            Self::Hello(hello) => {
                to.u16(PROTOCOL);
                to.u64(hello.job);
                to.u64(hello.host.get());
                put_peer(to, hello.peer);
                to.u32(hello.pid);
                to.option(hello.card.as_ref(), |to, card| to.bytes(card));
            }
            Self::Open {
                request,
                region,
                key,
                owner,
                wants_memory,
            } => {
                to.u64(*request);
                to.u64(*region);
                to.raw(key);
                put_peer(to, *owner);
                to.flag(*wants_memory);
            }
            Self::Opened {
                request,
                bytes,
                address,
                keys,
            } => {
                to.u64(*request);
                to.u64(*bytes);
                address.encode(to);
                to.bytes(keys);
            }
            Self::Refused {
                request,
                reason,
                text,
            } => {
                to.u64(*request);
                to.u8(*reason as u8);
                to.text(text);
            }
            Self::Revoke { region } | Self::Revoked { region } => to.u64(*region),
            other => other.encode_work(to),
        }
    }

    /// The bodies of what comes often.
    fn encode_work(&self, to: &mut Writer) {
        match self {
            Self::Look { request, regions } => {
                to.u64(*request);
                to.list(regions, |to, region| to.u64(*region));
            }
            Self::Looked { request, stamps } => {
                to.u64(*request);
                to.list(stamps, |to, stamp| {
                    to.u64(stamp.sequence);
                    to.u64(stamp.version);
                });
            }
            Self::Read { request, pieces } | Self::Write { request, pieces } => {
                to.u64(*request);
                put_pieces(to, pieces);
            }
            Self::Sum {
                request,
                slot,
                goes_on,
                pieces,
                ends,
            } => {
                to.u64(*request);
                to.u8(*slot);
                to.flag(*goes_on);
                put_pieces(to, pieces);
                to.list(ends, |to, end| to.u32(*end));
            }
            Self::Sums { request, sums } => {
                to.u64(*request);
                to.list(sums, |to, sum| to.u64(*sum));
            }
            Self::Data {
                request,
                bytes: number,
            } => {
                to.u64(*request);
                to.u64(*number);
            }
            Self::Ended {
                request,
                status,
                piece,
            } => {
                to.u64(*request);
                to.u8(*status as u8);
                to.u32(*piece);
            }
            Self::Offer { offer } => to.bytes(offer),
            Self::Answer { answer, failure } => {
                to.bytes(answer);
                to.option(failure.as_ref(), |to, failure| to.text(failure));
            }
            // Those of `encode_body`.
            _ => {}
        }
    }

    /// The message of this kind with this body.
    pub(crate) fn decode(kind: u8, body: &[u8]) -> Result<Self, Broken> {
        let mut from = Reader::new(body);
        let message = Self::decode_body(kind, &mut from)?;
        from.end()?;
        Ok(message)
    }

    fn decode_body(kind: u8, from: &mut Reader<'_>) -> Result<Self, Broken> {
        Ok(match kind {
            0 => Self::Hello(take_hello(from)?),
            1 => Self::Open {
                request: from.u64()?,
                region: from.u64()?,
                key: from.array()?,
                owner: take_peer(from)?,
                wants_memory: from.flag()?,
            },
            2 => Self::Opened {
                request: from.u64()?,
                bytes: from.u64()?,
                address: Address::decode(from)?,
                keys: from.bytes()?,
            },
            3 => Self::Refused {
                request: from.u64()?,
                reason: Reason::decode(from.u8()?)?,
                text: from.text(TEXT_BYTES_MAX)?,
            },
            4 => Self::Revoke { region: from.u64()? },
            5 => Self::Revoked { region: from.u64()? },
            6 => Self::Look {
                request: from.u64()?,
                regions: from.list(LOOK_REGIONS_MAX, Reader::u64)?,
            },
            7 => Self::Looked {
                request: from.u64()?,
                stamps: from.list(LOOK_REGIONS_MAX, |from| {
                    Ok(Stamp {
                        sequence: from.u64()?,
                        version: from.u64()?,
                    })
                })?,
            },
            8 => Self::Read {
                request: from.u64()?,
                pieces: take_pieces(from)?,
            },
            9 => Self::Data {
                request: from.u64()?,
                bytes: from.u64()?,
            },
            10 => Self::Write {
                request: from.u64()?,
                pieces: take_pieces(from)?,
            },
            11 => Self::Ended {
                request: from.u64()?,
                status: Status::decode(from.u8()?)?,
                piece: from.u32()?,
            },
            12 => Self::Offer { offer: from.bytes()? },
            13 => Self::Answer {
                answer: from.bytes()?,
                failure: from.option(|from| from.text(TEXT_BYTES_MAX))?,
            },
            14 => take_sum(from)?,
            15 => Self::Sums {
                request: from.u64()?,
                sums: from.list(CHUNK_PIECES_MAX, Reader::u64)?,
            },
            _ => return Err(Broken("an unknown kind")),
        })
    }
}

impl Address {
    fn encode(self, to: &mut Writer) {
        match self {
            Self::Asked => to.u8(0),
            Self::Process {
                base,
                stamp,
                has_memory,
            } => {
                to.u8(1);
                to.u64(base);
                to.u32(stamp);
                to.flag(has_memory);
            }
            Self::Segment { offset, bytes, stamp } => {
                to.u8(2);
                to.u64(offset);
                to.u64(bytes);
                to.u32(stamp);
            }
        }
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self, Broken> {
        Ok(match from.u8()? {
            0 => Self::Asked,
            1 => Self::Process {
                base: from.u64()?,
                stamp: from.u32()?,
                has_memory: from.flag()?,
            },
            2 => Self::Segment {
                offset: from.u64()?,
                bytes: from.u64()?,
                stamp: from.u32()?,
            },
            _ => return Err(Broken("an unknown kind of address")),
        })
    }
}

fn put_peer(to: &mut Writer, peer: Peer) {
    to.u64(peer.proc.get());
    to.u32(peer.incarnation.0);
}

fn take_peer(from: &mut Reader<'_>) -> Result<Peer, Broken> {
    let proc = ProcId::new(from.u64()?).ok_or(Broken("a process without a number"))?;
    Ok(Peer {
        proc,
        incarnation: Incarnation(from.u32()?),
    })
}

fn take_hello(from: &mut Reader<'_>) -> Result<Hello, Broken> {
    if from.u16()? != PROTOCOL {
        return Err(Broken("another version of the protocol"));
    }
    let job = from.u64()?;
    let host = HostId::new(from.u64()?).ok_or(Broken("a host without a number"))?;
    let peer = take_peer(from)?;
    let pid = from.u32()?;
    let card = from.option(Reader::bytes)?;
    Ok(Hello {
        job,
        host,
        peer,
        pid,
        card,
    })
}

fn put_pieces(to: &mut Writer, pieces: &[Piece]) {
    to.list(pieces, |to, piece| {
        to.u64(piece.region);
        to.u64(piece.offset);
        to.u64(piece.bytes);
    });
}

/// No more bytes than may be summed at once, and parts that end one after the other.
fn take_sum(from: &mut Reader<'_>) -> Result<Message, Broken> {
    let (request, slot, goes_on) = (from.u64()?, from.u8()?, from.flag()?);
    let pieces = take_pieces(from)?;
    let ends = from.list(CHUNK_PIECES_MAX, Reader::u32)?;
    let bytes: u64 = pieces.iter().map(|piece| piece.bytes).sum();
    let is_in_order = ends.is_sorted_by(|one, next| one < next)
        && ends.first().is_none_or(|first| *first > 0)
        && ends.last().is_none_or(|last| *last as usize <= pieces.len());
    if slot >= SUM_SLOTS || bytes > SUM_BYTES_MAX || !is_in_order {
        return Err(Broken("a question for sums that nobody asks"));
    }
    Ok(Message::Sum {
        request,
        slot,
        goes_on,
        pieces,
        ends,
    })
}

/// Their sum fits a chunk: nobody has to add up what a peer says.
fn take_pieces(from: &mut Reader<'_>) -> Result<Vec<Piece>, Broken> {
    let pieces = from.list(CHUNK_PIECES_MAX, |from| {
        Ok(Piece {
            region: from.u64()?,
            offset: from.u64()?,
            bytes: from.u64()?,
        })
    })?;
    let mut total = 0_u64;
    for piece in &pieces {
        total = total
            .checked_add(piece.bytes)
            .ok_or(Broken("more bytes than there are"))?;
        piece
            .offset
            .checked_add(piece.bytes)
            .ok_or(Broken("a piece past the end of all memory"))?;
    }
    Ok(pieces)
}
