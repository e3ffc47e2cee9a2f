use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use roost_core::id::{HostId, Incarnation, ProcId};

use super::*;
use crate::handle::Peer;

fn peers() -> impl Strategy<Value = Peer> {
    (1..u64::MAX, any::<u32>()).prop_map(|(proc, incarnation)| Peer {
        proc: ProcId::new(proc).expect("not zero"),
        incarnation: Incarnation(incarnation),
    })
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let piece = (any::<u64>(), 0..1_u64 << 62, 0..1_u64 << 30);
    vec(
        piece.prop_map(|(region, offset, bytes)| Piece {
            region,
            offset,
            bytes,
        }),
        0..20,
    )
}

fn addresses() -> impl Strategy<Value = Address> {
    prop_oneof![
        Just(Address::Asked),
        (any::<u64>(), any::<u32>(), any::<bool>()).prop_map(|(base, stamp, has_memory)| Address::Process {
            base,
            stamp,
            has_memory
        }),
        (any::<u64>(), any::<u64>(), any::<u32>()).prop_map(|(offset, bytes, stamp)| Address::Segment {
            offset,
            bytes,
            stamp
        }),
    ]
}

fn questions() -> impl Strategy<Value = Message> {
    let hello = (
        any::<u64>(),
        1..u64::MAX,
        peers(),
        any::<u32>(),
        option::of(vec(any::<u8>(), 0..99)),
    );
    prop_oneof![
        hello.prop_map(|(job, host, peer, pid, card)| {
            Message::Hello(Hello {
                job,
                host: HostId::new(host).expect("not zero"),
                peer,
                pid,
                card,
            })
        }),
        (any::<[u64; 2]>(), any::<[u8; 16]>(), peers(), any::<bool>()).prop_map(
            |([request, region], key, owner, wants_memory)| {
                Message::Open {
                    request,
                    region,
                    key,
                    owner,
                    wants_memory,
                }
            }
        ),
        any::<u64>().prop_map(|region| Message::Revoke { region }),
        (any::<u64>(), vec(any::<u64>(), 0..99))
            .prop_map(|(request, regions)| Message::Look { request, regions }),
        (any::<u64>(), pieces()).prop_map(|(request, pieces)| Message::Read { request, pieces }),
        (any::<u64>(), pieces()).prop_map(|(request, pieces)| Message::Write { request, pieces }),
        vec(any::<u8>(), 0..99).prop_map(|offer| Message::Offer { offer }),
        sums(),
    ]
}

fn sums() -> impl Strategy<Value = Message> {
    let piece = (any::<u64>(), 0..1_u64 << 62, 0..1_u64 << 20).prop_map(|(region, offset, bytes)| Piece {
        region,
        offset,
        bytes,
    });
    let asked = (
        any::<u64>(),
        0..16_u8,
        any::<bool>(),
        vec((piece, any::<bool>()), 0..16),
    );
    asked.prop_map(|(request, slot, goes_on, pieces)| {
        let ends = (1..).zip(&pieces).filter(|(_, (_, ends))| *ends);
        Message::Sum {
            request,
            slot,
            goes_on,
            ends: ends.map(|(at, _)| at).collect(),
            pieces: pieces.iter().map(|(piece, _)| *piece).collect(),
        }
    })
}

fn answers() -> impl Strategy<Value = Message> {
    let stamp = (any::<u64>(), any::<u64>()).prop_map(|(sequence, version)| Stamp { sequence, version });
    let status = prop_oneof![
        Just(Status::Good),
        Just(Status::Gone),
        Just(Status::Unmapped),
        Just(Status::OutOfBounds),
        Just(Status::GivenUp),
        Just(Status::Device)
    ];
    let reason = prop_oneof![
        Just(Reason::Gone),
        Just(Reason::Forged),
        Just(Reason::OtherLife),
        Just(Reason::Hindered)
    ];
    prop_oneof![
        (any::<u64>(), any::<u64>(), addresses(), vec(any::<u8>(), 0..99)).prop_map(
            |(request, bytes, address, keys)| Message::Opened {
                request,
                bytes,
                address,
                keys
            }
        ),
        (any::<u64>(), reason, ".{0,40}").prop_map(|(request, reason, text)| Message::Refused {
            request,
            reason,
            text
        }),
        any::<u64>().prop_map(|region| Message::Revoked { region }),
        (any::<u64>(), vec(stamp, 0..99)).prop_map(|(request, stamps)| Message::Looked { request, stamps }),
        (any::<u64>(), vec(any::<u64>(), 0..99)).prop_map(|(request, sums)| Message::Sums { request, sums }),
        (any::<u64>(), any::<u64>()).prop_map(|(request, bytes)| Message::Data { request, bytes }),
        (any::<u64>(), status, any::<u32>()).prop_map(|(request, status, piece)| Message::Ended {
            request,
            status,
            piece
        }),
        (vec(any::<u8>(), 0..99), option::of(".{0,40}"))
            .prop_map(|(answer, failure)| Message::Answer { answer, failure }),
    ]
}

fn decode(bytes: &[u8]) -> Result<Message, Broken> {
    let (head, body) = bytes.split_first_chunk().expect("a head");
    let head = Head::decode(*head)?;
    assert_eq!(head.body_bytes, body.len());
    Message::decode(head.kind, body)
}

proptest! {
    #[test]
    fn a_message_comes_back(message in prop_oneof![questions(), answers()], descriptors in 0..4_usize) {
        let bytes = message.encode(descriptors);
        let head = Head::decode(*bytes.first_chunk().expect("a head")).expect("a head");
        prop_assert_eq!(head.descriptors, descriptors);
        prop_assert_eq!(decode(&bytes), Ok(message));
    }

    #[test]
    fn one_that_is_cut_is_none(message in prop_oneof![questions(), answers()], cut in any::<prop::sample::Index>()) {
        let bytes = message.encode(0);
        let body = &bytes[HEAD_BYTES..];
        if !body.is_empty() {
            let body = &body[..cut.index(body.len())];
            prop_assert!(Message::decode(bytes[4], body).is_err());
        }
    }

    #[test]
    fn one_message_has_one_encoding(kind in any::<u8>(), body in vec(any::<u8>(), 0..200)) {
        if let Ok(message) = Message::decode(kind % 17, &body) {
            prop_assert_eq!(&message.encode(0)[HEAD_BYTES..], &body[..]);
        }
    }

    #[test]
    fn a_trailer_comes_back(bytes in any::<[u8; TRAILER_BYTES]>()) {
        if let Ok(trailer) = Trailer::decode(bytes) {
            prop_assert_eq!(trailer.encode(), bytes);
        }
    }
}
