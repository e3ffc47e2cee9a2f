//! Several hosts: who is told where, lanes between them, and what becomes of procs whose host is gone.

use super::*;
use crate::control::HostStatus;

/// The same ranks on these hosts, one after the other.
pub(super) fn on(mut spawn: Spawn, hosts: &[u64]) -> Spawn {
    let of = hosts.iter().cycle();
    for (rank, &number) in spawn.ranks.iter_mut().chain(&mut spawn.spares).zip(of) {
        rank.host = host(number);
    }
    spawn
}

impl Rig {
    pub(super) fn join(&mut self, number: u64) {
        let name = format!("node{number}");
        let host = host(number);
        self.input(Input::HostJoined { host, name });
    }

    pub(super) fn lose(&mut self, number: u64) {
        self.input(Input::HostLost {
            host: host(number),
            reason: "silent for 10 s".to_owned(),
        });
    }
}

/// Hosts 2 and 3 are there, and these procs run.
fn rig(spawned: Spawn) -> Rig {
    let mut rig = Rig::new();
    rig.join(2);
    rig.join(3);
    let procs: Vec<ProcId> = spawned.ranks.iter().map(|rank| rank.proc).collect();
    rig.say(DRIVER, ToAgent::Spawn(Box::new(spawned)));
    for id in procs {
        rig.come_up(id.get(), 0);
    }
    rig.said.clear();
    rig
}

#[test]
fn procs_of_a_lost_host_are_lost_with_it() {
    let mut rig = rig(on(spawn(&[1, 2, 3]), &[2, 2, 3]));
    rig.lose(2);
    let notices = rig.notices(DRIVER);
    assert!(
        matches!(&notices[0], ToClient::Host { name, status: HostStatus::Lost { reason }, .. }
            if name == "node2" && reason == "silent for 10 s")
    );
    let statuses: Vec<Status> = notices
        .into_iter()
        .filter_map(|notice| match notice {
            ToClient::Member(member) => Some(member.status),
            _ => None,
        })
        .collect();
    assert_eq!(story(&statuses), ["failed", "gone", "failed", "gone"]);
    let Status::Failed { death, .. } = &statuses[0] else {
        panic!("{statuses:?}")
    };
    assert_eq!(death.kind, DeathKind::Lost);
    assert_eq!(death.reason, "its host node2 is lost: silent for 10 s");
    assert_eq!(death.started, None, "everything may have been started");
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
    assert_eq!(rig.take(), [], "it is not there");
    rig.lose(2);
    rig.take();
    rig.input_from(2, died());
    assert_eq!(rig.take(), []);
}
