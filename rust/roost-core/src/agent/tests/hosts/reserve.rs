//! Spares of meshes over several hosts.

use super::*;

fn places(said: &[Output]) -> Vec<(u64, u64)> {
    let place = |output: &Output| match output {
        Output::TakePlace(place) => Some((place.spare.0.get(), place.proc.0.get())),
        _ => None,
    };
    said.iter().filter_map(place).collect()
}

/// Ranks 1 and 2 on hosts 2 and 3, spare 101 on host 3.
fn with_spare(on_host: On) -> Rig {
    let policy = Policy {
        on: on_host,
        ..policy(3)
    };
    rig(on(spares::with_spares(spawn(&[1, 2]), 1, policy), &[2, 3, 3]))
}

#[test]
fn a_spare_takes_places_on_its_own_host_alone() {
    let mut rig = with_spare(On::SameHost);
    rig.crash(1, 0);
    rig.wait(SECOND);
    let said = rig.take();
    assert_eq!(places(&said), []);
    rig.crash(2, 0);
    let said = rig.take();
    assert_eq!(places(&said), [(101, 2)]);
    let far = said.iter().find_map(|output| match output {
        Output::Far { dial, accept, .. } => Some((dial.proc.get(), accept.proc.get(), accept.incarnation.0)),
        _ => None,
    });
    assert_eq!(
        far,
        Some((DRIVER, 2, 1)),
        "its owner is far away, and gets a lane at once"
    );
}

#[test]
fn a_rank_that_moves_takes_the_place_that_is_ready() {
    let mut rig = with_spare(On::AnyHost);
    rig.lose(4);
    rig.lose(2);
    rig.wait(SECOND);
    assert_eq!(places(&rig.take()), [(101, 1)]);
}

#[test]
fn of_two_hosts_the_one_with_a_spare_is_better() {
    let policy = Policy {
        on: On::AnyHost,
        ..policy(3)
    };
    let spawned = spares::with_spares(spawn(&[1]), 1, policy);
    let mut rig = rig(on(spawned, &[2, 4]));
    rig.lose(2);
    rig.wait(SECOND);
    assert_eq!(places(&rig.take()), [(101, 1)], "host 3 has nothing at all");
}

#[test]
fn a_spare_of_a_lost_host_ends_and_is_not_replaced() {
    let mut rig = with_spare(On::AnyHost);
    rig.lose(3);
    let said = rig.take();
    assert_eq!(stories(&said, DRIVER), [(2, "dead"), (2, "restarting")]);
    rig.wait(100 * SECOND);
    assert_eq!(
        rig.launches().iter().filter(|(number, _)| *number > 100).count(),
        0
    );
}

#[test]
fn a_spare_whose_host_has_no_rank_left_ends() {
    let is_stopped = |rig: &Rig| {
        let ended = |output: &Output| matches!(output, Output::Send { to, message: ToClient::Stop { .. }, .. } if **to == [proc(101)]);
        rig.said.iter().any(ended)
    };
    for (on_host, stops) in [(On::SameHost, true), (On::AnyHost, false)] {
        let mut rig = with_spare(on_host);
        rig.stop(2, "enough");
        rig.crash(2, 0);
        assert_eq!(
            is_stopped(&rig),
            stops,
            "{on_host:?}: rank 1 could come only with `AnyHost`"
        );
    }
}

#[test]
fn what_a_host_says_of_a_spare_after_that_became_a_rank_is_said_of_the_rank() {
    let mut rig = with_spare(On::SameHost);
    rig.crash(2, 0);
    assert_eq!(places(&rig.take()), [(101, 2)]);
    // The host had seen it die before it heard what the spare has become.
    rig.input_from(
        3,
        Input::Died {
            proc: proc(101),
            incarnation: Incarnation(0),
            seen: Seen {
                exit: Some(Exit::Signal(9)),
                ..Seen::default()
            },
        },
    );
    rig.input_from(
        3,
        Input::Gone {
            proc: proc(101),
            incarnation: Incarnation(0),
        },
    );
    let said = rig.take();
    assert_eq!(stories(&said, DRIVER), [(2, "dead"), (2, "restarting")]);
    rig.wait(SECOND);
    assert!(rig.launches().contains(&(2, 2)));
}
