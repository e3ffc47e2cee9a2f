"""What is told of a job: whichever looks there were at it, the story is whole."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.job import HostStatus, JobStatus
from roost.job.story import Story


def status(state="running", *hosts, **more):
    return JobStatus(name="j", state=state, hosts=hosts, **more)


def host(rank, state="up", **more):
    return HostStatus(mesh="trainers", rank=rank, state=state, address=f"a:{rank}", **more)


def told(*looks, warn_s=60):
    """The kinds of events that are told after each look."""
    story = Story(warn_s)
    return [[event.kind for event in story.goes_on(look)] for look in looks]


def test_each_change_is_told_once():
    seen = told(
        status("pending"), status(), status("running", host(0), host(1, "missing")), status("running", host(0), host(1)),
        status("running", host(0), host(1, "lost"), time_left_s=61.0), status("running", host(0), host(1, "lost"), time_left_s=59.0),
        status("running", host(0), time_left_s=4.0, preempted=True), status("pending", restarts=1), status(restarts=1),
        status("ended"), status("ended"),
    )  # fmt: skip
    assert seen == [
        ["pending"], ["running"], ["host_up"], ["host_up"], ["host_lost"], ["time_left"], ["preempted"], ["requeued", "pending"],
        ["running"], ["ended"], [],
    ]  # fmt: skip


@pytest.mark.parametrize(
    "agent", [{"address": "b:1"}, {"address": "a:1", "agent": "2"}], ids=["elsewhere", "at its address"]
)
def test_a_host_that_another_agent_took_the_place_of_is_lost_and_up_anew(agent):
    one = HostStatus(mesh="trainers", rank=0, state="up", address="a:1", agent="1")
    other = HostStatus(mesh="trainers", rank=0, state="up", **agent)
    assert told(status("running", one), status("running", other))[1] == ["host_lost", "host_up"]


def test_hosts_that_go_with_their_job_are_not_lost_one_by_one():
    gone = host(0, "missing", reason="COMPLETING")
    assert told(status("running", host(0)), status("running", gone, reason="COMPLETING"))[1] == []
    assert told(status("running", host(0)), status("running", gone))[1] == ["host_lost"]


def test_what_is_near_is_told_in_each_life():
    near = {"time_left_s": 5.0}
    assert told(status(**near), status(restarts=1, **near))[1] == ["requeued", "running", "time_left"]
    taken = {"preempted": True}
    assert told(status(**taken), status(restarts=1, **taken))[1] == ["requeued", "running", "preempted"]


def test_a_life_that_ended_between_two_looks_has_run():
    waits = status("pending")
    ran = status("ended", has_run=True, reason="CANCELLED")
    assert told(waits, ran) == [["pending"], ["running", "ended"]]
    assert told(waits, status("ended", reason="CANCELLED"))[1] == ["ended"], "it was cancelled while it waited"
    again = status("pending", restarts=1, reason="BeginTime")
    events = list(itertools.chain.from_iterable(map(Story(60).goes_on, [waits, again])))
    assert [(one.kind, one.reason) for one in events] == [
        ("pending", ""), ("running", ""), ("requeued", "BeginTime"), ("pending", "BeginTime")
    ]  # fmt: skip
    # Who is told of the end is not told that it is why it was started again.
    events = list(map(str, Story(60).goes_on(waits))) + list(map(str, Story(60).goes_on(ran)))
    assert events == ["pending", "running", "ended: CANCELLED"]
    assert told(waits, status("ended", restarts=1)) == [["pending"], ["running", "requeued", "ended"]]


# A job that is preempted and started again, as it was at each moment.
PREEMPTED = [
    status("pending"), status(has_run=True), status("running", host(0), has_run=True),
    status("running", host(0), has_run=True, preempted=True), status("pending", restarts=1), status(restarts=1, has_run=True),
    status("running", host(0, agent="2"), restarts=1, has_run=True), status("ended", restarts=1, has_run=True),
]  # fmt: skip


def test_whoever_looked_when_knows_of_both_lives():
    for looks in itertools.product([True, False], repeat=len(PREEMPTED) - 2):
        seen = told(*itertools.compress(PREEMPTED, [True, *looks, True]))
        kinds = [kind for kind in itertools.chain.from_iterable(seen) if kind in ("running", "requeued", "ended")]
        assert kinds == ["running", "requeued", "running", "ended"], looks


@st.composite
def jobs(draw):
    """How a job was at each moment, life by life; of the last life it may be that it never ran."""
    moments, lives = [], draw(st.integers(1, 4))
    for life in range(lives):
        waits = [status("pending", restarts=life)] * draw(st.integers(0, 2))
        least = 0 if life == lives - 1 and waits else 1
        runs, agent = [], 0
        for _ in range(draw(st.integers(least, 4))):
            # Pods come back as others, and a mesh may be without any for a while.
            agent += draw(st.integers(0, 1))
            up = draw(st.integers(0, 2))
            hosts = [host(rank, "up" if rank < up else "missing", agent=f"{life}.{agent}") for rank in range(2)]
            state = "running" if up or not runs else draw(st.sampled_from(["running", "pending"]))
            taken = draw(st.booleans())
            runs.append(status(state, *hosts, restarts=life, has_run=True, preempted=taken and state == "running"))
        moments += [*waits, *runs]
    return [*moments, status("ended", restarts=lives - 1, has_run=bool(runs))]


@given(jobs(), st.data())
def test_of_whatever_looks_the_story_is_whole(moments, data):
    looked = data.draw(st.lists(st.booleans(), min_size=len(moments) - 1, max_size=len(moments) - 1))
    looks = list(itertools.compress(moments, [*looked, True]))
    # Whoever looks may look twice.
    looks = [look for look in looks for _ in range(data.draw(st.integers(1, 2)))]
    story = Story(60)
    lives, state, ran, up = 1, None, False, {}
    for event in itertools.chain.from_iterable(map(story.goes_on, looks)):
        assert state != "ended", "nothing comes after the end"
        match event.kind:
            case "running" | "pending" | "ended":
                assert event.kind != state, "it was told already"
                state = event.kind
                ran |= state == "running"
            case "requeued":
                assert ran, "what is started again has run"
                lives, state, ran, up = lives + 1, None, False, {}
            case "host_up":
                assert (ran, up.get(event.rank)) == (True, None)
                up[event.rank] = True
            case "host_lost":
                assert up.pop(event.rank)
            case "preempted":
                assert ran
    assert (state, ran) == ("ended", moments[-1].has_run), "of its last life it is told whether it ran"
    assert lives == 1 + moments[-1].restarts - looks[0].restarts
