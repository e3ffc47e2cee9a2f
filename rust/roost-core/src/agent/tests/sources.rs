//! Where procs come from: templates, answers to questions, recorded constructors.

use super::*;
use crate::limits::{TEMPLATE_REQUESTS_MAX, TEMPLATE_STARTS_MAX};

const TEMPLATE: TemplateId = TemplateId(0);

fn launch(spec: &[u8]) -> Launch {
    Launch {
        spec: spec.into(),
        environ: Some(Vec::new()),
        command: None,
    }
}

#[test]
fn procs_wait_for_their_template_which_starts_once() {
    let mut rig = Rig::with_templates();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(warm(&[2, 1]))));
    rig.say(DRIVER, ToAgent::Spawn(Box::new(warm(&[3]))));
    let starts = rig
        .take()
        .into_iter()
        .filter(|output| matches!(output, Output::StartTemplate { .. }))
        .count();
    assert_eq!(starts, 1);
    rig.input(Input::TemplateReady(TEMPLATE));
    assert_eq!(
        rig.launches(),
        [(2, 0), (1, 0), (3, 0)],
        "in the order of the spawns"
    );
}

#[test]
fn a_template_that_was_prepared_is_the_one_that_procs_wait_for() {
    let mut rig = Rig::with_templates();
    let wanted = warm(&[1]);
    let prepare = ToAgent::Prepare {
        template: wanted.template.clone().expect("it is warm"),
        environ: Vec::new(),
    };
    rig.say(DRIVER, prepare.clone());
    rig.say(DRIVER, ToAgent::Spawn(Box::new(wanted)));
    rig.say(DRIVER, prepare);
    let starts = rig.take();
    let starts = starts
        .iter()
        .filter(|output| matches!(output, Output::StartTemplate { .. }));
    assert_eq!(starts.count(), 1);
    rig.input(Input::TemplateReady(TEMPLATE));
    assert_eq!(rig.launches(), [(1, 0)]);
}

#[test]
fn a_template_has_a_bounded_number_of_requests_in_its_hands() {
    let numbers: Vec<u64> = (1..=TEMPLATE_REQUESTS_MAX as u64 + 2).collect();
    let mut rig = Rig::with_templates();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(warm(&numbers))));
    rig.input(Input::TemplateReady(TEMPLATE));
    assert_eq!(rig.launches().len(), TEMPLATE_REQUESTS_MAX);
    rig.input(Input::Launched {
        proc: proc(1),
        incarnation: Incarnation(0),
        pid: 1,
    });
    assert_eq!(rig.launches(), [(numbers[TEMPLATE_REQUESTS_MAX], 0)]);
    let reason = "fork failed".to_owned();
    rig.input(Input::LaunchFailed {
        proc: proc(2),
        incarnation: Incarnation(0),
        reason,
    });
    assert_eq!(rig.launches(), [(numbers[TEMPLATE_REQUESTS_MAX + 1], 0)]);
}

#[test]
fn a_template_that_cannot_fork_is_done_without() {
    let mut rig = Rig::with_templates();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(warm(&[1]))));
    rig.take();
    rig.input(Input::TemplateRefused {
        template: TEMPLATE,
        reason: "grpc started threads".to_owned(),
    });
    let said = rig.take();
    assert!(said.iter().any(|output| matches!(output,
        Output::Send { message: ToClient::Warning { text }, .. } if text.contains("grpc started threads"))));
    assert!(said.iter().any(|output| matches!(output,
        Output::Launch(order) if matches!(order.source, Source::Cold(_)))));
}

#[test]
fn what_waits_for_a_template_that_cannot_import_fails_and_a_later_try_is_made() {
    let mut rig = Rig::with_templates();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(warm(&[1]))));
    rig.take();
    let (reason, stderr) = ("importing torch raised".to_owned(), "Traceback".to_owned());
    rig.input(Input::TemplateFailed {
        template: TEMPLATE,
        reason,
        stderr,
    });
    let statuses = rig.statuses(DRIVER);
    let Status::Failed { death, .. } = &statuses[0] else {
        panic!("{statuses:?}")
    };
    assert_eq!(
        (death.kind, death.stderr.as_str()),
        (DeathKind::Start, "Traceback")
    );
    rig.say(DRIVER, ToAgent::Spawn(Box::new(warm(&[2]))));
    assert!(
        rig.take()
            .iter()
            .any(|output| matches!(output, Output::StartTemplate { .. }))
    );
}

#[test]
fn a_killed_template_is_started_again_but_not_for_ever() {
    let mut rig = Rig::with_templates();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(warm(&[1]))));
    let ended = || Input::TemplateEnded {
        template: TEMPLATE,
        killed: true,
        reason: "killed".to_owned(),
        stderr: String::new(),
    };
    for _ in 1..TEMPLATE_STARTS_MAX {
        rig.take();
        rig.input(ended());
        assert!(matches!(rig.take().as_slice(), [Output::StartTemplate { .. }]));
    }
    rig.input(ended());
    assert_eq!(story(&rig.statuses(DRIVER)), ["failed", "gone"]);
}

#[test]
fn a_launch_that_was_lost_with_its_template_is_ordered_again() {
    let mut rig = Rig::with_templates();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(warm(&[1]))));
    rig.input(Input::TemplateReady(TEMPLATE));
    rig.take();
    let (reason, stderr) = ("killed".to_owned(), String::new());
    rig.input(Input::TemplateEnded {
        template: TEMPLATE,
        killed: true,
        reason,
        stderr,
    });
    rig.input(Input::LaunchLost {
        proc: proc(1),
        incarnation: Incarnation(0),
    });
    assert!(matches!(rig.take().as_slice(), [Output::StartTemplate { .. }]));
    rig.input(Input::TemplateReady(TEMPLATE));
    assert_eq!(rig.launches(), [(1, 0)]);
}

#[test]
fn the_owner_is_asked_and_reminded() {
    let mut rig = Rig::with(Spawn {
        policy: Some(policy(3)),
        ask: true,
        ..spawn(&[1])
    });
    rig.crash(1, 0);
    rig.take();
    rig.wait(SECOND);
    assert_eq!(
        rig.notices(DRIVER),
        [ToClient::Ask {
            proc: proc(1),
            incarnation: Incarnation(1)
        }]
    );
    rig.wait(SECOND);
    assert!(
        matches!(rig.notices(DRIVER).as_slice(), [ToClient::Warning { .. }]),
        "once, after a second"
    );
    rig.wait(60 * SECOND);
    assert_eq!(rig.notices(DRIVER), []);
    let answer = |incarnation| ToAgent::Respawn {
        proc: proc(1),
        incarnation,
        launch: Ok(launch(b"new")),
    };
    rig.say(DRIVER, answer(Incarnation(7)));
    assert_eq!(rig.launches(), [], "that was not asked");
    rig.say(DRIVER, answer(Incarnation(1)));
    let said = rig.take();
    assert!(
        said.iter()
            .any(|output| matches!(output, Output::Launch(order) if &*order.spec == b"new"))
    );
}

#[test]
fn a_question_answered_by_an_error_counts_as_a_failed_start() {
    let mut rig = Rig::with(Spawn {
        policy: Some(policy(2)),
        ask: true,
        ..spawn(&[1])
    });
    rig.crash(1, 0);
    rig.wait(SECOND);
    let answer = |incarnation| ToAgent::Respawn {
        proc: proc(1),
        incarnation: Incarnation(incarnation),
        launch: Err("env raised KeyError".to_owned()),
    };
    rig.take();
    rig.say(DRIVER, answer(1));
    assert_eq!(story(&rig.statuses(DRIVER)), ["starting", "dead", "restarting"]);
    rig.wait(SECOND);
    rig.take();
    rig.say(DRIVER, answer(2));
    let statuses = rig.statuses(DRIVER);
    assert_eq!(story(&statuses), ["starting", "failed", "gone"]);
    let Status::Failed { death, .. } = &statuses[1] else {
        unreachable!()
    };
    assert_eq!(
        (death.kind, death.reason.as_str()),
        (DeathKind::Start, "env raised KeyError")
    );
}

#[test]
fn recorded_constructors_go_to_later_incarnations() {
    let mut rig = Rig::with(Spawn {
        policy: Some(policy(3)),
        ..spawn(&[1, 2])
    });
    for (number, payload) in [(20, "first"), (21, "second"), (22, "third")] {
        let rest = payload.as_bytes().into();
        let procs = vec![proc(1), proc(2)];
        rig.say(
            DRIVER,
            ToAgent::RecordActor {
                procs,
                mesh: mesh(number),
                start: b"class, ".as_slice().into(),
                rest,
            },
        );
    }
    rig.say(
        DRIVER,
        ToAgent::ForgetActor {
            procs: vec![proc(1)],
            mesh: mesh(21),
        },
    );
    rig.crash(1, 0);
    rig.wait(SECOND);
    let said = rig.take();
    let order = said.iter().find_map(|output| match output {
        Output::Launch(order) => Some(order),
        _ => None,
    });
    let recorded: Vec<&[u8]> = order
        .expect("it starts again")
        .recorded
        .iter()
        .map(|payload| &**payload)
        .collect();
    assert_eq!(recorded, [b"class, first".as_slice(), b"class, third"]);
    assert!(said.iter().any(
        |output| matches!(output, Output::Send { message: ToClient::Member(member), .. }
        if matches!(&member.status, Status::Starting { actors, .. } if *actors == [mesh(20), mesh(22)]))
    ));
}

#[test]
fn a_cold_start_needs_a_template_without_modules() {
    let mut rig = Rig::with_templates();
    let mut mixed = warm(&[1, 2]);
    mixed.ranks[1].launch.environ = Some(Vec::new());
    rig.say(DRIVER, ToAgent::Spawn(Box::new(mixed)));
    let keys: Vec<Vec<String>> = rig
        .take()
        .into_iter()
        .filter_map(|output| match output {
            Output::StartTemplate { key, .. } => Some(key.preload),
            _ => None,
        })
        .collect();
    assert_eq!(keys, [vec!["torch".to_owned()], vec![]]);
    rig.input(Input::TemplateReady(TemplateId(1)));
    assert_eq!(rig.launches(), [(2, 0)]);
    rig.input(Input::TemplateReady(TemplateId(0)));
    assert_eq!(rig.launches(), [(1, 0)]);
}
