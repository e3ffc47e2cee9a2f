//! The bytes of control messages, and what becomes of other bytes.

use proptest::prelude::*;

use super::*;
use crate::id::{HostId, Incarnation, MeshId, ProcId};

use crate::restart::{On, Policy, Scope, When, WhileDown};

fn proc(number: u64) -> ProcId {
    ProcId::new(number).expect("not zero")
}

fn round_trip<T: Serialize + DeserializeOwned>(message: &T) -> T {
    match encode(message).expect("it is within the limits") {
        (packet, None) => match decode(&packet).expect("its own bytes") {
            Envelope::Inline(message) => message,
            Envelope::Large { .. } => panic!("an inline packet"),
        },
        (packet, Some(long)) => {
            let Ok(Envelope::<T>::Large { length }) = decode(&packet) else {
                panic!("an announcement")
            };
            assert_eq!(length, long.len() as u64);
            decode_large(&long).expect("its own bytes")
        }
    }
}

fn spawn() -> ToAgent {
    ToAgent::Spawn(Box::new(Spawn {
        mesh: MeshId::new(2).expect("not zero"),
        name: "w".to_owned(),
        owner: proc(1),
        template: Some(TemplateKey {
            preload: vec!["t".to_owned()],
            sys_path: vec![],
        }),
        template_environ: vec![(b"A".as_slice().into(), b"1".as_slice().into())],
        policy: Some(Policy {
            limit: 3,
            within_ns: 4,
            backoff_min_ns: 5,
            backoff_max_ns: 6,
            scope: Scope::One,
            when: When::Always,
            while_down: WhileDown::Wait,
            on: On::AnyHost,
        }),
        logs: true,
        ask: false,
        ranks: vec![Rank {
            proc: proc(300),
            label: "w[0]".to_owned(),
            launch: Launch {
                spec: b"s".as_slice().into(),
                environ: None,
                command: Some(vec!["c".to_owned()]),
            },
            host: HostId::new(6).expect("not zero"),
        }],
        spares: vec![],
    }))
}

/// Both ends of a lane may come from different builds of one version: these bytes stay.
#[test]
fn golden_bytes() {
    let golden: [(ToAgent, &[u8]); 5] = [
        (ToAgent::Up, &[0, 0]),
        (ToAgent::Connect { proc: proc(300) }, &[0, 2, 0xac, 2]),
        (
            ToAgent::SegmentOffer {
                to: proc(1),
                segment: 2,
                size_bytes: 3,
            },
            &[0, 4, 1, 2, 3],
        ),
        (
            ToAgent::Kill {
                procs: vec![proc(1), proc(2)],
                reason: Some("x".to_owned()),
            },
            &[0, 12, 2, 1, 2, 1, 1, b'x'],
        ),
        (
            spawn(),
            &[
                0, 6, 2, 1, b'w', 1, 1, 1, 1, b't', 0, 1, 1, b'A', 1, b'1', 1, 3, 4, 5, 6, 0, 1, 1, 1, 1, 0,
                1, 0xac, 2, 4, b'w', b'[', b'0', b']', 1, b's', 0, 1, 1, 1, b'c', 6, 0,
            ],
        ),
    ];
    for (message, bytes) in golden {
        assert_eq!(encode(&message).expect("small").0, bytes, "{message:?}");
        assert_eq!(round_trip(&message), message);
    }
    let told = ToClient::Connected {
        proc: proc(5),
        incarnation: Incarnation(1),
        slot: Some(9),
    };
    assert_eq!(encode(&told).expect("small").0, [0, 1, 5, 1, 1, 9]);
}

#[test]
fn what_fits_no_packet_goes_beside_it() {
    let rest: Bytes = vec![7; CONTROL_PACKET_BYTES_MAX].into();
    let message = ToAgent::RecordActor {
        procs: vec![proc(1)],
        mesh: MeshId::new(2).expect("not zero"),
        start: b"start".as_slice().into(),
        rest,
    };
    let (packet, long) = encode(&message).expect("within the limits");
    assert!(packet.len() < 16 && long.is_some());
    assert_eq!(round_trip(&message), message);
}

#[test]
fn an_announcement_beyond_the_limit_is_refused_from_its_packet() {
    let packet = write(&Envelope::<()>::Large {
        length: CONTROL_MESSAGE_BYTES_MAX as u64 + 1,
    })
    .expect("small");
    assert!(matches!(
        decode::<ToAgent>(&packet),
        Err(ControlError::TooLarge { .. })
    ));
}

#[test]
fn nobody_is_not_a_proc() {
    assert!(matches!(
        decode::<ToAgent>(&[0, 2, 0]),
        Err(ControlError::Malformed { .. })
    ));
}

#[test]
fn what_follows_a_message_is_refused() {
    assert!(matches!(
        decode::<ToAgent>(&[0, 0, 0]),
        Err(ControlError::Malformed { .. })
    ));
}

#[test]
fn the_largest_notice_fits_into_a_packet() {
    use crate::limits::{DEATHS_KEPT_MAX, EARLIER_STDERR_BYTES_MAX};
    let death = |stderr: usize| Death {
        kind: DeathKind::Signal,
        exit: Some(Exit::Signal(9)),
        reason: "r".repeat(512),
        stderr: "x".repeat(stderr),
        pid: Some(u32::MAX),
        started: Some(u64::MAX),
        said: Some(u64::MAX),
        times: Times {
            started_ns: Some(u64::MAX),
            ..Times::default()
        },
        forced: true,
    };
    let status = Status::Failed {
        death: death(8 << 10),
        earlier: vec![death(EARLIER_STDERR_BYTES_MAX); DEATHS_KEPT_MAX],
    };
    let member = Member {
        epoch: u32::MAX,
        proc: proc(u64::MAX),
        incarnation: Incarnation(u32::MAX),
        status,
    };
    let (_, long) = encode(&ToClient::Member(Box::new(member))).expect("within the limits");
    assert!(long.is_none());
}

#[test]
fn all_times_of_a_message_go_into_another_clock() {
    let times = |by: u64| Times {
        started_ns: Some(1 + by),
        up_ns: None,
        died_ns: Some(3 + by),
        detected_ns: Some(4 + by),
    };
    let death = |by| Death {
        kind: DeathKind::Exit,
        exit: None,
        reason: String::new(),
        stderr: String::new(),
        pid: Some(5),
        started: Some(6),
        said: Some(7),
        times: times(by),
        forced: false,
    };
    let activities = |by| {
        vec![Activity {
            slot: 1,
            queued: 2,
            running: vec![("step".to_owned(), 7 + by)],
        }]
    };
    let mesh = MeshId::new(2).expect("not zero");
    let said = |by| {
        let status = Status::Failed {
            death: death(by),
            earlier: vec![death(by)],
        };
        let member = Member {
            epoch: 8,
            proc: proc(1),
            incarnation: Incarnation(9),
            status,
        };
        let stop = ToClient::Stop {
            reason: String::new(),
            deadline_ns: 10 + by,
        };
        let seen = ToClient::Seen {
            from: proc(1),
            mesh,
            activities: activities(by),
        };
        [ToClient::Member(Box::new(member)), stop, seen]
    };
    let mut translated = said(0);
    for message in &mut translated {
        message.translate_times(|at_ns| at_ns + 100);
    }
    assert_eq!(translated, said(100));
    let seen = |by| ToAgent::Seen {
        to: proc(1),
        mesh,
        activities: activities(by),
    };
    let mut translated = seen(0);
    translated.translate_times(|at_ns| at_ns + 100);
    assert_eq!(translated, seen(100));
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode::<ToAgent>(&bytes);
        let _ = decode::<ToClient>(&bytes);
        let _ = decode_large::<ToAgent>(&bytes);
    }

    #[test]
    fn spawns_survive_the_way(
        name in ".{0,20}",
        numbers in prop::collection::vec(1_u64.., 0..5),
        spec in prop::collection::vec(any::<u8>(), 0..100),
        environ in prop::collection::vec(("[A-Z]{1,5}", prop::collection::vec(any::<u8>(), 0..9)), 0..4),
    ) {
        let ToAgent::Spawn(mut message) = spawn() else { unreachable!() };
        let environ: Environ =
            environ.into_iter().map(|(name, value)| (name.into_bytes().into(), value.into())).collect();
        message.name = name.clone();
        message.ranks = numbers
            .into_iter()
            .map(|number| Rank {
                proc: proc(number),
                label: name.clone(),
                launch: Launch { spec: spec.clone().into(), environ: Some(environ.clone()), command: None },
                host: HostId::new(9).expect("not zero"),
            })
            .collect();
        let message = ToAgent::Spawn(message);
        prop_assert_eq!(round_trip(&message), message);
    }
}
