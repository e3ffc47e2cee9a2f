//! What many hosts cost.

use super::*;

const PROCS_EACH: u64 = 2;

/// So many hosts, each with its procs, all up.
fn rig_of(hosts: u64) -> Rig {
    let mut rig = Rig::new();
    for number in 2..2 + hosts {
        rig.join(number);
    }
    let procs: Vec<u64> = (2_000..2_000 + hosts * PROCS_EACH).collect();
    let of: Vec<u64> = (2..2 + hosts).collect();
    let spawned = Spawn {
        policy: Some(mending(3, On::AnyHost)),
        ..on(spawn(&procs), &of)
    };
    rig.outputs = 0;
    start(&mut rig, spawned);
    // A start for each host's template; for each proc starting, launch, epoch, two ends of a lane, up.
    assert_eq!(rig.outputs as u64, hosts + 6 * hosts * PROCS_EACH);
    rig.outputs = 0;
    rig
}

#[test]
fn a_death_costs_as_many_outputs_as_there_are_hosts() {
    for hosts in [1_000, 4_000] {
        let mut rig = rig_of(hosts);
        rig.die(2_000, 0, Exit::Signal(9));
        // Dead and restarting, each to every host with procs and to the driver.
        assert_eq!(rig.outputs as u64, 2 * (hosts + 1));
        rig.outputs = 0;
        rig.lose(3);
        let deaths = PROCS_EACH;
        assert_eq!(
            rig.outputs as u64,
            1 + deaths * 2 * hosts,
            "the host itself, to the driver; then each death to those that are left"
        );
        rig.now_ns += SECOND;
        let moved = rig.outputs_of(Input::Tick);
        let launches = moved
            .iter()
            .filter(|(_, output)| matches!(output, Output::Launch(_)));
        assert_eq!(launches.count() as u64, deaths);
    }
}
