//! Spares: who takes whose place, and what becomes of those that nobody needs.

use super::*;
use crate::limits::SPARE_PAUSE_NS;

/// Ranks 1 to `ranks`, and spares from 101 on, all up.
fn rig(ranks: u64, spares: u64, policy: Policy) -> Rig {
    let mut rig = Rig::new();
    let numbers: Vec<u64> = (1..=ranks).collect();
    rig.say(
        DRIVER,
        ToAgent::Spawn(Box::new(with_spares(warm(&numbers), spares, policy))),
    );
    for number in (1..=ranks).chain(101..101 + spares) {
        rig.come_up(number, 0);
    }
    rig.said.clear();
    rig
}

pub(super) fn with_spares(spawn: Spawn, spares: u64, policy: Policy) -> Spawn {
    let launch = spawn.ranks[0].launch.clone();
    let spare = |number| Rank {
        proc: proc(number),
        label: format!("workers spare {number}"),
        launch: launch.clone(),
        host: host(OWN),
    };
    let first = spawn.ranks[0].proc.get() * 100 + 1;
    Spawn {
        policy: Some(policy),
        spares: (first..first + spares).map(spare).collect(),
        ..spawn
    }
}

/// Who has taken whose place since the last call.
fn places(rig: &mut Rig) -> Vec<(u64, u64, u32)> {
    let place = |output| match output {
        Output::TakePlace(place) => Some((place.spare.0.get(), place.proc.0.get(), place.proc.1.0)),
        _ => None,
    };
    rig.take().into_iter().filter_map(place).collect()
}

#[test]
fn a_spare_takes_the_place_once_the_memory_of_the_dead_is_free_and_without_a_pause() {
    let mut rig = rig(2, 1, policy(3));
    rig.die(1, 0, Exit::Signal(9));
    assert!(
        rig.take()
            .iter()
            .all(|output| !matches!(output, Output::TakePlace(_)))
    );
    rig.go(1, 0);
    let said = rig.take();
    let starting = said.iter().position(|output| {
        matches!(output, Output::Send { to, message: ToClient::Member(member), .. }
            if **to == [proc(DRIVER)] && matches!(member.status, Status::Starting { .. }))
    });
    let place = said.iter().position(|output| {
        matches!(output, Output::TakePlace(place)
        if place.spare == (proc(101), Incarnation(0)) && place.proc == (proc(1), Incarnation(1)))
    });
    let told = said.iter().position(|output| {
        matches!(output, Output::Send { to, message: ToClient::Become { incarnation, spec, .. }, .. }
        if **to == [proc(1)] && *incarnation == Incarnation(1) && **spec == *b"spec")
    });
    assert!(starting < place && place < told && starting.is_some(), "{said:?}");
    assert!(!said.iter().any(|output| matches!(output, Output::Launch(_))));
    rig.say(1, ToAgent::Up);
    assert_eq!(story(&rig.statuses(DRIVER)), ["up"]);
    // The next spare is started after the pause that the rank was spared.
    rig.wait(100 * MS);
    assert_eq!(rig.launches(), [(101, 1)]);
}

#[test]
fn it_is_told_what_to_load_and_what_to_construct() {
    let mut rig = rig(1, 1, policy(3));
    let record = |mesh_number| ToAgent::RecordActor {
        procs: vec![proc(1)],
        mesh: mesh(mesh_number),
        start: b"plan".as_slice().into(),
        rest: b"rest".as_slice().into(),
    };
    rig.say(DRIVER, record(20));
    rig.say(DRIVER, record(21));
    let prepare = ToClient::Prepare {
        start: b"plan".as_slice().into(),
    };
    assert_eq!(
        rig.notices(101),
        std::slice::from_ref(&prepare),
        "each beginning once"
    );
    rig.crash(1, 0);
    let notices = rig.notices(1);
    assert!(
        matches!(&notices[0], ToClient::Become { recorded, .. } if recorded.len() == 2 && *recorded[0] == *b"planrest")
    );
    assert!(matches!(notices[1], ToClient::Epoch { .. }));
    rig.wait(SECOND);
    rig.come_up(101, 1);
    assert!(rig.notices(101).contains(&prepare), "also who comes later");
}

#[test]
fn nobody_hears_of_a_spare_and_it_hears_of_nobody() {
    let mut rig = Rig::new();
    rig.say(
        DRIVER,
        ToAgent::Spawn(Box::new(with_spares(warm(&[1, 2]), 1, policy(3)))),
    );
    for number in [1, 2, 101] {
        rig.come_up(number, 0);
    }
    rig.say(2, ToAgent::Up);
    rig.crash(101, 0);
    rig.wait(10 * SECOND);
    rig.come_up(101, 1);
    rig.die(1, 0, Exit::Signal(9));
    for output in rig.take() {
        if let Output::Send {
            to,
            message: ToClient::Member(member),
            ..
        } = output
        {
            assert_ne!(to, [proc(101)]);
            assert_ne!(member.proc, proc(101));
        }
    }
}

#[test]
fn two_that_die_together_get_one_spare_and_one_new_process() {
    let mut rig = rig(2, 1, policy(3));
    rig.crash(1, 0);
    rig.crash(2, 0);
    assert_eq!(places(&mut rig), [(101, 1, 1)]);
    rig.wait(SECOND);
    let mut launches = rig.launches();
    launches.sort_unstable();
    assert_eq!(launches, [(2, 1), (101, 1)]);
}

#[test]
fn a_rank_that_waits_for_its_pause_takes_a_spare_that_gets_ready_meanwhile() {
    let slow = Policy {
        backoff_min_ns: 60 * SECOND,
        backoff_max_ns: 60 * SECOND,
        ..policy(3)
    };
    let mut rig = Rig::new();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(with_spares(warm(&[1]), 1, slow))));
    rig.come_up(1, 0);
    rig.crash(1, 0);
    assert_eq!(places(&mut rig), []);
    rig.come_up(101, 0);
    assert_eq!(places(&mut rig), [(101, 1, 1)]);
}

#[test]
fn its_death_is_replaced_after_pauses_and_in_the_end_not_at_all() {
    let no_pause = Policy {
        backoff_min_ns: 0,
        backoff_max_ns: 0,
        ..policy(3)
    };
    let mut rig = rig(1, 1, no_pause);
    for incarnation in 0..3 {
        rig.crash(101, incarnation);
        rig.wait(SPARE_PAUSE_NS - 1);
        assert_eq!(rig.launches(), []);
        rig.wait(1);
        assert_eq!(rig.launches(), [(101, incarnation + 1)]);
        rig.come_up(101, incarnation + 1);
    }
    rig.crash(101, 3);
    let notices = rig.notices(DRIVER);
    assert!(
        matches!(notices.as_slice(), [ToClient::Warning { text }] if text.contains("is not replaced")),
        "{notices:?}"
    );
    rig.wait(3600 * SECOND);
    assert_eq!(rig.launches(), []);
    // The rank itself has lost nothing.
    rig.crash(1, 0);
    assert_eq!(rig.launches(), [(1, 1)]);
}

#[test]
fn one_that_died_unseen_when_it_was_chosen_is_the_ranks_death() {
    let mut rig = rig(1, 1, policy(3));
    rig.crash(1, 0);
    let place = rig.take().into_iter().find_map(|output| match output {
        Output::TakePlace(place) => Some(place),
        _ => None,
    });
    // What the layer above had seen already follows it.
    let mut input = Input::Died {
        proc: proc(101),
        incarnation: Incarnation(0),
        seen: Seen::default(),
    };
    input.follow(&place.expect("it was taken"));
    rig.input(input);
    rig.go(1, 1);
    rig.wait(SECOND);
    assert_eq!(rig.launches(), [(101, 1)]);
    rig.wait(SECOND);
    assert_eq!(rig.launches(), [(1, 2)]);
}

#[test]
fn they_end_with_the_last_rank_and_come_back_with_it() {
    let mut rig = rig(2, 1, policy(3));
    rig.stop(1, "enough");
    assert!(rig.notices(101).is_empty(), "the other may need it");
    rig.stop(2, "enough");
    assert!(matches!(rig.notices(101).as_slice(), [ToClient::Stop { .. }]));
    for number in [1, 2, 101] {
        rig.die(number, 0, Exit::Code(0));
        rig.go(number, 0);
    }
    rig.wait(3600 * SECOND);
    assert_eq!(rig.launches(), []);
    let patience = Patience {
        grace_ns: SECOND,
        sigterm_ns: SECOND,
    };
    let (procs, reason) = (vec![proc(1)], "again".to_owned());
    rig.say(
        DRIVER,
        ToAgent::Restart {
            procs,
            reason,
            patience,
        },
    );
    assert_eq!(rig.launches(), [(1, 1), (101, 1)]);
}

#[test]
fn they_end_with_a_mesh_that_fails_with_its_owner_and_with_the_job() {
    let mut failed = rig(1, 1, policy(1));
    failed.crash(1, 0);
    failed.wait(SECOND);
    failed.come_up(101, 1);
    failed.say(1, ToAgent::Up);
    failed.crash(1, 1);
    assert!(matches!(
        failed.notices(101).as_slice(),
        [.., ToClient::Stop { .. }]
    ));

    let mut owned = Rig::with(warm(&[50]));
    let spawn = Spawn {
        owner: proc(50),
        mesh: mesh(8),
        ..with_spares(warm(&[1]), 1, policy(3))
    };
    owned.say(50, ToAgent::Spawn(Box::new(spawn)));
    owned.come_up(1, 0);
    owned.come_up(101, 0);
    owned.crash(50, 0);
    assert!(matches!(
        owned.notices(101).as_slice(),
        [.., ToClient::Stop { .. }]
    ));

    let mut closed = rig(1, 2, policy(3));
    closed.input(Input::Close);
    assert_eq!(closed.signals(), [Signal::Kill; 3]);
    for number in [1, 101, 102] {
        closed.crash(number, 0);
    }
    assert!(closed.agent.is_empty());
}

#[test]
fn nothing_is_left_of_a_mesh_when_nothing_is_left_of_its_spares() {
    let mut rig = rig(2, 1, policy(3));
    rig.stop(1, "enough");
    rig.stop(2, "enough");
    rig.die(1, 0, Exit::Code(0));
    rig.die(2, 0, Exit::Code(0));
    rig.go(1, 0);
    assert_eq!(story(&rig.statuses(DRIVER)), ["stopped", "stopped", "gone"]);
    rig.go(2, 0);
    rig.die(101, 0, Exit::Code(0));
    assert_eq!(story(&rig.statuses(DRIVER)), [] as [&str; 0]);
    rig.go(101, 0);
    assert_eq!(story(&rig.statuses(DRIVER)), ["gone"]);
    // One that is still being set up is not waited for long.
    let mut early = Rig::new();
    early.say(
        DRIVER,
        ToAgent::Spawn(Box::new(with_spares(warm(&[1]), 1, policy(3)))),
    );
    early.come_up(1, 0);
    early.input(Input::Launched {
        proc: proc(101),
        incarnation: Incarnation(0),
        pid: 7,
    });
    early.take();
    early.stop(1, "enough");
    assert_eq!(early.signals(), [Signal::Kill]);
}

#[test]
fn what_is_executed_otherwise_takes_no_spare() {
    let mut rig = Rig::new();
    let mut spawned = with_spares(spawn(&[1]), 1, policy(3));
    spawned.spares[0].launch.environ = Some(vec![(b"A".as_slice().into(), b"1".as_slice().into())]);
    rig.say(DRIVER, ToAgent::Spawn(Box::new(spawned)));
    rig.come_up(1, 0);
    rig.come_up(101, 0);
    rig.take();
    rig.crash(1, 0);
    rig.wait(SECOND);
    assert_eq!(rig.launches(), [(1, 1)]);
}

#[test]
fn the_scope_of_a_policy_leaves_them_alone() {
    let mut rig = rig(
        2,
        2,
        Policy {
            scope: Scope::All,
            ..policy(3)
        },
    );
    rig.crash(1, 0);
    assert!(!rig.take().iter().any(
        |output| matches!(output, Output::Send { to, message: ToClient::Stop { .. }, .. }
        if to[0].get() > 100)
    ));
    // The other restarts too, and gets one.
    rig.die(2, 0, Exit::Code(0));
    rig.go(2, 0);
    assert_eq!(places(&mut rig), [(102, 2, 1)]);
}
