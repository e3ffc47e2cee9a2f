//! Lanes between hosts.

use super::*;

/// (hosts that were told, dials, accepts, the host of that, session).
type Far = (Vec<u64>, u64, u64, u64, u64);

fn fars(outputs: Vec<(u64, Output)>) -> Vec<Far> {
    let mut fars: Vec<Far> = Vec::new();
    for (of, output) in outputs {
        let Output::Far {
            dial,
            accept,
            accept_host,
            session,
        } = output
        else {
            continue;
        };
        match fars.iter_mut().find(|far| far.4 == session) {
            Some(far) => far.0.push(of),
            None => fars.push((
                vec![of],
                dial.proc.get(),
                accept.proc.get(),
                accept_host.get(),
                session,
            )),
        }
    }
    fars
}

fn connect(rig: &mut Rig, from: u64, to: u64) -> Vec<(u64, Output)> {
    rig.outputs_of(said(from, ToAgent::Connect { proc: proc(to) }))
}

#[test]
fn both_hosts_of_a_far_lane_are_told() {
    let mut rig = rig(on(spawn(&[1, 2, 3]), &[2, 3, 2]));
    let made = fars(connect(&mut rig, 1, 2));
    assert!(matches!(&made[..], [(hosts, 1, 2, 3, session)] if hosts == &[3, 2] && *session != 0));
    assert_eq!(connect(&mut rig, 2, 1), [], "the answer is on its way");
    let near = connect(&mut rig, 1, 3);
    assert!(matches!(&near[..], [(2, Output::Pair { .. })]), "{near:?}");
}

#[test]
fn nobody_dials_the_drivers_host() {
    let mut rig = rig(on(spawn(&[1, 2]), &[2, OWN]));
    let made = fars(connect(&mut rig, 1, 2));
    assert!(matches!(&made[..], [(_, 2, 1, 2, _)]), "{made:?}");
    start(
        &mut rig,
        Spawn {
            owner: proc(1),
            mesh: mesh(9),
            ..on(spawn(&[3]), &[2])
        },
    );
    let made = fars(connect(&mut rig, 3, DRIVER));
    assert!(matches!(&made[..], [(_, DRIVER, 3, 2, _)]), "{made:?}");
}

#[test]
fn an_owner_far_away_gets_its_lane_when_the_process_is_there() {
    let mut rig = rig(spawn(&[]));
    let ordered = rig.outputs_of(said(
        DRIVER,
        ToAgent::Spawn(Box::new(on(spawn(&[1, 2]), &[2, OWN]))),
    ));
    let orders = |output: &(u64, Output)| match output {
        (of, Output::StartTemplate { template, .. }) => Some((*of, *template)),
        _ => None,
    };
    let templates: Vec<_> = ordered.iter().filter_map(orders).collect();
    let mut ends = Vec::new();
    for (of, template) in templates {
        for (host, output) in rig.outputs_of(Input::TemplateReady(template)) {
            if let Output::Launch(order) = output {
                assert_eq!(host, of);
                ends.push((order.proc.get(), order.owner_is_here, order.owner_slot));
            }
        }
    }
    assert_eq!(ends, [(1, false, None), (2, true, None)]);
    let launched = |number| Input::Launched {
        proc: proc(number),
        incarnation: Incarnation(0),
        pid: 7,
    };
    let outputs = rig.outputs_of(launched(1));
    let slots = outputs.iter().find_map(|(_, output)| match output {
        Output::Far { dial, accept, .. } => Some((dial.slot, accept.slot)),
        _ => None,
    });
    assert_eq!(slots, Some((None, Some(0))), "the first place in its page");
    assert!(matches!(&fars(outputs)[..], [(hosts, DRIVER, 1, 2, _)] if hosts == &[2, OWN]));
    assert_eq!(fars(rig.outputs_of(launched(2))), []);
}

#[test]
fn who_asks_for_its_owner_first_does_not_get_two() {
    let mut rig = rig(on(spawn(&[1]), &[3]));
    let spawned = Spawn {
        owner: proc(1),
        mesh: mesh(9),
        ..on(spawn(&[2]), &[2])
    };
    rig.say(1, ToAgent::Spawn(Box::new(spawned)));
    let made = fars(connect(&mut rig, 2, 1));
    assert!(matches!(&made[..], [(_, 2, 1, 3, _)]), "{made:?}");
    let launched = Input::Launched {
        proc: proc(2),
        incarnation: Incarnation(0),
        pid: 7,
    };
    assert_eq!(fars(rig.outputs_of(launched)), []);
}

#[test]
fn a_far_lane_that_cannot_be_is_told_to_both() {
    let mut rig = rig(on(spawn(&[1, 2]), &[2, 3]));
    rig.say(1, ToAgent::Connect { proc: proc(2) });
    rig.take();
    let failed = Input::PairFailed {
        first: proc(1),
        second: proc(2),
        reason: "no way".to_owned(),
    };
    rig.input_from(4, failed.clone());
    assert_eq!(rig.take(), [], "it is none of that host's");
    rig.input_from(3, failed);
    assert_eq!(rig.take().len(), 2);
    rig.say(2, ToAgent::Connect { proc: proc(1) });
    rig.take();
    rig.say(
        1,
        ToAgent::ConnectLost {
            proc: proc(2),
            reason: "has no file descriptors left for a data lane".to_owned(),
        },
    );
    assert!(matches!(
        rig.notices(2).as_slice(),
        [ToClient::ConnectFailed { .. }]
    ));
}

#[test]
fn who_cannot_dial_has_the_other_do_it() {
    let mut rig = rig(on(spawn(&[1, 2, 3]), &[2, 3, 4]));
    connect(&mut rig, 1, 2);
    rig.say(2, ToAgent::Redial { proc: proc(1) });
    assert_eq!(rig.notices(1), [ToClient::Redial { proc: proc(2) }]);
    rig.say(2, ToAgent::Redial { proc: proc(3) });
    assert_eq!(rig.notices(3), [], "there is no lane");
}

#[test]
fn segments_do_not_leave_their_host() {
    let mut rig = rig(on(spawn(&[1, 2, 3]), &[OWN, 2, OWN]));
    let offer = |to| Input::Message {
        from: proc(1),
        message: ToAgent::SegmentOffer {
            to: proc(to),
            segment: 5,
            size_bytes: 4096,
        },
        descriptor: Some(Token(9)),
    };
    rig.input(offer(3));
    assert!(matches!(rig.notices(3).as_slice(), [ToClient::Segment { .. }]));
    rig.input(offer(2));
    assert!(matches!(
        rig.notices(1).as_slice(),
        [ToClient::SegmentAck { ok: false, .. }]
    ));
}

#[test]
fn one_seed_gives_one_set_of_sessions() {
    let sessions = || {
        let mut rig = rig(on(spawn(&[1, 2, 3]), &[2, 3, 4]));
        [(1, 2), (2, 3), (3, 1)].map(|(from, to)| fars(connect(&mut rig, from, to))[0].4)
    };
    assert_eq!(sessions(), sessions());
    let [first, second, third] = sessions();
    assert!(first != second && second != third && third != first);
}

#[test]
fn both_hosts_of_a_link_are_told_and_nobody_dials_the_drivers() {
    let mut rig = rig(on(spawn(&[1, 2, 3]), &[2, 3, OWN]));
    for (from, to, hosts, dial, asks) in [
        (1, 2, [3, 2], 1, true),
        (1, 3, [2, OWN], 3, false),
        (3, 1, [2, OWN], 3, true),
    ] {
        let wish = ToAgent::Link {
            proc: proc(to),
            incarnation: Incarnation(0),
        };
        let told = rig.outputs_of(said(from, wish));
        let far = |(of, output): &(u64, Output)| match output {
            Output::FarLink {
                dial, dialler_asks, ..
            } => Some((*of, dial.0.get(), *dialler_asks)),
            _ => None,
        };
        let told: Vec<_> = told.iter().filter_map(far).collect();
        assert_eq!(told, hosts.map(|host| (host, dial, asks)));
    }
}
