import inspect
import json
import math
import pickle
import pydoc
from datetime import UTC, datetime

import pytest

from roost.config import Config
from roost.failure import Bind, DeadLetter, Event, Failure, Probe, Restart, State
from roost.point import Point

POINT = Point({"gpus": 8}, 3)
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)


def failure(**changes) -> Failure:
    fields = {"kind": "error", "origin": "user", "mesh": "w", "name": "w[gpus=3]", "point": POINT}
    return Failure(**(fields | changes))


class TestFailure:
    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"reason": "ValueError: bad"}, "w[gpus=3] raised: ValueError: bad"),
            ({"origin": "roost"}, "w[gpus=3] failed"),
            ({"kind": "exit", "exit_code": 3}, "w[gpus=3] exited with code 3"),
            ({"kind": "exit"}, "w[gpus=3] exited with an unknown code"),
            ({"kind": "signal", "signal": 11}, "w[gpus=3] was killed by SIGSEGV (signal 11)"),
            ({"kind": "signal", "signal": 63}, "w[gpus=3] was killed by signal 63"),
            ({"kind": "signal"}, "w[gpus=3] was killed by a signal"),
            (
                {"kind": "oom"},
                "w[gpus=3] was killed because memory ran out; give it more, or run fewer procs on a host",
            ),
            (
                {"kind": "oom", "host": "n1"},
                "w[gpus=3] was killed on host n1 because memory ran out; give it more, or run fewer procs on a host",
            ),
            ({"kind": "lost", "host": "n1"}, "w[gpus=3] was lost on host n1: its host is out of reach"),
            ({"kind": "lost", "host": "n1", "reason": "try again"}, "w[gpus=3] was lost on host n1: try again"),
            (
                {"reason": "ValueError: no host", "host": "n1", "incarnation": 2},
                "w[gpus=3] raised on host n1 (incarnation 2): ValueError: no host",
            ),
            ({"kind": "start", "reason": "no python3"}, "w[gpus=3] did not start: no python3"),
            ({"kind": "stopped", "reason": "done"}, "w[gpus=3] stopped: done"),
            ({"kind": "stalled", "incarnation": 2}, "w[gpus=3] stalled (incarnation 2)"),
            ({"kind": "unhealthy"}, "w[gpus=3] was ended as unhealthy"),
        ],
    )
    def test_first_line_says_who_and_how(self, changes, text):
        assert str(failure(**changes)).splitlines()[0] == text
        assert failure(**changes).summary == text

    def test_text_shows_what_a_person_acts_on(self):
        cause = failure(kind="lost", origin="host", mesh="hosts", name="hosts[hosts=1]")
        told = failure(
            kind="exit",
            exit_code=1,
            traceback="Traceback (most recent call last):\nValueError: bad\n",
            stderr="\n".join(f"line {number}" for number in range(100)),
            reasons=(failure(kind="signal", signal=9),),
            incarnation=1,
            cause=cause,
            consequences=[
                *(failure(name=f"x[gpus={rank}]", kind="exit") for rank in range(10)),
                failure(name="y[gpus=0]", reason="ConnectionResetError: gone"),
            ],
        )
        lines = str(told).splitlines()
        assert lines[:3] == [
            "w[gpus=3] exited with code 1 (incarnation 1)",
            "  Traceback (most recent call last):",
            "  ValueError: bad",
        ]
        assert "  line 99" in lines
        assert "  line 79" not in lines
        assert "  incarnation 0: was killed by SIGKILL (signal 9)" in lines
        assert "because hosts[hosts=1] was lost: its host is out of reach" in lines
        assert lines[-3].endswith("x[gpus=7] and 2 more")
        assert lines[-2:] == ["after which:", "  y[gpus=0] raised: ConnectionResetError: gone"]

    def test_is_frozen_but_consequences_grow(self):
        first = failure()
        same = failure()
        before = hash(first)
        first._add_consequence(failure(name="x", cause=first))
        assert [each.name for each in first.consequences] == ["x"]
        assert first == same
        assert hash(first) == before
        with pytest.raises(AttributeError, match="Failure is frozen"):
            first.reason = "other"
        with pytest.raises(AttributeError, match="Failure is frozen"):
            del first.reason
        with pytest.raises(TypeError):
            first.times["died_at"] = 2.0

    def test_pickle_is_a_snapshot(self):
        first = failure(times={"died_at": 1.5}, actor_class="m.Worker", host="n1", stderr="x")
        first._add_consequence(failure(name="x", cause=first))
        again = pickle.loads(pickle.dumps(first, protocol=5))
        first._add_consequence(failure(name="y", cause=first))
        assert again == first
        assert again.times == {"died_at": 1.5}
        assert [each.name for each in again.consequences] == ["x"]
        assert again.consequences[0].cause is again
        with pytest.raises(TypeError):
            again.times["died_at"] = 2.0

    def test_text_and_json_end_although_failures_name_each_other(self):
        first = failure(times={"died_at": 1.5})
        first._add_consequence(failure(name="x", cause=first))
        assert "x" in str(first)
        assert "because w[gpus=3]" in str(first.consequences[0])
        assert repr(first) == "Failure(kind='error', name='w[gpus=3]', incarnation=0, reason='')"
        plain = json.loads(first.consequences[0].to_json())
        assert plain["cause"]["name"] == "w[gpus=3]"
        assert plain["cause"]["consequences"][0]["name"] == "x"

    def test_json_has_every_field(self):
        plain = json.loads(failure(times={"died_at": 1.5}, reasons=[failure(kind="stopped")]).to_json())
        assert set(plain) == set(Failure._field_names)
        assert plain["point"] == {"gpus": 3}
        assert plain["times"] == {"died_at": 1.5}
        assert plain["reasons"][0]["kind"] == "stopped"

    def test_refuses_unknown_words(self):
        with pytest.raises(ValueError, match="Failure kind='crash' is unknown; use one of 'error', 'exit'"):
            failure(kind="crash")
        with pytest.raises(ValueError, match="Failure origin='me' is unknown"):
            failure(origin="me")
        with pytest.raises(ValueError, match="incarnation=-1 is below 0"):
            failure(incarnation=-1)

    def test_takes_keywords_only(self):
        with pytest.raises(TypeError, match="takes 0 positional arguments"):
            Failure("error")
        with pytest.raises(TypeError, match="missing field 'origin'"):
            Failure(kind="error")
        with pytest.raises(TypeError, match="no field 'knd'; its fields are kind, origin"):
            failure(knd="error")


def test_event_dead_letter_and_state_are_values():
    event = Event("failed", "w", "w[gpus=3]", POINT, 1, NOON, "why", failure())
    letter = DeadLetter("driver", "w[gpus=3]", "step", POINT, "stopped", None, NOON)
    state = State("up", pid=7, running=[("step", NOON)], queued=2)
    for value in (event, letter, state):
        again = pickle.loads(pickle.dumps(value))
        assert again == value
        assert hash(again) == hash(value)
        assert again != failure()
    assert str(event) == "2026-11-29T12:00:00.000+00:00 w[gpus=3] failed: why"
    assert str(letter) == "broadcast step from driver to w[gpus=3] was not delivered: stopped"
    assert state.running == (("step", NOON),)
    assert repr(State("up")) == (
        "State(state='up', reason='', incarnation=0, pid=None, failure=None, running=(), queued=0)"
    )
    with pytest.raises(ValueError, match="Event kind='fell' is unknown"):
        Event("fell", "w", "w", POINT, 0, NOON)
    with pytest.raises(ValueError, match="State state='down' is unknown"):
        State("down")
    with pytest.raises(TypeError, match="got field 'state' twice"):
        State("up", state="up")


def test_values_match_and_replace():
    match Event("failed", "w", "w[gpus=3]", POINT, 1, NOON):
        case Event("failed", mesh, reason=reason):
            assert (mesh, reason) == ("w", "")
    assert Restart().__replace__(limit=5) == Restart(limit=5)


@pytest.mark.parametrize("kind", [Bind, Config, DeadLetter, Event, Failure, Probe, Restart, State])
def test_signature_and_help_show_the_fields(kind):
    parameters = inspect.signature(kind).parameters.values()
    assert tuple(one.name for one in parameters) == kind._field_names
    assert {one.name: one.annotation for one in parameters} == {
        name: text for name, text in kind.__annotations__.items() if not name.startswith("_")
    }
    assert {one.name: one.default for one in parameters if one.default is not one.empty} == {
        name: getattr(kind, name) for name in kind._field_names if hasattr(kind, name)
    }
    assert {one.kind for one in parameters} == {
        inspect.Parameter.KEYWORD_ONLY if kind in (Config, Failure) else inspect.Parameter.POSITIONAL_OR_KEYWORD
    }
    shown = pydoc.render_doc(kind, renderer=pydoc.plaintext)
    for name in kind._field_names:
        assert f"\n |      {name}: " in shown
    assert "_field_names" not in shown


def test_help_shows_what_there_is_without_the_sources(monkeypatch):
    monkeypatch.setattr(inspect, "getsource", lambda _: (_ for _ in ()).throw(OSError("could not get source code")))
    assert Probe.__doc__.startswith("How often")
    assert "Attributes:" not in Probe.__doc__


class TestPolicies:
    def test_defaults(self):
        policy = Restart()
        assert (policy.limit, policy.within_s, policy.backoff_s) == (3, 60, (0.1, 5.0))
        assert (policy.scope, policy.when, policy.on, policy.while_down) == ("one", "failed", "same_host", "fail")
        assert Restart(backoff_s=[1, 2]).backoff_s == (1, 2)
        assert Bind(cpus=[1, 2]).cpus == (1, 2)
        assert Probe(period_s=0.5, failures_max=2, grace_s=1).failures_max == 2

    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (lambda: Restart(limit=0), "limit=0 is below 1; leave restart= out to never restart"),
            (lambda: Restart(limit=-1), "limit=-1 is below 1"),
            (lambda: Restart(within_s=0), "within_s=0 must be greater than 0"),
            (lambda: Restart(within_s=math.inf), "within_s=inf is not finite"),
            (lambda: Restart(within_s=math.nan), "within_s=nan is not finite"),
            (lambda: Restart(backoff_s=(5, 1)), "first pause is longer than the longest; swap them"),
            (lambda: Restart(backoff_s=(-1, 1)), "backoff_s=-1 is below 0"),
            (lambda: Restart(backoff_s=(1,)), "must be two numbers"),
            (lambda: Restart(scope="some"), "scope='some' is unknown; use one of 'one', 'all', 'rest'"),
            (lambda: Restart(when="never"), "when='never' is unknown"),
            (lambda: Restart(on="mars"), "on='mars' is unknown"),
            (lambda: Restart(while_down="drop"), "while_down='drop' is unknown"),
            (lambda: Probe(period_s=0), "period_s=0 must be greater than 0; leave probe= out"),
            (lambda: Probe(period_s=1, failures_max=-1), "failures_max=-1 is below 0"),
            (lambda: Probe(period_s=1, grace_s=-1), "grace_s=-1 is below 0"),
            (lambda: Bind(cpus=(1, 1)), "names a CPU twice"),
            (lambda: Bind(cpus=(-1,)), "cpus=-1 is below 0"),
            (lambda: Bind(numa_node=-1), "numa_node=-1 is below 0"),
        ],
    )
    def test_refuses_what_makes_no_sense_and_says_what_to_do(self, make, text):
        with pytest.raises(ValueError, match=text):
            make()

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Restart(limit=1.5),
            lambda: Restart(limit=True),
            lambda: Restart(within_s="60"),
            lambda: Restart(backoff_s=("a", "b")),
            lambda: Bind(cpus=("0",)),
            lambda: Probe(period_s=None),
        ],
    )
    def test_refuses_what_is_not_a_number(self, make):
        with pytest.raises(TypeError, match="must be a"):
            make()

    @pytest.mark.parametrize(
        "make",
        [
            lambda: Restart(backoff_s=1),
            lambda: Restart(backoff_s="12"),
            lambda: Restart(backoff_s=None),
            lambda: Bind(cpus=0),
            lambda: Bind(cpus=None),
            lambda: Bind(cpus="01"),
        ],
    )
    def test_refuses_what_is_not_a_list_and_shows_one(self, make):
        with pytest.raises(
            TypeError, match=r"^(Restart backoff_s|Bind cpus)=.*: give a list, such as (backoff_s=\(|cpus=\[)"
        ):
            make()
