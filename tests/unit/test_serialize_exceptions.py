"""Exceptions arrive as themselves, with their remote traceback, or else as text; they always arrive."""

import asyncio
import os
import pickle
import threading
import traceback

import pytest

from roost import serialize
from roost.errors import ActorDied, MeshError, RemoteError
from roost.serialize import RemoteTraceback


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def there_and_back(error, note=None):
    return serialize.load_exception(serialize.dump_exception(error), note)


class CustomInitError(Exception):
    def __init__(self, code, *, where):
        super().__init__(f"{code} at {where}")
        self.code = code
        self.where = where


class FileLostError(OSError):
    def __init__(self, path):
        super().__init__(2, "lost", path)


class OwnReduceError(Exception):
    def __init__(self, a, b):
        self.a, self.b = a, b

    def __reduce__(self):
        return OwnReduceError, (self.a, self.b)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("wrong"),
        KeyError("k"),
        OSError(2, "no such file", "name"),
        FileNotFoundError(2, "none", "name"),
        UnicodeDecodeError("utf8", b"\xff", 0, 1, "bad"),
        CustomInitError(5, where="home"),
        FileLostError("/x"),
        OwnReduceError(1, 2),
        ImportError("none", name="mod", path="/p"),
        ActorDied("gone", maybe_executed=True),
        RemoteError("a.B", "text", "trace"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_arrives_as_itself(error):
    back = there_and_back(raised(error), "note")
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    state = {name: value for name, value in vars(back).items() if name != "__notes__"}
    assert state == vars(error)
    assert back.__notes__ == ["note"]


def test_it_brings_its_remote_traceback():
    def deep():
        raise ValueError("wrong")

    try:
        deep()
    except ValueError as caught:
        error = there_and_back(caught, "from trainers[gpus=3].step")
    assert type(error.__cause__) is RemoteTraceback
    text = str(error.__cause__)
    assert "in deep" in text
    assert 'raise ValueError("wrong")' in text
    assert text.count("ValueError: wrong") == 1
    printed = "".join(traceback.format_exception(error))
    assert "from trainers[gpus=3].step" in printed
    assert printed.index("in deep") < printed.index("from trainers")


def test_its_own_notes_stay():
    error = ValueError("wrong")
    error.add_note("mine")
    assert there_and_back(error, "yours").__notes__ == ["mine", "yours"]


def test_the_chain_of_causes_is_kept_behind_the_traceback():
    try:
        try:
            try:
                raise ConnectionResetError(104, "reset")
            except OSError as inner:
                raise KeyError("k") from inner
        except KeyError:
            raise CustomInitError(1, where="x")  # noqa: B904  (the context is the point)
    except CustomInitError as caught:
        error = there_and_back(caught)
    remote = error.__cause__
    assert type(remote.__context__) is KeyError
    assert type(remote.__context__.__cause__) is ConnectionResetError
    assert "ConnectionResetError" in str(remote)
    assert "During handling" in str(remote)


def test_over_two_processes_there_is_one_traceback_with_both():
    first = there_and_back(raised(ValueError("wrong")), "first hop")
    second = there_and_back(raised(first), "second hop")
    assert type(second.__cause__) is RemoteTraceback
    assert second.__cause__.__cause__ is None
    assert "RemoteTraceback" in str(second.__cause__)
    assert second.__notes__ == ["first hop", "second hop"]
    tenth = second
    for _ in range(8):
        tenth = there_and_back(raised(tenth))
    assert len(str(tenth.__cause__)) < 20 * len(str(first.__cause__))  # it does not double with each


def test_what_cannot_be_pickled_arrives_as_text():
    class HoldingError(Exception):
        def __init__(self):
            super().__init__("holds a lock")
            self.lock = threading.Lock()

    error = there_and_back(raised(HoldingError()), "note")
    assert type(error) is RemoteError
    assert error.type.endswith("HoldingError")
    assert error.text == "holds a lock"
    assert "raise error" in error.traceback
    assert error.__notes__ == ["note"]


def test_what_fails_to_unpickle_arrives_as_text():
    class SourError(Exception):
        def __reduce__(self):
            return int, ("no number",)

    class OtherError(Exception):
        def __reduce__(self):
            return ValueError, ("another",)

    assert type(there_and_back(SourError("x"))) is RemoteError
    assert type(there_and_back(OtherError("x"))) is RemoteError


def test_what_fails_only_at_the_other_end_arrives_as_text():
    class HomeError(Exception):
        def __reduce__(self):
            return rebuild, (os.getpid(),)

    def rebuild(pid):
        if os.getpid() != pid:
            raise RuntimeError("not at home")
        return HomeError("x")

    data = serialize.dump_exception(HomeError("x"))
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        error = serialize.load_exception(data)
        os.write(writer, f"{type(error).__name__} {error.text} {error.__notes__}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reader, 1000).decode()
    os.close(reader)
    os.close(writer)
    assert said.startswith("RemoteError x")
    assert "could not be unpickled here: RuntimeError: not at home" in said


def test_what_cannot_even_be_printed_arrives():
    class MuteError(Exception):
        def __init__(self):
            self.lock = threading.Lock()

        def __str__(self):
            raise RuntimeError("no words")

    error = there_and_back(raised(MuteError()))
    assert type(error) is RemoteError
    assert error.text == "<its __str__ raised RuntimeError>"


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError("mine"), StopIteration(3), SystemExit(3), KeyboardInterrupt(), GeneratorExit()],
    ids=lambda error: type(error).__name__,
)
def test_what_would_disturb_the_receivers_loop_arrives_as_text(error):
    back = there_and_back(raised(error))
    assert type(back) is RemoteError
    assert back.type.endswith(type(error).__name__)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, StopIteration, asyncio.CancelledError])
def test_what_no_other_member_would_send_arrives_as_text(kind):
    link = (True, kind.__name__, "from afar", [], pickle.dumps(kind("from afar"), 5))
    loaded = serialize.load_exception(pickle.dumps((b"", pickle.dumps(("a traceback", [link]), 5)), 5))
    assert (type(loaded), loaded.type, loaded.traceback) == (RemoteError, kind.__name__, "a traceback")


def test_groups():
    members = [ValueError("one"), CustomInitError(2, where="two")]
    back = there_and_back(raised(ExceptionGroup("both", members)))
    assert type(back) is ExceptionGroup
    assert [type(member) for member in back.exceptions] == [ValueError, CustomInitError]
    assert "| " in str(back.__cause__)
    mesh = there_and_back(raised(MeshError("call", members)))
    assert type(mesh) is MeshError
    assert [str(member) for member in mesh.exceptions] == ["one", "2 at two"]
    assert type(there_and_back(BaseExceptionGroup("base", [KeyboardInterrupt()]))) is RemoteError


def test_exceptions_as_values():
    members = serialize.loads(
        serialize.dumps([ValueError("one"), CustomInitError(2, where="two"), FileLostError("/x")])
    )
    assert [type(member) for member in members] == [ValueError, CustomInitError, FileLostError]
    assert members[1].where == "two"
    assert members[2].filename == "/x"
    assert members[2].errno == 2


def test_a_cycle_of_causes_ends():
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    back = there_and_back(first)
    assert str(back.__cause__.__cause__) == "b"


def test_texts_are_bounded():
    error = there_and_back(raised(ValueError("x" * 10_000_000)))
    assert len(str(error.__cause__)) < 100_000
    huge = there_and_back(ValueError(bytes(20_000_000)))
    assert type(huge) is RemoteError
    assert len(huge.text) < 20_000


def test_the_frames_of_roost_that_called_the_user_are_left_out(tmp_path, monkeypatch):
    # As if this file were part of Roost: the frame in which an endpoint is awaited.
    monkeypatch.setattr("roost._exceptions._OURS", __file__)
    module = tmp_path / "users.py"
    code = compile("def work():\n    raise ValueError('wrong')\n", str(module), "exec")
    names = {}
    exec(code, names)

    def await_endpoint():
        names["work"]()

    with pytest.raises(ValueError, match="wrong") as caught:
        await_endpoint()
    text = str(there_and_back(caught.value).__cause__)
    assert "in work" in text
    assert "await_endpoint" not in text


class AnyNameRaisesError(Exception):
    def __getattr__(self, name):
        raise ValueError(name)


class NothingMayBeReadError(Exception):
    def __getattribute__(self, name):
        raise ValueError(name)


class NothingMayBeSetError(Exception):
    def __setattr__(self, name, value):
        raise ValueError(name)


class NotesRaiseError(Exception):
    @property
    def __notes__(self):
        raise ValueError("no notes")


class PicklingExitsError(Exception):
    def __reduce__(self):
        raise SystemExit(3)


class UnpicklingExitsError(Exception):
    def __reduce__(self):
        return exit_here, ()


def exit_here():
    raise SystemExit(3)


class SayingExitsError(Exception):
    def __str__(self):
        raise SystemExit(3)


@pytest.mark.parametrize(
    "kind",
    [
        AnyNameRaisesError,
        NothingMayBeReadError,
        NothingMayBeSetError,
        NotesRaiseError,
        PicklingExitsError,
        UnpicklingExitsError,
        SayingExitsError,
    ],
)
def test_a_class_that_raises_whatever_it_is_asked_arrives_all_the_same(kind):
    there = there_and_back(raised(kind()), note="from a")
    assert type(there) is kind or (type(there) is RemoteError and kind.__name__ in there.type)
