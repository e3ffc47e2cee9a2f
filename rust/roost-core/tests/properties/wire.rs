use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use roost_core::id::{Incarnation, JobId, MeshId, ProcId};
use roost_core::session::{Session, SessionConfig};
use roost_core::wire::{
    Bulk, BulkPart, Cancel, ChainBuffer, ChainLink, Content, Control, Credit, CreditTarget, Frame,
    FrameHeader, Goodbye, Hello, HelloError, MessageHeader, Part, PortClose, PortItem, ProtocolError,
    ReplyHeader, ReplyStatus, Run, RunsBuffer, SegmentPart, Stripe, Version, frame_length_hint,
};

/// A part with its own bytes.
#[derive(Debug, Clone)]
enum Piece {
    Inline(Vec<u8>),
    Constant(Vec<u8>),
    Segment(SegmentPart),
    Bulk(BulkPart),
}

impl Piece {
    fn part(&self) -> Part<'_> {
        match self {
            Self::Inline(bytes) => Part::Inline(bytes),
            Self::Constant(bytes) => Part::Constant(bytes),
            Self::Segment(segment) => Part::Segment(*segment),
            Self::Bulk(bulk) => Part::Bulk(*bulk),
        }
    }
}

fn piece() -> impl Strategy<Value = Piece> {
    let segment = (any::<u64>(), any::<u32>(), any::<u64>(), 0..1_u64 << 20);
    prop_oneof![
        vec(any::<u8>(), 0..200).prop_map(Piece::Inline),
        vec(any::<u8>(), 0..200).prop_map(Piece::Constant),
        (any::<u64>(), 0..1_u64 << 20).prop_map(|(bulk, length)| Piece::Bulk(BulkPart { bulk, length })),
        segment.prop_map(|(segment, generation, offset, length)| {
            Piece::Segment(SegmentPart {
                segment,
                generation,
                offset,
                length,
            })
        }),
    ]
}

fn mesh() -> impl Strategy<Value = MeshId> {
    any::<u64>().prop_filter_map("zero is nobody", MeshId::new)
}

fn run() -> impl Strategy<Value = Run> {
    (0..1000_u32, 1..50_u32, 1..9_u32, any::<u16>(), any::<u8>()).prop_map(
        |(slot, count, slot_stride, rank, stride)| Run {
            slot,
            count,
            slot_stride,
            rank: rank.into(),
            rank_stride: stride.into(),
        },
    )
}

fn link() -> impl Strategy<Value = ChainLink> {
    let proc = any::<u64>().prop_filter_map("zero is nobody", ProcId::new);
    (proc, mesh(), any::<u32>(), any::<u64>()).prop_map(|(proc, mesh, slot, call)| ChainLink {
        proc,
        mesh,
        slot,
        call,
    })
}

#[derive(Debug, Clone)]
struct OwnMessage {
    numbers: (u64, MeshId, i64, u8),
    runs: Vec<Run>,
    endpoint: String,
    sizes: Vec<u8>,
    chain: Vec<ChainLink>,
    pieces: Vec<Piece>,
}

fn own_message() -> impl Strategy<Value = OwnMessage> {
    let numbers = (any::<u64>(), mesh(), any::<i64>(), any::<u8>());
    let text = "\\PC{0,60}";
    (
        numbers,
        vec(run(), 0..5),
        text,
        vec(any::<u8>(), 0..40),
        vec(link(), 0..4),
        vec(piece(), 0..5),
    )
        .prop_map(|(numbers, runs, endpoint, sizes, chain, pieces)| OwnMessage {
            numbers,
            runs,
            endpoint,
            sizes,
            chain,
            pieces,
        })
}

/// Writes one frame the way a proc does, and gives it to `check` as it is read back.
fn round_trip<H: FrameHeader>(header: &H, pieces: &[Piece], check: impl FnOnce(Content<'_>)) -> Vec<u8> {
    let parts = pieces.iter().map(Piece::part).collect::<Vec<_>>();
    let mut session = Session::new(SessionConfig::default());
    session.set_epoch(7);
    session.push(header, &parts).expect("within all limits");
    let bytes = session.unsent().collect::<Vec<_>>().concat();
    assert_eq!(frame_length_hint(&bytes), Ok(Some(bytes.len())));
    let frame = Frame::decode(&bytes)
        .expect("what was written is right")
        .expect("and whole");
    assert_eq!(
        (frame.head.sequence, frame.head.acknowledged, frame.head.epoch),
        (1, 0, 7)
    );
    check(frame.content);
    bytes
}

fn write(own: &OwnMessage, check: impl FnOnce(&MessageHeader<'_>, Content<'_>)) -> Vec<u8> {
    let (mut runs, mut chain) = (RunsBuffer::new(), ChainBuffer::new());
    own.runs
        .iter()
        .for_each(|run| runs.push(*run).expect("a possible run"));
    own.chain
        .iter()
        .for_each(|link| chain.push(*link).expect("a short chain"));
    let (call, mesh, deadline_ns, flags) = own.numbers;
    let header = MessageHeader {
        call,
        mesh,
        deadline_ns,
        flags,
        runs: runs.as_runs(),
        endpoint: &own.endpoint,
        sizes: &own.sizes,
        chain: chain.as_chain(),
    };
    round_trip(&header, &own.pieces, |content| check(&header, content))
}

fn same_parts(pieces: &[Piece], content: Content<'_>) {
    let (Content::Message(_, parts) | Content::Reply(_, parts) | Content::PortItem(_, parts)) = content
    else {
        panic!("a kind with parts");
    };
    assert!(parts.iter().eq(pieces.iter().map(Piece::part)));
    assert_eq!(parts.count(), pieces.len());
    assert_eq!(
        parts.bytes(),
        pieces.iter().map(|piece| piece.part().length()).sum::<u64>()
    );
    let single = match pieces {
        [Piece::Inline(bytes)] => Some(&**bytes),
        _ => None,
    };
    assert_eq!(parts.single_inline(), single);
}

proptest! {
    #[test]
    fn messages_come_out_as_they_went_in(own in own_message()) {
        write(&own, |header, content| {
            same_parts(&own.pieces, content);
            let Content::Message(read, _) = content else { panic!("a message") };
            assert_eq!(&read, header);
            assert!(read.runs.iter().eq(own.runs.iter().copied()));
            assert!(read.chain.iter().eq(own.chain.iter().copied()));
            let targets = own.runs.iter().flat_map(|run| {
                (0..run.count).map(|step| (run.slot + step * run.slot_stride, run.rank + step * run.rank_stride))
            });
            assert!(read.runs.targets().eq(targets));
        });
    }

    #[test]
    fn replies_and_port_items_come_out_as_they_went_in(
        call: u64, rank: u32, flags: u8, status in 0..5_usize, pieces in vec(piece(), 0..5),
    ) {
        use ReplyStatus::{Dropped, End, Error, Item, Value};
        let status = [Value, Error, Item, End, Dropped][status];
        let reply = ReplyHeader { call, rank, status, flags };
        round_trip(&reply, &pieces, |content| {
            same_parts(&pieces, content);
            assert!(matches!(content, Content::Reply(read, _) if read == reply));
        });
        let item = PortItem { port: call, flags };
        round_trip(&item, &pieces, |content| {
            same_parts(&pieces, content);
            assert!(matches!(content, Content::PortItem(read, _) if read == item));
        });
    }

    #[test]
    fn small_kinds_come_out_as_they_went_in(
        number: u64, mesh in mesh(), slot in option::of(0..u32::MAX), rank: u32, flags: u8, bytes: u64,
    ) {
        let target = match slot {
            Some(slot) => CreditTarget::Actor { mesh, slot },
            None => CreditTarget::Port(number),
        };
        let cancel = Cancel { call: number, rank, flags };
        round_trip(&cancel, &[], |content| assert_eq!(content, Content::Cancel(cancel)));
        let credit = Credit { target, messages: number, bytes };
        round_trip(&credit, &[], |content| assert_eq!(content, Content::Credit(credit)));
        let close = PortClose { port: number, reason: flags, flags };
        round_trip(&close, &[], |content| assert_eq!(content, Content::PortClose(close)));
        let goodbye = Goodbye { taken: number, reason: flags };
        round_trip(&goodbye, &[], |content| assert_eq!(content, Content::Goodbye(goodbye)));
    }

    #[test]
    fn bytes_alone_come_out_as_they_went_in(
        bulk in 1_u64.., offset in 0..1_u64 << 30, after in 0..1_u64 << 30, bytes in vec(any::<u8>(), 0..200),
        constant in any::<bool>(),
    ) {
        let length = offset + bytes.len() as u64 + after;
        let header = Bulk { bulk, length, offset, given_up: bytes.is_empty(), constant };
        let piece = [Piece::Inline(bytes.clone())];
        round_trip(&header, &piece, |content| assert_eq!(content, Content::Bulk(header, &bytes)));
        round_trip(&Control, &piece, |content| assert_eq!(content, Content::Control(&bytes)));
    }

    #[test]
    fn a_frame_is_read_whole_or_not_at_all(own in own_message()) {
        let bytes = write(&own, |_, _| {});
        for length in 0..bytes.len() {
            prop_assert_eq!(Frame::decode(&bytes[..length]), Ok(None));
        }
    }

    #[test]
    fn no_bytes_make_a_decoder_panic(bytes in vec(any::<u8>(), 0..300)) {
        walk(&bytes);
    }

    #[test]
    fn no_change_to_a_frame_makes_a_decoder_panic(
        own in own_message(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = write(&own, |_, _| {});
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        walk(&bytes);
    }

    #[test]
    fn a_hello_comes_out_as_it_went_in(
        job: [u8; 16], proc in 1_u64.., to: u64, incarnation: u32, minor: u16, roost: (u16, u16, u16), python: (u8, u8),
        link in 0..1_u32 << 24, index: u8,
    ) {
        let link = (link > 0).then_some(Stripe { link, index });
        let version = Version { protocol_minor: minor, ..Version::ours(roost, python) };
        let proc = ProcId::new(proc).expect("not zero");
        let hello = Hello { version, job: JobId(job), proc, incarnation: Incarnation(incarnation), to: ProcId::new(to), link };
        let ours = Hello { version: Version::ours((9, 9, 9), (3, 11)), ..hello };
        prop_assert_eq!(Hello::decode(&hello.encode(), &ours), Ok(hello));
    }

    #[test]
    fn no_bytes_make_a_hello_panic(bytes: [u8; 32], magic: bool, changed in 0..64_usize, value: u8) {
        let proc = ProcId::new(1).expect("not zero");
        let version = Version::ours((0, 1, 0), (3, 11));
        let ours = Hello { version, job: JobId([1; 16]), proc, incarnation: Incarnation(0), to: None, link: None };
        let mut hello = ours.encode();
        hello[32..].copy_from_slice(&bytes);
        if magic {
            hello[changed] = value;
        } else {
            hello[..32].copy_from_slice(&bytes);
        }
        let read = Hello::decode(&hello, &ours);
        if !magic && bytes[..8] != *b"ROOST\r\n\x1a" {
            let refused = matches!(read, Err(HelloError::NotRoost { .. }));
            prop_assert!(refused);
        }
    }
}

/// Reads everything there is to read in these bytes.
fn walk(bytes: &[u8]) {
    let _ = frame_length_hint(bytes);
    let Ok(Some(frame)) = Frame::decode(bytes) else {
        return;
    };
    match frame.content {
        Content::Message(message, parts) => {
            let targets = message.runs.targets().count();
            assert_eq!(
                targets == 1 && message.runs.count() == 1,
                message.runs.one().is_some()
            );
            assert_eq!(message.chain.iter().count(), message.chain.count());
            assert_eq!(parts.iter().count(), parts.count());
        }
        Content::Reply(_, parts) | Content::PortItem(_, parts) => {
            assert_eq!(parts.iter().count(), parts.count());
        }
        _ => {}
    }
}

#[test]
fn limits_are_seen_in_the_head() {
    let mut head = [0; 32];
    head[4] = 2;
    head[8] = 1;
    head[..4].copy_from_slice(&(64_u32 << 20).to_le_bytes());
    assert_eq!(frame_length_hint(&head), Ok(Some((64 << 20) + 32)));
    head[..4].copy_from_slice(&((64_u32 << 20) + 1).to_le_bytes());
    assert_eq!(
        frame_length_hint(&head),
        Err(ProtocolError::FrameTooLarge {
            length: (64 << 20) + 1
        })
    );
}

#[test]
fn a_run_cannot_make_a_receiver_loop_for_ever() {
    let mut runs = RunsBuffer::new();
    let long = Run {
        slot: 0,
        count: 1 << 20,
        slot_stride: 1,
        rank: 0,
        rank_stride: 1,
    };
    runs.push(long).expect("as many actors as there may be");
    assert!(runs.push(Run::one(0, 0)).is_err());
    for bad in [
        Run { count: 0, ..long },
        Run {
            slot_stride: 0,
            ..long
        },
        Run {
            slot: u32::MAX - 10,
            ..long
        },
        Run {
            rank_stride: u32::MAX,
            ..long
        },
        Run::one(u32::MAX, 0),
    ] {
        assert!(RunsBuffer::new().push(bad).is_err(), "{bad:?}");
    }
}
