//! From start to end of one proc, and of those that belong to it.

use super::*;
use crate::limits;

#[test]
fn a_proc_starts_comes_up_and_stops() {
    let mut rig = Rig::new();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(spawn(&[1]))));
    assert_eq!(rig.launches(), [(1, 0)]);
    rig.come_up(1, 0);
    assert_eq!(story(&rig.statuses(DRIVER)), ["up"]);
    rig.stop(1, "enough");
    let ToClient::Stop { reason, deadline_ns } = &rig.notices(1)[0] else {
        panic!("it is asked to stop")
    };
    assert_eq!(
        (reason.as_str(), *deadline_ns),
        ("enough", rig.now_ns + 5 * SECOND)
    );
    rig.die(1, 0, Exit::Code(0));
    let statuses = rig.statuses(DRIVER);
    let [Status::Stopped { death }] = statuses.as_slice() else {
        panic!("one notice: {statuses:?}")
    };
    assert_eq!(
        (death.kind, death.reason.as_str()),
        (DeathKind::Stopped, "enough")
    );
    rig.go(1, 0);
    assert!(rig.agent.is_empty());
}

#[test]
fn ready_before_its_process_id_is_known_is_told_once_both_are() {
    let mut rig = Rig::new();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(spawn(&[1]))));
    rig.say(1, ToAgent::Up);
    assert_eq!(story(&rig.statuses(DRIVER)), ["starting"]);
    rig.input(Input::Launched {
        proc: proc(1),
        incarnation: Incarnation(0),
        pid: 101,
    });
    assert_eq!(story(&rig.statuses(DRIVER)), ["up"]);
}

#[test]
fn only_its_owner_hears_whether_one_that_lives_gets_on() {
    let mut rig = Rig::with(spawn(&[1, 2]));
    let stalled = ToAgent::Stalled {
        reason: "stuck".to_owned(),
        stack: "in C".to_owned(),
    };
    rig.say(1, stalled.clone());
    let statuses = rig.statuses(DRIVER);
    let [Status::Stalled { reason, stack }] = statuses.as_slice() else {
        panic!("{statuses:?}")
    };
    assert_eq!((reason.as_str(), stack.as_str()), ("stuck", "in C"));
    rig.say(1, ToAgent::Resumed);
    assert_eq!(rig.statuses(DRIVER), [Status::Resumed]);
    assert_eq!(rig.statuses(2), []);
    // A dead one that was too late to say so is dead.
    rig.crash(1, 0);
    rig.statuses(DRIVER);
    rig.say(1, stalled);
    assert_eq!(rig.statuses(DRIVER), []);
}

#[test]
fn a_look_at_actors_goes_to_their_proc_and_back_and_one_that_is_gone_shows_nothing() {
    let mut rig = Rig::with(spawn(&[1, 2]));
    let look = |to| ToAgent::Look {
        to: proc(to),
        mesh: mesh(9),
    };
    let seen = |from, activities| ToClient::Seen {
        from: proc(from),
        mesh: mesh(9),
        activities,
    };
    rig.say(1, look(2));
    let asked = ToClient::Look {
        from: proc(1),
        mesh: mesh(9),
    };
    assert_eq!(rig.notices(2), [asked]);
    let activities = vec![Activity {
        slot: 3,
        queued: 2,
        running: vec![("step".to_owned(), 77)],
    }];
    rig.say(
        2,
        ToAgent::Seen {
            to: proc(1),
            mesh: mesh(9),
            activities: activities.clone(),
        },
    );
    assert_eq!(rig.notices(1), [seen(2, activities)]);
    rig.crash(2, 0);
    rig.notices(1);
    rig.say(1, look(2));
    assert_eq!(rig.notices(1), [seen(2, Vec::new())]);
}

#[test]
fn nothing_starts_after_a_stop() {
    // While it waits for its next start, in every stage of that.
    let mut waiting = Rig::with(Spawn {
        policy: Some(policy(3)),
        ask: true,
        ..spawn(&[1])
    });
    waiting.crash(1, 0);
    let mut asking = Rig::with(Spawn {
        policy: Some(policy(3)),
        ask: true,
        ..spawn(&[1])
    });
    asking.crash(1, 0);
    asking.wait(SECOND);
    let mut dying = Rig::with(Spawn {
        policy: Some(policy(3)),
        ..spawn(&[1])
    });
    dying.input(Input::Died {
        proc: proc(1),
        incarnation: Incarnation(0),
        seen: Seen::default(),
    });
    let mut queued = Rig::with_templates();
    queued.say(DRIVER, ToAgent::Spawn(Box::new(warm(&[1]))));
    for mut rig in [waiting, asking, dying, queued] {
        let has_template = rig
            .take()
            .iter()
            .any(|output| matches!(output, Output::StartTemplate { .. }));
        rig.stop(1, "enough");
        rig.wait(100 * MS);
        // Its process may be there a little longer: who waits for its memory hears of that too.
        assert_eq!(story(&rig.statuses(DRIVER))[0], "stopped");
        rig.go(1, 0);
        rig.statuses(DRIVER);
        if has_template {
            rig.input(Input::TemplateReady(TemplateId(0)));
        }
        let launch = Launch {
            spec: b"".as_slice().into(),
            environ: None,
            command: None,
        };
        rig.say(
            DRIVER,
            ToAgent::Respawn {
                proc: proc(1),
                incarnation: Incarnation(1),
                launch: Ok(launch),
            },
        );
        rig.wait(3600 * SECOND);
        assert_eq!(rig.launches(), []);
    }
}

#[test]
fn a_stop_escalates_with_one_deadline() {
    let mut rig = Rig::with(spawn(&[1]));
    rig.stop(1, "enough");
    rig.wait(5 * SECOND - 1);
    assert_eq!(rig.signals(), []);
    rig.wait(1);
    assert_eq!(rig.signals(), [Signal::Terminate]);
    rig.wait(3 * SECOND);
    assert_eq!(rig.signals(), [Signal::Kill]);
    rig.wait(3600 * SECOND);
    assert_eq!(rig.signals(), []);
}

#[test]
fn a_second_stop_only_shortens() {
    let mut rig = Rig::with(spawn(&[1]));
    rig.stop(1, "first");
    rig.now_ns += 4 * SECOND;
    rig.stop(1, "second");
    rig.wait(SECOND);
    assert_eq!(rig.signals(), [Signal::Terminate], "five seconds after the first");
    let at_once = Patience {
        grace_ns: 0,
        sigterm_ns: 0,
    };
    rig.say(
        DRIVER,
        ToAgent::Stop {
            procs: vec![proc(1)],
            reason: "third".to_owned(),
            patience: at_once,
        },
    );
    assert_eq!(rig.signals(), [Signal::Kill]);
    rig.die(1, 0, Exit::Signal(9));
    let statuses = rig.statuses(DRIVER);
    let [Status::Stopped { death }] = statuses.as_slice() else {
        panic!("{statuses:?}")
    };
    assert_eq!((death.reason.as_str(), death.forced), ("first", true));
}

#[test]
fn only_the_signals_of_a_stop_are_its_own() {
    for (waited_ns, number, forced) in [
        (0, 9, false),
        (0, 15, false),
        (0, 11, false),
        (5 * SECOND, 15, true),
        (5 * SECOND, 9, false),
        (5 * SECOND, 2, false),
        (8 * SECOND, 9, true),
        (8 * SECOND, 15, true),
    ] {
        let mut rig = Rig::with(spawn(&[1]));
        rig.stop(1, "enough");
        // One step after the other, as the clock goes.
        rig.wait(waited_ns.min(5 * SECOND));
        rig.wait(waited_ns.saturating_sub(5 * SECOND));
        rig.die(1, 0, Exit::Signal(number));
        let statuses = rig.statuses(DRIVER);
        let [Status::Stopped { death }] = statuses.as_slice() else {
            panic!("{statuses:?}")
        };
        assert_eq!(death.forced, forced, "signal {number} after {waited_ns} ns");
    }
}

#[test]
fn what_a_proc_spawned_does_not_outlive_it() {
    let mut rig = Rig::with(spawn(&[1]));
    rig.say(
        1,
        ToAgent::Spawn(Box::new(Spawn {
            owner: proc(1),
            mesh: mesh(8),
            ..spawn(&[2, 3])
        })),
    );
    rig.come_up(2, 0);
    rig.crash(3, 0);
    rig.take();
    rig.crash(1, 0);
    let stops: Vec<ToClient> = rig
        .notices(2)
        .into_iter()
        .filter(|notice| matches!(notice, ToClient::Stop { .. }))
        .collect();
    let [ToClient::Stop { reason, .. }] = stops.as_slice() else {
        panic!("{stops:?}")
    };
    assert_eq!(reason, "its owner workers[1] ended");
    // And what is spawned in its name afterwards does not start.
    rig.say(
        DRIVER,
        ToAgent::Spawn(Box::new(Spawn {
            owner: proc(1),
            ..spawn(&[4])
        })),
    );
    assert_eq!(rig.launches(), []);
}

#[test]
fn closing_ends_all_and_starts_none() {
    let mut rig = Rig::with(Spawn {
        policy: Some(policy(3)),
        ..spawn(&[1, 2])
    });
    rig.crash(2, 0);
    rig.take();
    rig.input(Input::Close);
    assert_eq!(rig.signals(), [Signal::Kill]);
    assert!(!rig.agent.is_empty());
    rig.crash(1, 0);
    rig.say(DRIVER, ToAgent::Spawn(Box::new(spawn(&[9]))));
    rig.wait(3600 * SECOND);
    assert_eq!(rig.launches(), []);
    assert!(rig.agent.is_empty());
}

#[test]
fn what_ended_long_ago_is_forgotten() {
    let mut rig = Rig::new();
    let ended = u64::try_from(limits::ENDED_PROCS_MAX).unwrap() + 1;
    // Above the driver's own number.
    let numbers: Vec<u64> = (0..=ended).map(|at| DRIVER + 1 + at).collect();
    for &number in &numbers {
        rig.say(DRIVER, ToAgent::Spawn(Box::new(spawn(&[number]))));
        rig.come_up(number, 0);
    }
    let (lives, dead) = numbers.split_first().unwrap();
    for &number in dead {
        rig.crash(number, 0);
    }
    let ask = |rig: &mut Rig, number| {
        rig.take();
        rig.say(*lives, ToAgent::Connect { proc: proc(number) });
        rig.notices(*lives)
    };
    assert_eq!(
        ask(&mut rig, dead[0]),
        [ToClient::ConnectFailed {
            proc: proc(dead[0]),
            reason: "there is no such proc".to_owned()
        }]
    );
    assert!(
        matches!(ask(&mut rig, dead[1]).as_slice(), [ToClient::Member(member), ToClient::ConnectFailed { .. }]
        if matches!(member.status, Status::Failed { .. }))
    );
}
