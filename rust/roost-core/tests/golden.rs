//! Bytes of each protocol version, kept for ever: what an old release wrote must be read, and what this release
//! writes must be what it wrote.

use roost_core::id::{Incarnation, JobId, MeshId, ProcId};
use roost_core::session::{Session, SessionConfig};
use roost_core::wire::{
    Bulk, BulkPart, Cancel, Chain, ChainBuffer, ChainLink, Content, Control, Credit, CreditTarget, Frame,
    FrameHeader, Goodbye, Hello, HelloError, MessageHeader, OneRun, Part, PortClose, PortItem, ProtocolError,
    ReplyHeader, ReplyStatus, Resume, Run, RunsBuffer, SegmentPart, Version,
};

/// Each line is a name and the bytes in hexadecimal.
const VERSION_1_0: &str = include_str!("golden/1.0.txt");

fn golden(name: &str) -> Vec<u8> {
    let line = VERSION_1_0
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let digits = line
        .unwrap_or_else(|| panic!("no golden bytes for {name}"))
        .replace(' ', "");
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .join(" ")
}

fn mesh(number: u64) -> MeshId {
    MeshId::new(number).expect("not zero")
}

fn proc(number: u64) -> ProcId {
    ProcId::new(number).expect("not zero")
}

/// Writes a frame in a session that stands at fixed numbers, and reads the golden one.
fn check<H: FrameHeader>(name: &str, header: &H, parts: &[Part<'_>], expect: impl FnOnce(Content<'_>)) {
    let mut session = Session::new(SessionConfig::default());
    session.set_epoch(0x0a0b_0c0d);
    session.push(header, parts).expect("within all limits");
    let bytes = session.unsent().collect::<Vec<_>>().concat();
    assert_eq!(hex(&bytes), hex(&golden(name)), "{name}");
    let bytes = golden(name);
    let frame = Frame::decode(&bytes)
        .expect("golden bytes are right")
        .expect("and whole");
    assert_eq!(
        (frame.head.sequence, frame.head.acknowledged, frame.head.epoch),
        (1, 0, 0x0a0b_0c0d)
    );
    expect(frame.content);
}

#[test]
fn hello() {
    let version = Version {
        protocol_major: 1,
        protocol_minor: 0,
        roost: (0, 1, 0),
        python: (3, 11),
    };
    let job = JobId(std::array::from_fn(|at| {
        0xa0 + u8::try_from(at).expect("below 16")
    }));
    let hello = Hello {
        version,
        job,
        proc: proc(0x0102_0304_0506_0708),
        incarnation: Incarnation(9),
        to: None,
        link: None,
    };
    assert_eq!(hex(&hello.encode()), hex(&golden("hello")));
    let bytes: [u8; Hello::BYTES] = golden("hello").try_into().expect("64 bytes");
    assert_eq!(Hello::decode(&bytes, &hello), Ok(hello));
    let called = Hello {
        to: ProcId::new(0x1112_1314_1516_1718),
        ..hello
    };
    assert_eq!(hex(&called.encode()), hex(&golden("hello-to")));
    assert_eq!(Hello::decode(&called.encode(), &hello), Ok(called));

    assert_eq!(hello.expect(hello.proc, Incarnation(9)), Ok(()));
    assert!(matches!(
        hello.expect(hello.proc, Incarnation(8)),
        Err(HelloError::UnexpectedPeer { .. })
    ));
    let other = Hello {
        job: JobId([0; 16]),
        ..hello
    };
    assert_eq!(
        Hello::decode(&bytes, &other),
        Err(HelloError::OtherJob {
            ours: other.job,
            theirs: job
        })
    );
    let ours = Version {
        protocol_major: 2,
        ..version
    };
    let error = HelloError::VersionMismatch {
        ours,
        theirs: version,
    };
    assert_eq!(
        Hello::decode(
            &bytes,
            &Hello {
                version: ours,
                ..hello
            }
        ),
        Err(error)
    );
    assert_eq!(
        error.to_string(),
        "roost 0.1.0 (protocol 1.0, python 3.11) cannot talk to roost 0.1.0 (protocol 2.0, python 3.11)"
    );
}

#[test]
fn resume() {
    let resume = Resume {
        session: 0x1122_3344_5566_7788,
        connection: 3,
        received: 5,
    };
    assert_eq!(hex(&resume.encode()), hex(&golden("resume")));
    assert_eq!(
        Resume::decode(&golden("resume").try_into().expect("24 bytes")),
        resume
    );
}

#[test]
fn usual_message() {
    let run = OneRun::new(3, 5).expect("a slot");
    let header = MessageHeader {
        call: 0x0102_0304_0506_0708,
        mesh: mesh(0x1112_1314_1516_1718),
        deadline_ns: 0,
        flags: 0,
        runs: run.as_runs(),
        endpoint: "step",
        sizes: b"",
        chain: Chain::EMPTY,
    };
    check("message", &header, &[Part::Inline(b"pickle")], |content| {
        let Content::Message(read, parts) = content else {
            panic!("a message")
        };
        assert_eq!(
            (read.call, read.mesh, read.endpoint),
            (header.call, header.mesh, "step")
        );
        assert_eq!(
            (read.runs.one(), parts.single_inline()),
            (Some((3, 5)), Some(&b"pickle"[..]))
        );
    });
}

#[test]
fn cast_with_everything() {
    let (mut runs, mut chain) = (RunsBuffer::new(), ChainBuffer::new());
    runs.push(Run {
        slot: 0,
        count: 4,
        slot_stride: 2,
        rank: 8,
        rank_stride: 1,
    })
    .expect("a possible run");
    runs.push(Run::one(9, 12)).expect("a possible run");
    let link = ChainLink {
        proc: proc(0x21),
        mesh: mesh(0x22),
        slot: 0x23,
        call: 0x24,
    };
    chain.push(link).expect("a short chain");
    let header = MessageHeader {
        call: 0,
        mesh: mesh(1),
        deadline_ns: -2,
        flags: 0x81,
        runs: runs.as_runs(),
        endpoint: "überschreiben",
        sizes: b"gpus=5",
        chain: chain.as_chain(),
    };
    let segment = SegmentPart {
        segment: 0x31,
        generation: 0x32,
        offset: 0x33,
        length: 0x34,
    };
    let parts = [
        Part::Inline(b"pickle"),
        Part::Segment(segment),
        Part::Inline(b""),
        Part::Inline(b"buffer"),
    ];
    check("message-full", &header, &parts, |content| {
        let Content::Message(read, read_parts) = content else {
            panic!("a message")
        };
        assert_eq!(
            (read.flags, read.deadline_ns, read.sizes),
            (0x81, -2, &b"gpus=5"[..])
        );
        assert_eq!(read.endpoint, "überschreiben");
        assert!(
            read.runs
                .targets()
                .eq([(0, 8), (2, 9), (4, 10), (6, 11), (9, 12)])
        );
        assert!(read.chain.iter().eq([link]));
        assert!(read_parts.iter().eq(parts));
    });
}

#[test]
fn what_flows_back() {
    let reply = ReplyHeader {
        call: 0x41,
        rank: 0x42,
        status: ReplyStatus::Error,
        flags: 0x43,
    };
    check("reply", &reply, &[Part::Inline(b"boom")], |content| {
        assert!(matches!(content, Content::Reply(read, parts)
            if read == reply && parts.single_inline() == Some(b"boom")));
    });
    let cancel = Cancel {
        call: 0x51,
        rank: Cancel::ALL_RANKS,
        flags: 0,
    };
    check("cancel", &cancel, &[], |content| {
        assert_eq!(content, Content::Cancel(cancel));
    });
    let target = CreditTarget::Actor {
        mesh: mesh(0x61),
        slot: 0x62,
    };
    let credit = Credit {
        target,
        messages: 0x63,
        bytes: 0x64,
    };
    check("credit", &credit, &[], |content| {
        assert_eq!(content, Content::Credit(credit));
    });
    let credit = Credit {
        target: CreditTarget::Port(0x65),
        ..credit
    };
    check("credit-port", &credit, &[], |content| {
        assert_eq!(content, Content::Credit(credit));
    });
    let item = PortItem {
        port: 0x71,
        flags: 0x72,
    };
    check("port-item", &item, &[Part::Inline(b"item")], |content| {
        assert!(matches!(content, Content::PortItem(read, parts)
            if read == item && parts.single_inline() == Some(b"item")));
    });
    let close = PortClose {
        port: 0x81,
        reason: 0x82,
        flags: 0x83,
    };
    check("port-close", &close, &[], |content| {
        assert_eq!(content, Content::PortClose(close));
    });
    let goodbye = Goodbye {
        taken: 0x91,
        reason: 0x92,
    };
    check("goodbye", &goodbye, &[], |content| {
        assert_eq!(content, Content::Goodbye(goodbye));
    });
}

#[test]
fn parts_that_travel_ahead() {
    let bulk = Bulk {
        bulk: 0xa1,
        length: 0xa2,
        offset: 0xa0,
        given_up: false,
        constant: false,
    };
    check("bulk", &bulk, &[Part::Inline(b"xy")], |content| {
        assert_eq!(content, Content::Bulk(bulk, b"xy"));
    });
    let given_up = Bulk {
        given_up: true,
        ..bulk
    };
    check("bulk-given-up", &given_up, &[Part::Inline(b"")], |content| {
        assert_eq!(content, Content::Bulk(given_up, b""));
    });
    let constant = Bulk {
        constant: true,
        ..bulk
    };
    check("bulk-constant", &constant, &[Part::Inline(b"xy")], |content| {
        assert_eq!(content, Content::Bulk(constant, b"xy"));
    });
    let item = PortItem { port: 0x71, flags: 0 };
    let parts = [
        Part::Inline(b"pickle"),
        Part::Bulk(BulkPart {
            bulk: 0xa1,
            length: 0xa2,
        }),
    ];
    check("port-item-bulk", &item, &parts, |content| {
        let Content::PortItem(read, read_parts) = content else {
            panic!("an item")
        };
        assert_eq!((read, read_parts.bytes()), (item, 0xa2 + 6));
        assert!(read_parts.iter().eq(parts));
    });
}

#[test]
fn a_piece_lies_within_its_part() {
    let bytes = golden("bulk");
    let refused = |at: usize, value: u8| {
        let mut bytes = bytes.clone();
        bytes[at] = value;
        Frame::decode(&bytes).expect_err("no such piece")
    };
    // Past the end, of no part, and given up with bytes.
    assert!(matches!(refused(48, 0xa1), ProtocolError::BadBulk { .. }));
    assert_eq!(refused(32, 0), ProtocolError::ZeroId { field: "bulk" });
    assert!(matches!(refused(5, 1), ProtocolError::BadBulk { .. }));
    assert!(matches!(refused(46, 1), ProtocolError::TooMany { .. }));
}

#[test]
fn control_connections() {
    check("control", &Control, &[Part::Inline(b"word")], |content| {
        assert_eq!(content, Content::Control(b"word"));
    });
}

#[test]
fn acknowledgement() {
    let mut session = Session::new(SessionConfig::default());
    session.set_epoch(1);
    session.push_ack();
    let bytes = session.unsent().collect::<Vec<_>>().concat();
    assert_eq!(hex(&bytes), hex(&golden("ack")));
    let bytes = golden("ack");
    let frame = Frame::decode(&bytes)
        .expect("golden bytes are right")
        .expect("and whole");
    assert_eq!(frame.content, Content::Ack);
}

#[test]
fn a_later_minor_version_may_add_fields() {
    let mut bytes = golden("cancel");
    bytes.extend_from_slice(b"new!");
    bytes[0] += 4;
    bytes[28] += 4;
    bytes[6] = 0xff;
    let frame = Frame::decode(&bytes)
        .expect("fields are passed over")
        .expect("and whole");
    assert!(matches!(
        frame.content,
        Content::Cancel(Cancel { call: 0x51, .. })
    ));
}
