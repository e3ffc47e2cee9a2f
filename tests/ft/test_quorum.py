import os

import pytest
from quorum_world import World

from roost.ft.ending import End
from roost.ft.quorum import Ask, Condemned, Decided, Decision, Ended, Formed, Report, Stopped
from roost.ft.quorums import Quorums

SEEDS = int(os.environ.get("ROOST_SIM_SEEDS", "60"))


def machine(replicas, **kwargs):
    made = Quorums(0, replicas, **kwargs)
    for replica in range(replicas):
        for proc in range(kwargs.get("procs", 1)):
            made.heard(replica, proc, None)
    return made


def ask(step=0, **kwargs):
    return Ask(step, has_state=step > 0, **kwargs)


def ask_all(quorums, replicas, step, life=0):
    return [output for replica in replicas for output in quorums.asked(replica, life, 0, ask(step, digest="same"))]


def vote_all(quorums, quorum, is_yes=True):
    outputs = []
    for replica, life in zip(quorum.members, quorum.lives, strict=True):
        outputs += quorums.voted(replica, life, 0, Decision(quorum.id, quorum.step, is_yes))
    return outputs


def committed(quorums, replicas, step=0):
    """The quorum of a step that counted."""
    formed = ask_all(quorums, replicas, step)[-1]
    assert isinstance(formed, Formed)
    assert vote_all(quorums, formed.quorum) == [Decided(Decision(formed.quorum.id, step, is_yes=True))]
    return formed.quorum


def test_a_quorum_keeps_its_id_while_nothing_changes():
    quorums = machine(2)
    ids = [committed(quorums, [0, 1], step).id for step in range(3)]
    assert ids == [1, 1, 1]


def test_a_broken_group_is_made_anew_before_a_step_is_lost_with_it():
    quorums = machine(2)
    first = committed(quorums, [0, 1])
    quorums.asked(0, 0, 0, ask(1, is_broken=True))
    formed = quorums.asked(1, 0, 0, ask(1))[-1]
    assert formed.is_new
    assert formed.quorum.id == first.id + 1


def test_all_members_count_alike_whatever_each_of_them_brings():
    quorums = machine(2)
    committed(quorums, [0, 1])
    quorums.asked(0, 0, 0, ask(1, base=10, local=7))
    quorum = quorums.asked(1, 0, 0, ask(1, base=10, local=10))[-1].quorum
    assert (quorum.base, quorum.steps) == (10, 10)


def test_an_id_has_the_coordinators_epoch():
    quorums = Quorums(7, 1)
    quorums.heard(0, 0, None)
    (formed,) = quorums.asked(0, 0, 0, ask())
    assert formed.quorum.id == (7 << 32) | 1


def test_before_the_first_commit_all_are_waited_for_and_the_first_ones_state_is_everybodys():
    quorums = machine(3)
    assert quorums.asked(2, 0, 0, ask(digest="a")) == quorums.asked(1, 0, 0, ask(digest="b")) == []
    (formed,) = quorums.asked(0, 0, 0, ask(digest="a"))
    assert (formed.quorum.healing, formed.quorum.sources) == ((1,), ((0,),))


def test_newcomers_are_not_waited_for_and_never_outvote_the_one_that_has_the_state():
    quorums = machine(3)
    committed(quorums, [0, 1, 2])
    quorums.died(1)
    quorums.died(2)
    assert quorums.asked(1, 1, 0, ask()) == quorums.asked(2, 1, 0, ask()) == []
    (formed,) = quorums.asked(0, 0, 0, ask(1))
    assert formed.quorum.step == 1
    assert (formed.quorum.members, formed.quorum.healing, formed.quorum.sources) == ((0, 1, 2), (1, 2), ((0,), (0,)))


def test_newcomers_take_from_several_each_beginning_with_another():
    quorums = machine(5, donors=2)
    committed(quorums, [0, 1, 2, 3, 4])
    quorums.died(3)
    quorums.died(4)
    for replica in (3, 4):
        quorums.asked(replica, 1, 0, ask())
    quorum = ask_all(quorums, [0, 1, 2], 1)[-1].quorum
    assert (quorum.sources_of(3), quorum.sources_of(4), quorum.sources_of(0)) == ((0, 1), (1, 2), ())
    assert [quorum.is_source(one) for one in range(5)] == [True, True, True, False, False]


def test_survivors_go_on_at_once_without_the_dead():
    quorums = machine(2)
    committed(quorums, [0, 1])
    assert quorums.asked(0, 0, 0, ask(1)) == []
    formed = quorums.died(1)[-1]
    assert formed.quorum.members == (0,)


def test_a_death_before_its_vote_is_no_and_condemns_the_group():
    quorums = machine(2)
    quorum = ask_all(quorums, [0, 1], 0)[-1].quorum
    quorums.voted(0, 0, 0, Decision(quorum.id, 0, is_yes=True))
    decided, condemned = quorums.died(1)
    assert decided == Decided(Decision(quorum.id, 0, is_yes=False))
    assert isinstance(condemned, Condemned)
    assert condemned.quorum_id == quorum.id
    assert quorums.decision(quorum.id, 0) is False


def test_a_death_after_its_vote_leaves_the_decision_standing():
    quorums = machine(2)
    quorum = ask_all(quorums, [0, 1], 0)[-1].quorum
    quorums.voted(1, 0, 0, Decision(quorum.id, 0, is_yes=True))
    assert quorums.died(1) == []
    assert quorums.voted(0, 0, 0, Decision(quorum.id, 0, is_yes=True)) == [Decided(Decision(quorum.id, 0, is_yes=True))]


def test_a_death_that_is_heard_late_is_that_of_the_life_that_had_it():
    """Of a replica of two procs both die, and one is heard of when the other has asked in its next life."""
    quorums = machine(2, procs=2)
    for replica in range(2):
        for proc in range(2):
            quorums.asked(replica, 0, proc, Ask(0, has_state=False, digest="same"))
    quorums.died(1, "died", 0)
    quorums.asked(1, 1, 0, Ask(0, has_state=False))
    quorums.died(1, "died", 0)
    assert quorums.live == (0, 1)
    for proc in range(2):
        quorums.asked(0, 0, proc, Ask(0, has_state=False, digest="same"))
    *_, formed = quorums.asked(1, 1, 1, Ask(0, has_state=False))
    assert (formed.quorum.members, formed.quorum.lives) == ((0, 1), (0, 1))
    # In its own life it is a death.
    quorums.died(1, "died", 1)
    assert quorums.live == (0,)


def test_one_no_is_enough_is_final_and_makes_a_new_group():
    quorums = machine(2)
    quorum = ask_all(quorums, [0, 1], 0)[-1].quorum
    decided, condemned = quorums.voted(0, 0, 0, Decision(quorum.id, 0, is_yes=False))
    assert not decided.decision.is_yes
    assert condemned.members == (0, 1)
    assert quorums.voted(1, 0, 0, Decision(quorum.id, 0, is_yes=True)) == []
    assert quorums.decision(quorum.id, 0) is False
    assert ask_all(quorums, [0, 1], 0)[-1].quorum.id == quorum.id + 1


def vote_and_ask(quorums, quorum, idles):
    outputs = []
    for replica, idle in enumerate(idles):
        vote = Decision(quorum.id, quorum.step, is_yes=True)
        outputs += quorums.voted(replica, 0, 0, vote, idle)
    return outputs


def test_the_next_quorum_follows_from_the_votes_when_all_have_asked_with_them():
    quorums = machine(2)
    quorums.asked(0, 0, 0, ask(digest="same", base=7, local=1))
    first = quorums.asked(1, 0, 0, ask(digest="same", base=7, local=1))[-1].quorum
    decided, formed = vote_and_ask(quorums, first, [False, False])
    assert decided == Decided(Decision(first.id, 0, is_yes=True))
    assert formed == Formed(first.following, is_new=False)
    assert (first.following.step, first.following.base, first.following.steps) == (1, 8, 1)
    assert vote_and_ask(quorums, first.following, [True, False])[-1].quorum.idle == (0,)


def test_who_has_not_asked_with_its_vote_is_waited_for_and_the_others_ask_again():
    quorums = machine(2)
    first = ask_all(quorums, [0, 1], 0)[-1].quorum
    assert len(vote_and_ask(quorums, first, [False, None])) == 1
    assert quorums.asked(1, 0, 0, ask(1)) == []
    assert quorums.asked(0, 0, 0, ask(1))[-1].quorum.step == 1


def test_a_newcomer_that_waits_is_in_the_quorum_that_follows_from_the_votes():
    quorums = machine(3)
    first = committed(quorums, [0, 1, 2])
    quorums.died(2)
    second = ask_all(quorums, [0, 1], 1)[-1].quorum
    quorums.asked(2, 1, 0, ask())
    *_, formed = vote_and_ask(quorums, second, [False, False])
    assert (formed.quorum.members, formed.quorum.healing, formed.is_new) == ((0, 1, 2), (2,), True)
    assert formed.quorum.id > second.id > first.id


def test_who_dies_between_its_vote_and_the_decision_is_not_in_the_quorum_that_follows():
    quorums = machine(2)
    first = ask_all(quorums, [0, 1], 0)[-1].quorum
    quorums.voted(1, 0, 0, Decision(first.id, 0, is_yes=True), False)
    assert quorums.died(1) == []
    decided, condemned, formed = quorums.voted(0, 0, 0, Decision(first.id, 0, is_yes=True), False)
    assert decided.decision.is_yes
    assert condemned.quorum_id == first.id
    assert (formed.quorum.members, formed.is_new) == ((0,), True)


def test_the_end_follows_from_the_votes_when_nobody_has_a_next_step():
    quorums = machine(2)
    first = ask_all(quorums, [0, 1], 0)[-1].quorum
    assert vote_and_ask(quorums, first, [True, True])[-1] == Ended(0, (0, 1))


def test_stale_votes_change_nothing():
    quorums = machine(2)
    first = committed(quorums, [0, 1])
    formed = ask_all(quorums, [0, 1], 1)[-1]
    assert quorums.voted(0, 0, 0, Decision(first.id, 0, is_yes=False)) == []
    assert quorums.voted(0, 1, 0, Decision(formed.quorum.id, 1, is_yes=False)) == []
    assert quorums.decision(first.id, 0) is True
    assert quorums.decision(formed.quorum.id, 1) is None


def test_a_member_that_asks_instead_of_voting_has_given_the_step_up():
    quorums = machine(2)
    quorum = ask_all(quorums, [0, 1], 0)[-1].quorum
    decided, *_ = quorums.asked(1, 0, 0, ask())
    assert decided == Decided(Decision(quorum.id, 0, is_yes=False))


def test_every_proc_of_a_replica_asks_and_votes():
    quorums = machine(2, procs=2)
    for replica, proc in [(0, 0), (0, 1), (1, 1)]:
        assert quorums.asked(replica, 0, proc, ask(digest="x")) == []
    (formed,) = quorums.asked(1, 0, 0, ask(digest="x"))
    quorum = formed.quorum
    for replica, proc in [(0, 0), (0, 1), (1, 1)]:
        assert quorums.voted(replica, 0, proc, Decision(quorum.id, 0, is_yes=True)) == []
    assert quorums.voted(1, 0, 0, Decision(quorum.id, 0, is_yes=True)) != []


def test_a_new_coordinator_waits_for_all_and_takes_over_what_one_of_them_was_told():
    quorums = Quorums(1, 3)
    old = Decision(1, 4, is_yes=True)
    assert quorums.heard(1, 0, Report(0, has_state=True)) == []
    quorums.voted(1, 0, 0, old)
    assert quorums.decision(1, 4) is None
    quorums.heard(0, 0, Report(0, has_state=True, last=old))
    assert quorums.decision(1, 4) is None
    quorums.died(2)
    assert quorums.decision(1, 4) is True
    formed = ask_all(quorums, [0, 1], 5)[-1]
    assert formed.quorum.id == (1 << 32) | 1


def test_a_new_coordinator_says_no_to_what_nobody_was_told():
    quorums = Quorums(1, 2)
    for replica in range(2):
        quorums.heard(replica, 0, Report(0, has_state=True, last=Decision(1, 3, is_yes=True)))
    assert quorums.decision(1, 4) is False


def test_a_run_never_begins_anew_once_a_step_has_counted():
    quorums = machine(2)
    committed(quorums, [0, 1])
    quorums.died(0)
    (stopped,) = quorums.died(1)[-1:]
    assert isinstance(stopped, Stopped)
    assert "trained state" in stopped.reason


def test_fewer_than_min_replicas_wait_and_are_an_error_when_no_more_can_come():
    quorums = machine(3, min_replicas=2)
    committed(quorums, [0, 1, 2])
    quorums.died(1)
    quorums.died(2)
    assert quorums.asked(0, 0, 0, ask(1)) == []
    assert isinstance(quorums.asked(2, 1, 0, ask())[-1], Formed)
    quorums.lost(1)
    assert isinstance(quorums.lost(2, "is given up")[-1], Stopped)


def test_who_never_comes_is_not_waited_for():
    quorums = machine(2)
    quorums.asked(0, 0, 0, ask())
    assert quorums.lost(1)[-1].quorum.members == (0,)


def test_all_end_together():
    quorums = machine(2)
    committed(quorums, [0, 1])
    quorums.asked(0, 0, 0, ask(1, is_idle=True))
    formed = quorums.asked(1, 0, 0, ask(1))[-1]
    assert formed.quorum.idle == (0,)
    vote_all(quorums, formed.quorum)
    quorums.asked(0, 0, 0, ask(2, is_idle=True))
    assert quorums.asked(1, 0, 0, ask(2, is_idle=True)) == [Ended(0, (0, 1))]


@pytest.mark.parametrize("told", ["by its report", "by itself"])
def test_a_new_coordinator_does_not_wait_for_those_that_have_ended(told):
    quorums = Quorums(1, 2)
    end = End(20, (0,))
    outputs = quorums.heard(0, 0, Report(0, has_state=True, end=end if told == "by its report" else None))
    if told == "by itself":
        # Its companion was asked just before its training thread heard the end.
        quorums.heard(1, 0, None)
        assert quorums.asked(1, 1, 0, ask()) == []
        outputs = quorums.over(end)
    assert outputs == [Ended(20, (0,))]
    assert quorums.over(end) == []


@pytest.mark.parametrize("replicas", [1, 2, 3, 5, 8])
def test_every_schedule_keeps_one_history(replicas):
    followed = 0
    for seed in range(SEEDS):
        try:
            followed += check(seed, replicas).followed
        except AssertionError as error:
            raise AssertionError(f"seed {seed} with {replicas} replicas") from error
    assert followed, "no vote was answered with the next quorum"


def check(seed, replicas):
    world = World(seed, replicas, donors=1 + seed % 3)
    world.run()
    assert world.stopped or all(one.end is not None for one in world.members.values()), "it stands still"
    histories = [one.history for one in world.members.values() if one.has_state]
    longest = max(histories, key=len, default=())
    assert all(history == longest[: len(history)] for history in histories)
    assert [step for _, step in longest] == list(range(len(longest)))
    if not world.stopped:
        assert len(longest) == world.steps
    return world
