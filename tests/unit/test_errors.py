import asyncio
import copy
import pickle

import pytest

from roost import errors
from roost.errors import ActorDied, DeadlockError, MeshError, MessageTooLargeError, RemoteError, RoostError
from roost.failure import Failure
from roost.point import Point


def failure(**changes) -> Failure:
    fields = {"kind": "signal", "origin": "process", "mesh": "w", "name": "w[gpus=3]", "point": Point({"gpus": 8}, 3)}
    return Failure(**(fields | {"signal": 9} | changes))


BUILT_INS = {
    "ActorDied": ConnectionError,
    "StoppedError": ActorDied,
    "PeerLostError": ActorDied,
    "HostLostError": errors.PeerLostError,
    "CallTimeoutError": TimeoutError,
    "DeadlockError": RuntimeError,
    "BlockingWaitError": RuntimeError,
    "MeshError": ExceptionGroup,
    "MessageTooLargeError": ValueError,
    "AuthenticationError": PermissionError,
}


@pytest.mark.parametrize("name", errors.__all__)
def test_one_tree_that_is_also_what_a_reader_expects(name):
    error = getattr(errors, name)
    assert issubclass(error, RoostError)
    assert issubclass(error, BUILT_INS.get(name, Exception))


def test_asyncio_catches_a_time_out():
    assert issubclass(errors.CallTimeoutError, asyncio.TimeoutError)


PLAIN = [
    name for name in errors.__all__ if name not in ("DeadlockError", "MeshError", "MessageTooLargeError", "RemoteError")
]


@pytest.mark.parametrize("name", PLAIN)
def test_a_message_comes_back_from_a_pickle(name):
    error = getattr(errors, name)("what happened")
    error.add_note("at rank 3")
    again = pickle.loads(pickle.dumps(error, protocol=5))
    assert type(again) is type(error)
    assert str(again) == "what happened"
    assert again.__notes__ == ["at rank 3"]


@pytest.mark.parametrize("kind", [ActorDied, errors.StoppedError, errors.PeerLostError, errors.HostLostError])
def test_a_death_carries_its_failure(kind):
    error = kind("gone", failure(), maybe_executed=True)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert again.failure == error.failure
        assert again.maybe_executed is True
        assert str(again) == "gone; the call may have been executed"


class TestActorDied:
    def test_reads_as_its_failure(self):
        error = ActorDied(failure=failure(stderr="out of luck"))
        assert str(error) == "w[gpus=3] was killed by SIGKILL (signal 9)\nlast lines of its stderr:\n  out of luck"
        assert repr(error) == "ActorDied('w[gpus=3] was killed by SIGKILL (signal 9)')"
        assert pickle.loads(pickle.dumps(error)).args == ()

    def test_says_first_that_the_call_may_have_run(self):
        error = ActorDied(failure=failure(stderr="out of luck"), maybe_executed=True)
        assert str(error).splitlines()[0].endswith("; the call may have been executed")

    def test_without_anything(self):
        assert str(ActorDied()) == "the actor ended"
        assert (ActorDied().failure.kind, ActorDied().failure.name) == ("lost", "")
        assert ActorDied().maybe_executed is False


class TestMeshError:
    def mesh_error(self) -> MeshError:
        points = [Point({"gpus": 8}, rank) for rank in (3, 5)]
        return MeshError("call of w.step failed", [ActorDied(failure=failure()), ValueError("bad batch")], points)

    def test_items_pair_places_with_exceptions(self):
        error = self.mesh_error()
        assert [(point.rank, type(exception)) for point, exception in error.items()] == [
            (3, ActorDied),
            (5, ValueError),
        ]

    def test_text_names_places_and_the_first_error(self):
        assert str(self.mesh_error()) == (
            "call of w.step failed (2 errors at gpus=3; gpus=5);"
            " the first: ActorDied: w[gpus=3] was killed by SIGKILL (signal 9)"
        )

    def test_text_stays_short_for_many_ranks(self):
        points = [Point({"gpus": 64}, rank) for rank in range(64)]
        assert "gpus=7; 56 more)" in str(MeshError("call", [ValueError(str(n)) for n in range(64)], points))

    def test_text_of_a_rank_without_dimensions(self):
        assert "1 error at the only rank" in str(MeshError("call", [ValueError()], [Point({}, 0)]))

    def test_failures_are_the_deaths_each_once(self):
        one = failure()
        inner = MeshError("call", [ActorDied(failure=one)], [one.point])
        outer = MeshError("main", [inner, ActorDied(failure=one), ValueError()])
        assert outer.failures == (one,)
        assert list(outer.items()) == []

    def test_pickles_with_everything(self):
        error = self.mesh_error()
        error.later.append(KeyError("slow rank"))
        error.add_note("a note")
        again = pickle.loads(pickle.dumps(error, protocol=5))
        assert str(again) == str(error)
        assert [point for point, _ in again.items()] == [point for point, _ in error.items()]
        assert again.failures == error.failures
        assert [repr(exception) for exception in again.later] == ["KeyError('slow rank')"]
        assert again.__notes__ == ["a note"]

    def test_later_grows_for_parts_too(self):
        error = self.mesh_error()
        caught = []
        try:
            raise error
        except* ValueError as part:
            caught.append(part)
        except* ActorDied as part:
            caught.append(part)
        error.later.append(KeyError("slow rank"))
        for part, rank in zip(caught, (5, 3), strict=True):
            assert isinstance(part, MeshError)
            assert [point.rank for point, _ in part.items()] == [rank]
            assert part.later is error.later

    def test_split_keeps_places(self):
        deaths, rest = self.mesh_error().split(ActorDied)
        assert [point.rank for point, _ in deaths.items()] == [3]
        assert [point.rank for point, _ in rest.items()] == [5]
        assert self.mesh_error().subgroup(KeyError) is None

    def test_wants_a_place_for_each_or_none(self):
        with pytest.raises(ValueError, match="1 points for 2 exceptions"):
            MeshError("call", [ValueError(), ValueError()], [Point({}, 0)])

    def test_is_made_of_something(self):
        with pytest.raises(ValueError, match="non-empty"):
            MeshError("call", [])


def test_remote_error_is_text():
    error = RemoteError("user.Odd", "cannot travel", "Traceback …")
    again = pickle.loads(pickle.dumps(error))
    assert (again.type, again.text, again.traceback) == ("user.Odd", "cannot travel", "Traceback …")
    assert str(again) == "user.Odd: cannot travel"
    assert str(RemoteError("user.Odd")) == "user.Odd"


def test_message_too_large_names_the_setting():
    error = MessageTooLargeError(5_000, 4_096, "message_bytes_max", "reply of w.step")
    again = pickle.loads(pickle.dumps(error))
    assert (again.size, again.limit, again.setting) == (5_000, 4_096, "message_bytes_max")
    assert str(again) == (
        "reply of w.step of 5000 bytes passes the limit of 4096;"
        " send it in parts, or raise the limit with roost.configure(message_bytes_max=…)"
    )


def test_deadlock_names_the_cycle():
    error = DeadlockError(["a.ask", "b.answer", "a.tell"])
    again = pickle.loads(pickle.dumps(error))
    assert again.cycle == ("a.ask", "b.answer", "a.tell")
    assert str(again).startswith("calls wait for each other: a.ask → b.answer → a.tell;")
    assert str(DeadlockError([])) == "a call waits for itself"
