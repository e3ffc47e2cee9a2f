//! Several hosts: who is told where, and what becomes of procs whose host is gone.

mod far;
mod many;
mod moving;
mod reserve;

use super::*;
use crate::control::HostStatus;

/// The same ranks and spares on these hosts, one after the other.
pub(super) fn on(mut spawn: Spawn, hosts: &[u64]) -> Spawn {
    let of = hosts.iter().cycle();
    for (rank, &number) in spawn.ranks.iter_mut().chain(&mut spawn.spares).zip(of) {
        rank.host = host(number);
    }
    spawn
}

fn mending(limit: u32, on: On) -> Policy {
    Policy { on, ..policy(limit) }
}

impl Rig {
    pub(super) fn join(&mut self, number: u64) {
        let name = format!("node{number}");
        let host = host(number);
        self.input(Input::HostJoined { host, name });
    }

    pub(super) fn lose(&mut self, number: u64) {
        self.gone.insert(number);
        let (host, reason) = (host(number), "silent for 10 s".to_owned());
        self.input(Input::HostLost { host, reason });
    }

    pub(super) fn leave(&mut self, number: u64) {
        self.gone.insert(number);
        self.input(Input::HostLeft { host: host(number) });
    }

    /// What follows from this, with the hosts that it is for.
    pub(super) fn outputs_of(&mut self, input: Input) -> Vec<(u64, Output)> {
        self.agent.handle(self.now_ns, input);
        let outputs = std::iter::from_fn(|| self.agent.next_output());
        outputs.map(|(host, output)| (host.get(), output)).collect()
    }
}

pub(super) fn said(from: u64, message: ToAgent) -> Input {
    Input::Message {
        from: proc(from),
        message,
        descriptor: None,
    }
}

/// Hosts 2, 3 and 4 are there, and these procs run.
fn rig(spawned: Spawn) -> Rig {
    let mut rig = Rig::new();
    for number in 2..=4 {
        rig.join(number);
    }
    start(&mut rig, spawned);
    rig
}

fn start(rig: &mut Rig, spawned: Spawn) {
    let all = spawned.ranks.iter().chain(&spawned.spares);
    let procs: Vec<ProcId> = all.map(|rank| rank.proc).collect();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(spawned)));
    for id in procs {
        rig.come_up(id.get(), 0);
    }
    rig.said.clear();
}

/// Who was told what of procs, at a glance.
fn stories(said: &[Output], receiver: u64) -> Vec<(u64, &'static str)> {
    let told = said.iter().filter_map(|output| match output {
        Output::Send {
            to,
            message: ToClient::Member(member),
            ..
        } if **to == [proc(receiver)] => {
            Some((member.proc.get(), story(std::slice::from_ref(&member.status))[0]))
        }
        _ => None,
    });
    told.collect()
}

fn last_death(said: &[Output], number: u64) -> Death {
    let death = said.iter().rev().find_map(|output| match output {
        Output::Send {
            message: ToClient::Member(member),
            ..
        } if member.proc == proc(number) => match &member.status {
            Status::Dead { death } | Status::Failed { death, .. } | Status::Stopped { death } => Some(death),
            _ => None,
        },
        _ => None,
    });
    death.expect("it was told").clone()
}

#[test]
fn each_host_gets_what_is_its_own() {
    let mut rig = Rig::with_templates();
    rig.join(2);
    let spawned = ToAgent::Spawn(Box::new(on(warm(&[1, 2, 3]), &[OWN, 2, 2])));
    let started = rig.outputs_of(said(DRIVER, spawned));
    let starts: Vec<(u64, TemplateId)> = started
        .iter()
        .filter_map(|(of, output)| match output {
            Output::StartTemplate { template, .. } => Some((*of, *template)),
            _ => None,
        })
        .collect();
    let [(OWN, own), (2, far)] = *starts else {
        panic!("a template for each host: {starts:?}")
    };
    // A host can only answer for its own.
    rig.input_from(2, Input::TemplateReady(own));
    assert_eq!(rig.launches(), []);
    rig.input_from(2, Input::TemplateReady(far));
    assert_eq!(rig.launches(), [(2, 0), (3, 0)]);
    let told = rig.outputs_of(Input::TemplateReady(own));
    assert!(matches!(&told[0], (OWN, Output::Launch(order)) if order.proc == proc(1)));
}

#[test]
fn a_change_is_one_output_a_host() {
    let mut rig = rig(on(spawn(&[1, 2, 3, 4, 5, 6]), &[2, 2, 3, 3, OWN, OWN]));
    rig.input(Input::Died {
        proc: proc(1),
        incarnation: Incarnation(0),
        seen: Seen::default(),
    });
    rig.now_ns += SECOND;
    let told: Vec<(u64, Vec<u64>)> = rig
        .outputs_of(Input::Tick)
        .into_iter()
        .map(|(of, output)| match output {
            Output::Send { to, .. } => (of, to.iter().map(|id| id.get()).collect()),
            other => panic!("{other:?}"),
        })
        .collect();
    // The driver had a lane to it, and so hears what of its own was started; there is no word for the others.
    assert_eq!(
        told,
        [
            (OWN, vec![5, 6]),
            (OWN, vec![DRIVER]),
            (2, vec![2]),
            (3, vec![3, 4])
        ]
    );
}

#[test]
fn procs_of_a_lost_host_are_lost_with_it() {
    let mut rig = rig(on(spawn(&[1, 2, 3]), &[2, 2, 3]));
    rig.say(2, ToAgent::Spawn(Box::new(on(spawn(&[7]), &[2]))));
    rig.said.clear();
    rig.lose(2);
    let said = rig.take();
    assert!(
        matches!(&said[0], Output::Send { to, message: ToClient::Host { name, status: HostStatus::Lost { reason }, .. }, .. }
            if **to == [proc(DRIVER)] && name == "node2" && reason == "silent for 10 s"),
        "the driver hears of the host before it hears of its procs"
    );
    let all = [
        (1, "failed"),
        (1, "gone"),
        (2, "failed"),
        (2, "gone"),
        (7, "failed"),
        (7, "gone"),
    ];
    assert_eq!(stories(&said, DRIVER), all);
    let death = last_death(&said, 1);
    assert_eq!(
        (death.kind, death.started, death.exit),
        (DeathKind::Lost, None, None),
        "everything may have been started"
    );
    assert_eq!(death.reason, "its host node2 is lost: silent for 10 s");
    assert_eq!(stories(&said, 3), [(1, "failed"), (2, "failed"), (7, "failed")]);
    for lost in [1, 2, 7] {
        assert!(
            !said
                .iter()
                .any(|output| matches!(output, Output::Send { to, .. } if **to == [proc(lost)]))
        );
    }
    // Who wants to talk to one is told why that is not possible.
    rig.say(3, ToAgent::Connect { proc: proc(1) });
    assert!(
        matches!(rig.notices(3).as_slice(), [ToClient::Member(_), ToClient::ConnectFailed { reason, .. }]
            if reason == "workers[1] has ended: its host node2 is lost: silent for 10 s")
    );
}

#[test]
fn owners_of_procs_there_hear_of_the_host_and_nobody_else() {
    let mut rig = rig(on(spawn(&[1, 2]), &[3, 4]));
    start(
        &mut rig,
        Spawn {
            owner: proc(1),
            mesh: mesh(9),
            ..on(spawn(&[3]), &[2])
        },
    );
    let lost = Input::HostLost {
        host: host(2),
        reason: "cut".to_owned(),
    };
    let told: Vec<(u64, Vec<ProcId>)> = rig
        .outputs_of(lost)
        .into_iter()
        .filter_map(|(of, output)| match output {
            Output::Send {
                to,
                message: ToClient::Host { .. },
                ..
            } => Some((of, to)),
            _ => None,
        })
        .collect();
    assert_eq!(told, [(OWN, vec![proc(DRIVER)]), (3, vec![proc(1)])]);
}

#[test]
fn what_a_lost_host_still_says_comes_too_late() {
    let mut rig = rig(on(spawn(&[1, 2]), &[2, 3]));
    let died = || Input::Died {
        proc: proc(1),
        incarnation: Incarnation(0),
        seen: Seen::default(),
    };
    rig.input_from(3, died());
    rig.input_from(3, said(1, ToAgent::Connect { proc: proc(2) }));
    rig.input_from(3, Input::Close);
    assert_eq!(rig.take(), [], "it speaks for its own procs alone");
    rig.lose(2);
    rig.take();
    rig.input_from(2, died());
    rig.input_from(2, said(1, ToAgent::Spawn(Box::new(spawn(&[8])))));
    rig.join(2);
    assert_eq!(rig.take(), [], "nor does it come back");
}

#[test]
fn the_drivers_host_is_never_lost() {
    let mut rig = rig(spawn(&[1]));
    for number in [OWN, 99] {
        let (host, reason) = (host(number), "silent".to_owned());
        rig.input(Input::HostLost { host, reason });
    }
    assert_eq!(rig.take(), []);
}

#[test]
fn a_host_that_leaves_ends_what_is_there() {
    let mut rig = rig(Spawn {
        policy: Some(mending(3, On::AnyHost)),
        ..on(spawn(&[1, 2, 3]), &[2, 2, 3])
    });
    rig.crash(2, 0);
    rig.said.clear();
    rig.leave(2);
    rig.wait(10 * SECOND);
    let said = rig.take();
    assert!(matches!(
        &said[0],
        Output::Send {
            message: ToClient::Host {
                status: HostStatus::Left,
                ..
            },
            ..
        }
    ));
    let all = [(1, "stopped"), (1, "gone"), (2, "stopped"), (2, "gone")];
    assert_eq!(stories(&said, DRIVER), all, "and not started elsewhere");
    let death = last_death(&said, 1);
    assert_eq!(death.kind, DeathKind::Stopped);
    assert_eq!(death.reason, "its host node2 was detached");
}

#[test]
fn a_rank_for_a_host_that_is_not_there_does_not_start() {
    let mut rig = rig(spawn(&[1]));
    rig.say(DRIVER, ToAgent::Spawn(Box::new(on(spawn(&[2]), &[9]))));
    let said = rig.take();
    assert_eq!(
        stories(&said, DRIVER),
        [(2, "starting"), (2, "failed"), (2, "gone")]
    );
    let death = last_death(&said, 2);
    assert_eq!(death.kind, DeathKind::Lost);
    assert_eq!(death.reason, format!("{} is not attached", host(9)));
    rig.lose(2);
    rig.say(DRIVER, ToAgent::Spawn(Box::new(on(spawn(&[3]), &[2]))));
    let reason = last_death(&rig.take(), 3).reason;
    assert_eq!(reason, "its host node2 is lost: silent for 10 s");
}
