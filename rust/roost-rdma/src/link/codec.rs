//! Messages to bytes and back.

use roost_core::id::{HostId, Incarnation, ProcId};

use super::bytes::{Reader, Writer};
use super::message::{Address, Broken, HEAD_BYTES, Hello, Message, PROTOCOL, Piece, Reason, Stamp, Status};
use crate::handle::Peer;
use crate::limits::{CHUNK_PIECES_MAX, LOOK_REGIONS_MAX, SUM_BYTES_MAX, SUM_SLOTS, TEXT_BYTES_MAX};

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
