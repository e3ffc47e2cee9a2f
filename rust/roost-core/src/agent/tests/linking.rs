//! Links to memory.

use super::*;

pub(super) fn want(of: u64, incarnation: u32) -> ToAgent {
    ToAgent::Link {
        proc: proc(of),
        incarnation: Incarnation(incarnation),
    }
}

fn links(rig: &mut Rig) -> Vec<(u32, u64, u64)> {
    let link = |output| match output {
        Output::Link { link, asks, serves } => Some((link, asks.0.get(), serves.0.get())),
        _ => None,
    };
    rig.take().into_iter().filter_map(link).collect()
}

/// (reason, whether it is over).
fn refusals(notices: Vec<ToClient>) -> Vec<(String, bool)> {
    let refusal = |notice| match notice {
        ToClient::LinkFailed { reason, is_over, .. } => Some((reason, is_over)),
        _ => None,
    };
    notices.into_iter().filter_map(refusal).collect()
}

#[test]
fn each_wish_is_a_link_of_its_own() {
    let mut rig = Rig::with(spawn(&[1, 2]));
    rig.say(1, want(2, 0));
    rig.say(2, want(1, 0));
    rig.say(DRIVER, want(1, 0));
    rig.say(1, want(DRIVER, 0));
    assert_eq!(
        links(&mut rig),
        [(1, 1, 2), (2, 2, 1), (3, DRIVER, 1), (4, 1, DRIVER)]
    );
}

#[test]
fn the_memory_of_a_life_that_has_ended_is_never_reached() {
    let mut rig = Rig::with(Spawn {
        policy: Some(policy(1)),
        ..spawn(&[1, 2])
    });
    rig.crash(2, 0);
    rig.take();
    rig.say(1, want(2, 0));
    let [(_, true)] = &refusals(rig.notices(1))[..] else {
        panic!("the life has ended")
    };
    rig.wait(SECOND);
    rig.come_up(2, 1);
    rig.take();
    rig.say(1, want(2, 0));
    assert_eq!(
        refusals(rig.notices(1)),
        [("workers[2] #0 has ended".to_owned(), true)]
    );
    rig.say(1, want(2, 1));
    assert_eq!(links(&mut rig).len(), 1);
    for (of, is_over) in [(99, true), (1, false)] {
        rig.say(1, want(of, 0));
        assert!(matches!(&refusals(rig.notices(1))[..], [(_, over)] if *over == is_over));
    }
}

#[test]
fn who_asked_hears_of_ends_that_could_not_be_made() {
    let mut rig = Rig::with(spawn(&[1, 2]));
    let ends = |asks, serves| Input::LinkFailed {
        asks: (proc(asks), Incarnation(0)),
        serves: (proc(serves), Incarnation(0)),
        reason: "no file descriptors left".to_owned(),
    };
    rig.input(ends(1, 2));
    assert_eq!(
        refusals(rig.notices(1)),
        [("no file descriptors left".to_owned(), false)]
    );
    rig.crash(2, 0);
    rig.take();
    rig.input(ends(1, 2));
    assert!(matches!(&refusals(rig.notices(1))[..], [(_, true)]));
}

#[test]
fn numbers_come_round_again_without_zero() {
    let mut rig = Rig::with(spawn(&[1, 2]));
    rig.agent.links = (1 << 24) - 2;
    rig.say(1, want(2, 0));
    rig.say(1, want(2, 0));
    let numbers: Vec<u32> = links(&mut rig).into_iter().map(|(link, ..)| link).collect();
    assert_eq!(numbers, [(1 << 24) - 1, 1]);
}
