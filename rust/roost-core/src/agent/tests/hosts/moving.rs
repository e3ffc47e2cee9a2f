//! Ranks that start again elsewhere, and those that cannot.

use std::collections::BTreeSet;

use super::*;

/// Where procs were ordered since the last call: (proc, incarnation, host).
fn orders(outputs: &[(u64, Output)]) -> Vec<(u64, u32, u64)> {
    let order = |(of, output): &(u64, Output)| match output {
        Output::Launch(order) => Some((order.proc.get(), order.incarnation.0, *of)),
        _ => None,
    };
    outputs.iter().filter_map(order).collect()
}

/// Time passes, and templates that are started are ready at once.
fn wait(rig: &mut Rig, by_ns: u64) -> Vec<(u64, Output)> {
    rig.now_ns += by_ns;
    let mut outputs = rig.outputs_of(Input::Tick);
    let mut at = 0;
    while at < outputs.len() {
        if let Output::StartTemplate { template, .. } = outputs[at].1 {
            outputs.extend(rig.outputs_of(Input::TemplateReady(template)));
        }
        at += 1;
    }
    outputs
}

fn any_host(numbers: &[u64], hosts: &[u64], limit: u32) -> Spawn {
    Spawn {
        policy: Some(mending(limit, On::AnyHost)),
        ..on(spawn(numbers), hosts)
    }
}

#[test]
fn a_policy_that_stays_cannot_mend_a_lost_host() {
    let mut rig = rig(Spawn {
        policy: Some(mending(3, On::SameHost)),
        ..on(spawn(&[1, 2]), &[2, 3])
    });
    rig.crash(1, 0);
    rig.wait(SECOND);
    rig.come_up(1, 1);
    rig.said.clear();
    rig.lose(2);
    let said = rig.take();
    assert_eq!(stories(&said, DRIVER), [(1, "failed"), (1, "gone")]);
    let earlier = said.iter().find_map(|output| match output {
        Output::Send {
            message: ToClient::Member(member),
            ..
        } => match &member.status {
            Status::Failed { earlier, .. } => Some(earlier.len()),
            _ => None,
        },
        _ => None,
    });
    assert_eq!(earlier, Some(1), "with what it had mended before");
}

#[test]
fn a_policy_that_moves_takes_the_emptiest_host() {
    let mut rig = rig(any_host(&[1, 2, 3, 4], &[2, 2, 2, 3], 3));
    rig.lose(2);
    let said = rig.take();
    assert_eq!(
        stories(&said, DRIVER),
        [1, 2, 3]
            .map(|number| [(number, "dead"), (number, "restarting")])
            .concat()
    );
    assert_eq!(last_death(&said, 1).kind, DeathKind::Lost);
    // Host 4 had none, then has as many as host 3; the driver's is not for them.
    let mut hosts: Vec<u64> = orders(&wait(&mut rig, SECOND))
        .into_iter()
        .map(|(_, _, of)| of)
        .collect();
    hosts.sort_unstable();
    assert_eq!(hosts, [3, 4, 4]);
}

#[test]
fn who_lived_with_the_driver_may_go_there() {
    let mut rig = rig(any_host(&[1, 2], &[2, OWN], 3));
    rig.lose(3);
    rig.lose(4);
    rig.lose(2);
    assert_eq!(orders(&wait(&mut rig, SECOND)), [(1, 1, OWN)]);
}

#[test]
fn without_a_host_that_it_may_move_to_the_failure_climbs() {
    let mut rig = rig(any_host(&[1, 2], &[2, 2], 3));
    rig.lose(3);
    rig.lose(4);
    rig.said.clear();
    rig.lose(2);
    let said = rig.take();
    assert_eq!(stories(&said, DRIVER)[0], (1, "failed"));
    assert_eq!(last_death(&said, 1).kind, DeathKind::Lost);
    // One that waits for its pause loses its last place too.
    let mut rig = super::rig(any_host(&[1], &[2], 3));
    rig.lose(2);
    rig.lose(3);
    rig.said.clear();
    rig.lose(4);
    assert_eq!(rig.take().len(), 1, "it was not there");
    rig.wait(SECOND);
    assert_eq!(stories(&rig.take(), DRIVER), [(1, "failed"), (1, "gone")]);
}

#[test]
fn a_loss_counts_as_any_death() {
    let mut rig = rig(any_host(&[1], &[2], 2));
    rig.crash(1, 0);
    rig.wait(SECOND);
    rig.come_up(1, 1);
    rig.lose(2);
    let [(1, 2, of)] = orders(&wait(&mut rig, SECOND))[..] else {
        panic!("it moves")
    };
    rig.input_from(
        of,
        Input::Launched {
            proc: proc(1),
            incarnation: Incarnation(2),
            pid: 7,
        },
    );
    rig.said.clear();
    rig.lose(of);
    assert_eq!(stories(&rig.take(), DRIVER), [(1, "failed"), (1, "gone")]);
}

#[test]
fn one_that_is_down_moves_without_another_death() {
    for ask in [false, true] {
        let mut rig = rig(Spawn {
            ask,
            ..any_host(&[1], &[2], 3)
        });
        rig.crash(1, 0);
        if ask {
            rig.wait(SECOND);
        }
        rig.said.clear();
        rig.lose(2);
        assert_eq!(stories(&rig.take(), DRIVER), []);
        let outputs = if ask {
            let launch = Ok(Launch {
                spec: b"new".as_slice().into(),
                environ: Some(Vec::new()),
                command: None,
            });
            rig.say(
                DRIVER,
                ToAgent::Respawn {
                    proc: proc(1),
                    incarnation: Incarnation(1),
                    launch,
                },
            );
            assert_eq!(rig.launches(), [(1, 1)]);
            continue;
        } else {
            wait(&mut rig, SECOND)
        };
        assert_eq!(orders(&outputs), [(1, 1, 3)]);
    }
}

#[test]
fn one_that_is_down_and_stays_fails() {
    for (ask, gone) in [(false, true), (false, false), (true, true)] {
        let mut rig = rig(Spawn {
            policy: Some(mending(3, On::SameHost)),
            ask,
            ..on(spawn(&[1]), &[2])
        });
        rig.die(1, 0, Exit::Signal(9));
        if gone {
            rig.go(1, 0);
        }
        rig.wait(SECOND);
        let started = rig.launches();
        assert_eq!(started.is_empty(), ask || !gone);
        rig.lose(2);
        let story = stories(&rig.take(), DRIVER);
        assert_eq!(story, [(1, "failed"), (1, "gone")], "{ask} {gone}");
        rig.wait(10 * SECOND);
        assert_eq!(rig.take(), []);
        assert!(rig.agent.is_empty());
    }
}

#[test]
fn one_that_waits_for_its_template_is_lost_too() {
    let mut rig = Rig::with_templates();
    rig.join(2);
    rig.join(3);
    let spawned = Spawn {
        policy: Some(mending(3, On::AnyHost)),
        ..on(warm(&[1, 2]), &[2, 2])
    };
    rig.say(DRIVER, ToAgent::Spawn(Box::new(spawned)));
    let template = rig.take().into_iter().find_map(|output| match output {
        Output::StartTemplate { template, .. } => Some(template),
        _ => None,
    });
    rig.lose(2);
    let story = stories(&rig.take(), DRIVER);
    assert_eq!(story[..2], [(1, "dead"), (1, "restarting")]);
    rig.input_from(2, Input::TemplateReady(template.expect("it was started")));
    assert_eq!(rig.launches(), []);
    assert_eq!(orders(&wait(&mut rig, SECOND)), [(1, 1, 3), (2, 1, 3)]);
}

#[test]
fn what_was_dying_dies_of_what_was_seen() {
    let mut rig = rig(on(spawn(&[1]), &[2]));
    let seen = Seen {
        likely: Some(Exit::Code(3)),
        ..Seen::default()
    };
    rig.input(Input::Died {
        proc: proc(1),
        incarnation: Incarnation(0),
        seen,
    });
    rig.lose(2);
    let said = rig.take();
    assert_eq!(stories(&said, DRIVER), [(1, "failed"), (1, "gone")]);
    assert_eq!(last_death(&said, 1).kind, DeathKind::Exit);
}

#[test]
fn what_had_ended_is_gone_with_its_host() {
    let mut rig = rig(on(spawn(&[1]), &[2]));
    rig.die(1, 0, Exit::Code(0));
    rig.said.clear();
    rig.lose(2);
    assert_eq!(stories(&rig.take(), DRIVER), [(1, "gone")]);
    assert!(rig.agent.is_empty());
    // It may be asked to start again, which tells once more that it cannot.
    rig.say(
        DRIVER,
        ToAgent::Restart {
            procs: vec![proc(1)],
            reason: "again".to_owned(),
            patience: Patience::NONE,
        },
    );
    let story = stories(&rig.take(), DRIVER);
    assert_eq!(story, [(1, "restarting"), (1, "failed"), (1, "gone")]);
}

#[test]
fn ranks_that_start_together_do_so_over_hosts() {
    let all = Policy {
        scope: Scope::All,
        on: On::AnyHost,
        ..policy(3)
    };
    let mut rig = rig(Spawn {
        policy: Some(all),
        ..on(spawn(&[1, 2, 3]), &[2, 2, 3])
    });
    rig.lose(2);
    let said = rig.take();
    let stopped = said.iter().filter_map(|output| match output {
        Output::Send {
            to,
            message: ToClient::Stop { .. },
            ..
        } => Some(to[0].get()),
        _ => None,
    });
    assert_eq!(
        stopped.collect::<BTreeSet<_>>(),
        BTreeSet::from([3]),
        "what is lost cannot be asked to end"
    );
}

#[test]
fn what_a_lost_owner_had_ends_wherever_it_is() {
    let mut rig = rig(any_host(&[1], &[2], 3));
    let spawned = Spawn {
        owner: proc(1),
        mesh: mesh(9),
        ..any_host(&[2, 3], &[3, 2], 3)
    };
    start(&mut rig, spawned);
    rig.lose(2);
    let said = rig.take();
    assert!(
        said.iter().any(
            |output| matches!(output, Output::Send { to, message: ToClient::Stop { .. }, .. } if **to == [proc(2)])
        )
    );
    let story = stories(&said, DRIVER);
    assert_eq!(
        story,
        [(1, "dead"), (1, "restarting"), (3, "stopped")],
        "its owner ended before it did"
    );
}
