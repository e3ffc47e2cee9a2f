//! Data lanes, segments, and who hears what.

use super::*;

fn pairs(rig: &mut Rig) -> Vec<(u64, u64)> {
    let pair = |output| match output {
        Output::Pair { first, second } => Some((first.proc.get(), second.proc.get())),
        _ => None,
    };
    rig.take().into_iter().filter_map(pair).collect()
}

#[test]
fn a_lane_is_made_once_whoever_asks() {
    let mut rig = Rig::with(spawn(&[1, 2]));
    rig.say(1, ToAgent::Connect { proc: proc(2) });
    rig.say(2, ToAgent::Connect { proc: proc(1) });
    rig.say(DRIVER, ToAgent::Connect { proc: proc(1) });
    assert_eq!(pairs(&mut rig), [(1, 2)], "the owner had its lane from the start");
    // A lane whose descriptor got lost may be made again; who has its other end hears that it leads nowhere.
    rig.say(
        1,
        ToAgent::ConnectLost {
            proc: proc(2),
            reason: "has no file descriptors left for a data lane".to_owned(),
        },
    );
    assert_eq!(
        rig.notices(2),
        [ToClient::ConnectFailed {
            proc: proc(1),
            reason: "workers[1] has no file descriptors left for a data lane".to_owned()
        }]
    );
    rig.say(1, ToAgent::Connect { proc: proc(2) });
    assert_eq!(pairs(&mut rig), [(1, 2)]);
}

#[test]
fn a_lane_to_a_proc_that_is_down_waits() {
    let mut rig = Rig::with(Spawn {
        policy: Some(policy(1)),
        ..spawn(&[1, 2])
    });
    rig.crash(2, 0);
    rig.take();
    rig.say(1, ToAgent::Connect { proc: proc(2) });
    assert_eq!(pairs(&mut rig), []);
    rig.wait(SECOND);
    assert_eq!(pairs(&mut rig), [], "its process is still being made");
    rig.come_up(2, 1);
    assert_eq!(pairs(&mut rig), [(1, 2)]);
    // The second death is the last, so who waits is told.
    rig.input(Input::Died {
        proc: proc(2),
        incarnation: Incarnation(1),
        seen: Seen::default(),
    });
    rig.say(1, ToAgent::Connect { proc: proc(2) });
    rig.take();
    rig.wait(50 * MS);
    let notices = rig.notices(1);
    assert!(
        matches!(notices.last(), Some(ToClient::ConnectFailed { proc: target, .. }) if *target == proc(2))
    );
    // And so is who comes later, with the last word on it before.
    rig.say(1, ToAgent::Connect { proc: proc(2) });
    let notices = rig.notices(1);
    assert!(
        matches!(notices.as_slice(), [ToClient::Member(member), ToClient::ConnectFailed { .. }]
        if matches!(member.status, Status::Failed { .. }))
    );
}

#[test]
fn who_asks_for_nobody_is_told() {
    let mut rig = Rig::with(spawn(&[1]));
    for target in [99, 1] {
        rig.say(1, ToAgent::Connect { proc: proc(target) });
        assert!(matches!(
            rig.notices(1).as_slice(),
            [ToClient::ConnectFailed { .. }]
        ));
    }
}

#[test]
fn a_lane_that_could_not_be_made_is_told_to_both() {
    let mut rig = Rig::with(spawn(&[1, 2]));
    rig.say(1, ToAgent::Connect { proc: proc(2) });
    rig.take();
    let reason = "no file descriptors left".to_owned();
    rig.input(Input::PairFailed {
        first: proc(1),
        second: proc(2),
        reason,
    });
    let told = |output: &Output| {
        matches!(
            output,
            Output::Send {
                message: ToClient::ConnectFailed { .. },
                ..
            }
        )
    };
    assert_eq!(rig.take().iter().filter(|output| told(output)).count(), 2);
    rig.say(2, ToAgent::Connect { proc: proc(1) });
    assert_eq!(pairs(&mut rig), [(2, 1)]);
}

#[test]
fn each_receiver_hears_which_of_its_own_messages_were_started_and_what_it_was_sent() {
    let mut rig = Rig::with(spawn(&[1, 2, 3]));
    rig.say(2, ToAgent::Connect { proc: proc(1) });
    let slot = rig.take().into_iter().find_map(|output| match output {
        Output::Pair { second, .. } => second.slot,
        _ => None,
    });
    assert_eq!(slot, Some(1), "slot 0 is the owner's");
    let seen = Seen {
        exit: Some(Exit::Signal(9)),
        started: vec![40, 41],
        said: vec![50],
        ..Seen::default()
    };
    rig.input(Input::Died {
        proc: proc(1),
        incarnation: Incarnation(0),
        seen,
    });
    let said = rig.take();
    let started = |receiver: u64| {
        said.iter().find_map(|output| match output {
            Output::Send {
                to,
                message: ToClient::Member(member),
                ..
            } if **to == [proc(receiver)] => match &member.status {
                Status::Failed { death, .. } => Some((death.started, death.said)),
                _ => None,
            },
            _ => None,
        })
    };
    assert_eq!(
        [started(DRIVER), started(2), started(3)],
        [
            Some((Some(40), Some(50))),
            Some((Some(41), Some(0))),
            Some((None, None))
        ]
    );
}

#[test]
fn a_first_start_is_told_to_the_owner_and_all_else_to_everybody() {
    let mut rig = Rig::with(Spawn {
        policy: Some(policy(3)),
        ..spawn(&[1, 2])
    });
    rig.say(
        DRIVER,
        ToAgent::Spawn(Box::new(Spawn {
            policy: Some(policy(3)),
            mesh: mesh(9),
            ..spawn(&[3])
        })),
    );
    rig.come_up(3, 0);
    assert_eq!(rig.statuses(1), []);
    rig.crash(3, 0);
    rig.wait(SECOND);
    rig.come_up(3, 1);
    let said = rig.take();
    for receiver in [DRIVER, 1, 2] {
        let heard: Vec<&Member> = said
            .iter()
            .filter_map(|output| match output {
                Output::Send {
                    to,
                    message: ToClient::Member(member),
                    ..
                } if **to == [proc(receiver)] => Some(member.as_ref()),
                _ => None,
            })
            .collect();
        let epochs: Vec<u32> = heard.iter().map(|member| member.epoch).collect();
        assert_eq!(
            epochs,
            [1, 2, 3, 4],
            "dead, restarting, starting, up: each an epoch"
        );
    }
    assert!(
        said.iter().any(|output| matches!(output,
            Output::Send { to, message: ToClient::Epoch { epoch: 3, .. }, .. } if **to == [proc(3)])),
        "a proc is told where it enters"
    );
}

#[test]
fn segments_pass_through_or_come_back() {
    let mut rig = Rig::with(spawn(&[1, 2]));
    let offer = |to| ToAgent::SegmentOffer {
        to: proc(to),
        segment: 5,
        size_bytes: 4096,
    };
    let descriptor = Some(Token(9));
    rig.input(Input::Message {
        from: proc(1),
        message: offer(2),
        descriptor,
    });
    let said = rig.take();
    let [
        Output::Send {
            to,
            message: ToClient::Segment { from, .. },
            descriptor: Some(Token(9)),
        },
    ] = said.as_slice()
    else {
        panic!("{said:?}")
    };
    assert_eq!((to[0], *from), (proc(2), proc(1)));
    rig.say(
        2,
        ToAgent::SegmentAck {
            to: proc(1),
            segment: 5,
            ok: true,
        },
    );
    assert_eq!(
        rig.notices(1),
        [ToClient::SegmentAck {
            from: proc(2),
            segment: 5,
            ok: true
        }]
    );
    // Without a descriptor, or to nobody, it is refused.
    rig.say(1, offer(2));
    rig.input(Input::Message {
        from: proc(1),
        message: offer(99),
        descriptor,
    });
    let refused = |from| ToClient::SegmentAck {
        from: proc(from),
        segment: 5,
        ok: false,
    };
    assert_eq!(rig.notices(1), [refused(2), refused(99)]);
}
