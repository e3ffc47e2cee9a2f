//! How one proc ends by itself, and what its policy makes of that.

use super::*;

#[test]
fn without_a_policy_a_crash_is_a_failure() {
    let mut rig = Rig::with(spawn(&[1, 2]));
    rig.crash(1, 0);
    let statuses = rig.statuses(DRIVER);
    assert_eq!(story(&statuses), ["failed", "gone"]);
    let Status::Failed { death, .. } = &statuses[0] else {
        unreachable!()
    };
    assert_eq!(
        (death.kind, death.exit),
        (DeathKind::Signal, Some(Exit::Signal(9)))
    );
    assert!(death.reason.contains("SIGKILL"), "{}", death.reason);
    rig.wait(3600 * SECOND);
    assert_eq!(rig.launches(), []);
}

#[test]
fn an_end_by_itself_and_in_order_is_no_failure() {
    let mut rig = Rig::with(spawn(&[1]));
    rig.die(1, 0, Exit::Code(0));
    let statuses = rig.statuses(DRIVER);
    let [Status::Stopped { death }] = statuses.as_slice() else {
        panic!("{statuses:?}")
    };
    assert_eq!((death.kind, death.exit), (DeathKind::Exit, Some(Exit::Code(0))));
}

#[test]
fn the_next_incarnation_waits_for_the_pause_and_for_the_memory_of_the_dead() {
    for gone_first in [true, false] {
        let mut rig = Rig::with(Spawn {
            policy: Some(policy(3)),
            ..spawn(&[1])
        });
        rig.die(1, 0, Exit::Signal(11));
        let statuses = rig.statuses(DRIVER);
        assert_eq!(story(&statuses), ["dead", "restarting"]);
        let Status::Restarting { delay_ns, .. } = statuses[1] else {
            unreachable!()
        };
        assert!((80 * MS..=120 * MS).contains(&delay_ns));
        if gone_first {
            rig.go(1, 0);
            rig.wait(delay_ns - 1);
            assert_eq!(rig.launches(), []);
            rig.wait(1);
        } else {
            rig.wait(10 * SECOND);
            assert_eq!(rig.launches(), []);
            rig.go(1, 0);
        }
        let said = rig.take();
        assert!(
            matches!(&said[0], Output::Send { message: ToClient::Member(member), .. }
            if member.incarnation == Incarnation(1) && matches!(member.status, Status::Starting { .. }))
        );
        assert!(matches!(&said[1], Output::Launch(order) if order.incarnation == Incarnation(1)));
        rig.come_up(1, 1);
        assert_eq!(story(&rig.statuses(DRIVER)), ["up"]);
    }
}

#[test]
fn exactly_limit_restarts_then_failed_with_all_reasons() {
    let mut rig = Rig::with(Spawn {
        policy: Some(policy(3)),
        ..spawn(&[1])
    });
    for incarnation in 0..3 {
        rig.die(
            1,
            incarnation,
            Exit::Code(10 + i32::try_from(incarnation).unwrap()),
        );
        rig.go(1, incarnation);
        rig.wait(SECOND);
        assert_eq!(rig.launches(), [(1, incarnation + 1)]);
        rig.come_up(1, incarnation + 1);
    }
    rig.take();
    rig.die(1, 3, Exit::Code(13));
    let statuses = rig.statuses(DRIVER);
    assert_eq!(story(&statuses), ["failed"]);
    let Status::Failed { death, earlier } = &statuses[0] else {
        unreachable!()
    };
    let codes: Vec<_> = earlier.iter().chain([death]).map(|death| death.exit).collect();
    assert_eq!(codes, [10, 11, 12, 13].map(|code| Some(Exit::Code(code))));
    rig.go(1, 3);
    rig.wait(3600 * SECOND);
    assert_eq!(rig.launches(), []);
}

#[test]
fn a_kill_waits_for_the_process_and_the_policy_mends_it() {
    let mut rig = Rig::new();
    rig.say(
        DRIVER,
        ToAgent::Spawn(Box::new(Spawn {
            policy: Some(policy(1)),
            ..spawn(&[1])
        })),
    );
    rig.say(
        DRIVER,
        ToAgent::Kill {
            procs: vec![proc(1)],
            reason: Some("it is stuck".to_owned()),
        },
    );
    assert_eq!(rig.signals(), []);
    rig.input(Input::Launched {
        proc: proc(1),
        incarnation: Incarnation(0),
        pid: 5,
    });
    assert_eq!(rig.signals(), [Signal::Kill]);
    rig.crash(1, 0);
    rig.wait(SECOND);
    assert_eq!(rig.launches(), [(1, 1)]);
}

#[test]
fn the_exit_status_is_waited_for_a_moment() {
    let seen = Seen {
        likely: Some(Exit::Code(0)),
        ..Seen::default()
    };
    let died = |rig: &mut Rig| {
        rig.input(Input::Died {
            proc: proc(1),
            incarnation: Incarnation(0),
            seen: seen.clone(),
        });
    };
    let mut rig = Rig::with(spawn(&[1]));
    died(&mut rig);
    assert_eq!(story(&rig.statuses(DRIVER)), [""; 0]);
    rig.input(Input::Exited {
        proc: proc(1),
        incarnation: Incarnation(0),
        exit: Exit::Code(3),
    });
    let statuses = rig.statuses(DRIVER);
    let Status::Failed { death, .. } = &statuses[0] else {
        panic!("{statuses:?}")
    };
    assert_eq!(death.exit, Some(Exit::Code(3)));

    // Its parent may be quicker than its tombstone.
    let mut rig = Rig::with(spawn(&[1]));
    rig.input(Input::Exited {
        proc: proc(1),
        incarnation: Incarnation(0),
        exit: Exit::Code(3),
    });
    assert_eq!(story(&rig.statuses(DRIVER)), [""; 0]);
    died(&mut rig);
    assert_eq!(story(&rig.statuses(DRIVER)), ["failed"]);

    let mut rig = Rig::with(spawn(&[1]));
    died(&mut rig);
    rig.wait(50 * MS);
    let statuses = rig.statuses(DRIVER);
    let [Status::Stopped { death }] = statuses.as_slice() else {
        panic!("{statuses:?}")
    };
    assert_eq!(death.exit, Some(Exit::Code(0)));
}

#[test]
fn an_end_before_it_was_ready_is_a_failed_start() {
    let mut rig = Rig::new();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(spawn(&[1, 2, 3]))));
    rig.say(
        2,
        ToAgent::StartFailed {
            reason: "setup raised".to_owned(),
        },
    );
    rig.take();
    for number in [1, 2] {
        rig.die(number, 0, Exit::Code(0));
    }
    let reason = "cannot start `numactl`".to_owned();
    rig.input(Input::LaunchFailed {
        proc: proc(3),
        incarnation: Incarnation(0),
        reason,
    });
    let mut deaths = Vec::new();
    for status in rig.statuses(DRIVER) {
        if let Status::Failed { death, .. } = status {
            assert_eq!(death.kind, DeathKind::Start);
            deaths.push(death.reason);
        }
    }
    assert_eq!(
        deaths,
        [
            "exited with code 0 before it was ready",
            "setup raised",
            "cannot start `numactl`"
        ]
    );
    rig.go(1, 0);
    rig.go(2, 0);
    assert!(
        rig.agent.is_empty(),
        "there is nothing to wait for where nothing was started"
    );
}

#[test]
fn a_start_that_takes_too_long_has_failed() {
    let reasons = |rig: &mut Rig| -> Vec<String> {
        let failed = |status| match status {
            Status::Failed { death, .. } => Some((death.kind, death.reason)),
            _ => None,
        };
        let failed: Vec<_> = rig.statuses(DRIVER).into_iter().filter_map(failed).collect();
        assert!(failed.iter().all(|(kind, _)| *kind == DeathKind::Start));
        failed.into_iter().map(|(_, reason)| reason).collect()
    };
    // Its template never comes to an end of its imports: there is no process.
    let mut rig = Rig::with_templates();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(warm(&[1]))));
    rig.wait(119 * SECOND);
    assert!(reasons(&mut rig).is_empty());
    rig.wait(2 * SECOND);
    assert_eq!(reasons(&mut rig), ["did not start within 120 s"]);
    // It has a process, which is killed.
    let mut rig = Rig::new();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(spawn(&[1]))));
    rig.input(Input::Launched {
        proc: proc(1),
        incarnation: Incarnation(0),
        pid: 101,
    });
    rig.wait(121 * SECOND);
    assert_eq!(rig.signals(), [Signal::Kill]);
    rig.die(1, 0, Exit::Signal(9));
    assert_eq!(reasons(&mut rig), ["did not start within 120 s"]);
    // Its template stands still with the order in its hands: there is no process whose end would tell.
    let mut rig = Rig::new();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(warm(&[1, 2]))));
    rig.stop(2, "enough");
    rig.wait(121 * SECOND);
    let statuses = rig.statuses(DRIVER);
    assert_eq!(
        story(&statuses),
        ["starting", "starting", "failed", "gone", "stopped", "gone"]
    );
    assert!(rig.agent.is_empty());
    // What it makes all the same, later, has no place any more.
    rig.input(Input::Launched {
        proc: proc(1),
        incarnation: Incarnation(0),
        pid: 101,
    });
    assert_eq!(rig.signals(), [Signal::Kill]);
    // One that is up has all the time in the world.
    let mut rig = Rig::with(spawn(&[1]));
    rig.wait(3600 * SECOND);
    assert_eq!(rig.signals(), []);
}

#[test]
fn the_memory_killer_is_named() {
    let mut rig = Rig::with(spawn(&[1]));
    let seen = Seen {
        exit: Some(Exit::Signal(9)),
        oom: true,
        ..Seen::default()
    };
    rig.input(Input::Died {
        proc: proc(1),
        incarnation: Incarnation(0),
        seen,
    });
    let statuses = rig.statuses(DRIVER);
    let Status::Failed { death, .. } = &statuses[0] else {
        panic!("{statuses:?}")
    };
    assert_eq!(death.kind, DeathKind::Oom);
}

#[test]
fn a_restart_on_request_is_not_counted() {
    let mut rig = Rig::with(Spawn {
        policy: Some(policy(0)),
        ..spawn(&[1])
    });
    let patience = Patience {
        grace_ns: SECOND,
        sigterm_ns: SECOND,
    };
    let restart = ToAgent::Restart {
        procs: vec![proc(1)],
        reason: "new code".to_owned(),
        patience,
    };
    rig.say(DRIVER, restart.clone());
    rig.die(1, 0, Exit::Code(0));
    let statuses = rig.statuses(DRIVER);
    assert_eq!(story(&statuses), ["dead", "restarting"]);
    rig.go(1, 0);
    assert_eq!(rig.launches(), [(1, 1)]);
    // Also from the end: here the policy gives up first.
    rig.come_up(1, 1);
    rig.crash(1, 1);
    assert_eq!(story(&rig.statuses(DRIVER)), ["up", "failed", "gone"]);
    rig.say(DRIVER, restart.clone());
    assert_eq!(rig.launches(), [(1, 2)]);
    // But a stop that is under way wins.
    rig.come_up(1, 2);
    rig.stop(1, "enough");
    rig.say(DRIVER, restart);
    rig.crash(1, 2);
    assert_eq!(
        rig.statuses(DRIVER)
            .last()
            .map(|status| story(std::slice::from_ref(status))),
        Some(vec!["gone"])
    );
}

#[test]
fn scope_all_and_rest_take_the_others_along() {
    for (scope, expected) in [(Scope::All, vec![1, 3]), (Scope::Rest, vec![3])] {
        let policy = Policy { scope, ..policy(3) };
        let mut rig = Rig::with(Spawn {
            policy: Some(policy),
            ..spawn(&[1, 2, 3])
        });
        rig.crash(2, 0);
        let mut stopping: Vec<u64> = rig
            .take()
            .into_iter()
            .filter_map(|output| match output {
                Output::Send {
                    to,
                    message: ToClient::Stop { .. },
                    ..
                } => Some(to[0].get()),
                _ => None,
            })
            .collect();
        stopping.sort_unstable();
        assert_eq!(stopping, expected);
        for &number in &expected {
            rig.crash(number, 0);
            assert_eq!(rig.launches(), [(number, 1)]);
        }
        rig.wait(SECOND);
        assert_eq!(rig.launches(), [(2, 1)]);
    }
}
