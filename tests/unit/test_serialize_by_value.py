"""Classes and functions that cannot be imported travel by value, and a class stays one class."""

import dataclasses
import enum
import subprocess
import sys
import textwrap
import typing

import pytest

from roost import _definitions, serialize
from roost.serialize import Parts

PEER = """
import sys
from roost import serialize
receive, send = sys.stdin.buffer, sys.stdout.buffer
known = set()
def read():
    return receive.read(int.from_bytes(receive.read(4), "little"))
while True:
    forms = read()
    payload = read()
    if not payload:
        break
    if forms:
        serialize.learn(forms, known)
    try:
        work, value = serialize.loads(payload)
        dumped = serialize.dumps(work(value))
    except Exception as error:
        dumped = serialize.dumps(error)
    names = () if isinstance(dumped, bytes) else dumped.definitions
    payload = dumped if isinstance(dumped, bytes) else dumped.payload
    for part in (serialize.closure(names, known), payload):
        send.write(len(part).to_bytes(4, "little") + part)
    send.flush()
"""


class Peer:
    """Another process, which applies functions to values; both sides remember what the other has, as a session does."""

    def __init__(self):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", PEER], stdin=pipe, stdout=pipe)
        self.known = set()
        self.forms_sent = []
        self.forms_received = []

    def __call__(self, work, value):
        dumped = serialize.dumps((work, value))
        names, payload = (dumped.definitions, dumped.payload) if isinstance(dumped, Parts) else ((), dumped)
        forms = serialize.closure(names, self.known)
        self.forms_sent.append(len(forms))
        self._write(forms, payload)
        back = self._read()
        self.forms_received.append(len(back))
        if back:
            serialize.learn(back, self.known)
        return serialize.loads(self._read())

    def _write(self, *parts):
        for part in parts:
            self.process.stdin.write(len(part).to_bytes(4, "little") + part)
        self.process.stdin.flush()

    def _read(self):
        length = int.from_bytes(self.process.stdout.read(4), "little")
        return self.process.stdout.read(length)

    def close(self):
        self._write(b"", b"")
        self.process.wait(10)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def peer():
    peer = Peer()
    yield peer
    peer.close()


def echo(value):
    return value


# `echo` is of this module, which the peer cannot import: it travels by value as a lambda does.
ECHO = lambda value: value  # noqa: E731


def test_a_definition_travels_once_and_never_home(peer):
    class Thing:
        def __init__(self, number):
            self.number = number

        def __eq__(self, other):
            return type(self) is type(other) and self.number == other.number

        __hash__ = None

    for number in range(3):
        back = peer(ECHO, Thing(number))
        assert type(back) is Thing
        assert back == Thing(number)
    assert peer(ECHO, Thing) is Thing
    assert peer.forms_sent[0] > 0
    assert peer.forms_sent[1:] == [0, 0, 0]
    assert peer.forms_received == [0, 0, 0, 0]


def test_a_class_is_one_class_at_the_other_end(peer):
    class Thing:
        seen: typing.ClassVar[list] = []

        def note(self):
            self.seen.append(1)
            return len(self.seen)

    assert peer(lambda thing: thing.note(), Thing()) == 1
    assert peer(lambda thing: thing.note(), Thing()) == 2
    assert peer(lambda things: type(things[0]) is type(things[1]), [Thing(), Thing()])


def test_errors_of_ones_own_class_are_caught(peer):
    class MyError(Exception):
        def __init__(self, code, *, hint):
            super().__init__(f"failed with {code}")
            self.code = code
            self.hint = hint

    def fail(code):
        raise MyError(code, hint="none")

    error = peer(fail, 5)
    assert type(error) is MyError
    assert (str(error), error.code, error.hint) == ("failed with 5", 5, "none")


def test_classes_that_name_each_other(peer):
    class Node:
        def child(self):
            return Leaf(self)

    class Leaf(Node):
        def __init__(self, parent):
            self.parent = parent

        def child(self):
            return Node()

    leaf = peer(lambda node: node.child(), Node())
    assert type(leaf) is Leaf
    assert type(leaf.parent) is Node
    assert type(peer(lambda leaf: leaf.child(), Leaf(None))) is Node
    assert peer(lambda pair: issubclass(pair[0], pair[1]), (Leaf, Node))
    assert peer.forms_received == [0, 0, 0]


def test_kinds_of_classes(peer):
    class Color(enum.Enum):
        RED = 1
        BLUE = 2

        def describe(self):
            return self.name.lower()

    class Flags(enum.IntFlag):
        A = 1
        B = 2

    @dataclasses.dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 2

    class Pair(typing.NamedTuple):
        left: int
        right: str

    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        def __init__(self, item: T) -> None:
            self.item = item

    class Slotted:
        __slots__ = ("a",)

        def __init__(self, a):
            self.a = a

    assert peer(ECHO, Color.RED) is Color.RED
    assert peer(lambda color: color.describe(), Color.BLUE) == "blue"
    assert peer(ECHO, Flags.A | Flags.B) == Flags.A | Flags.B
    assert peer(ECHO, Point(1)) == Point(1)
    assert peer(ECHO, Pair(1, "b")) == Pair(1, "b")
    assert type(peer(ECHO, Pair(1, "b"))) is Pair
    assert peer(ECHO, Box[int](3)).item == 3
    assert peer(ECHO, Slotted(4)).a == 4
    assert peer(lambda slotted: hasattr(slotted, "__dict__"), Slotted(4)) is False
    assert peer(lambda kind: kind[int](1).item, Box) == 1


def test_functions_see_what_they_close_over(peer):
    factor = 3

    def times(value):
        return value * factor

    assert peer(times, 2) == 6
    factor = 4
    assert peer(times, 2) == 8  # captured anew at each sending
    assert peer(ECHO, times) is times
    assert peer(ECHO, [len, int, dataclasses.dataclass]) == [len, int, dataclasses.dataclass]


def test_a_function_made_elsewhere_works_here(peer):
    made = peer(lambda by: lambda value: value + by, 10)
    assert made(1) == 11
    assert peer(made, 2) == 12


def test_a_class_made_elsewhere_is_one_class_here(peer):
    def make(name):
        global made  # noqa: PLW0603  (kept by the peer for the next call)
        made = type(name, (), {"__module__": "__main__", "twice": lambda self: 2})
        return made

    def make_one(kind):
        return kind()

    kind = peer(make, "Made")
    assert peer(make_one, kind).twice() == 2
    assert type(peer(make_one, kind)) is kind
    assert peer.forms_received[0] > 0
    assert peer.forms_received[1:] == [0, 0]
    assert peer.forms_sent[1:] == [0, 0]


def test_redefined_in_a_notebook_it_is_a_new_class(peer):
    def define(answer):
        class Cell:
            def answer(self):
                return answer

        return Cell

    first, second = define(1), define(2)
    assert peer(lambda cell: cell.answer(), first()) == 1
    assert peer(lambda cell: cell.answer(), second()) == 2
    assert type(peer(ECHO, first())) is first
    assert type(peer(ECHO, second())) is second


def test_code_keeps_its_file_and_its_lines(peer):
    def outer():
        def inner():
            return None

        return inner

    class Thing:
        def method(self):
            return None

    def where(function):
        code = function.__code__
        return code.co_filename, code.co_firstlineno

    inner = outer()
    for function in (inner, lambda: None, Thing.method):
        assert peer(where, function) == where(function) == (__file__, function.__code__.co_firstlineno)
    assert peer(lambda outer: outer().__code__.co_filename, outer) == __file__


def test_bound_methods_and_partials(peer):
    import functools

    class Counter:
        def __init__(self):
            self.count = 1

        def add(self, more):
            return self.count + more

    assert peer(Counter().add, 2) == 3
    assert peer(functools.partial(lambda a, b: a + b, 5), 2) == 7


def test_two_processes_agree_on_a_class_of_a_third():
    class Thing:
        pass

    first, second = Peer(), Peer()
    try:
        assert type(first(ECHO, Thing())) is Thing
        assert type(second(ECHO, Thing())) is Thing
        # What the first sends to the second names the class by the same id.
        assert serialize.dumps(Thing()).definitions == (_definitions.identify(Thing),)
    finally:
        first.close()
        second.close()


def test_alone_brings_the_definitions(peer):
    class Inner:
        def tell(self):
            print("inner")

    class Outer:
        def inner(self):
            return Inner()

    alone = serialize.dumps_alone(Outer())
    assert type(serialize.loads(alone)) is Outer
    script = "import sys; from roost import serialize; serialize.loads(sys.stdin.buffer.read()).inner().tell()"
    done = subprocess.run([sys.executable, "-c", script], input=alone, capture_output=True, check=True)
    assert done.stdout == b"inner\n"


def test_what_a_script_defines(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            import dataclasses
            import subprocess
            import sys
            from roost import serialize

            LOG = []

            class MyError(Exception):
                pass

            @dataclasses.dataclass
            class Batch:
                size: int

            def helper(batch):
                LOG.append(batch.size)
                return Batch(batch.size + 1)

            STEP = 1

            def made_within():
                def inner():
                    class Made:
                        class Within:
                            step: STEP = STEP
                    return Made.Within.step
                return inner()

            class Worker:
                def within(self):
                    class Made:
                        log = LOG
                        step = STEP
                    return Made.log, Made.step, made_within()

                def work(self, batch):
                    if batch.size < 0:
                        raise MyError(batch.size)
                    return helper(batch)

            print("ran")

            ECHO = '''
            import sys
            from roost import serialize
            work, args = serialize.loads(sys.stdin.buffer.read())
            try:
                result = work(*args)
            except Exception as error:
                result = error
            sys.stdout.buffer.write(serialize.alone(serialize.dumps(result)))
            '''.replace("            ", "")

            def there(work, *args):
                sent = serialize.dumps_alone((work, args))
                done = subprocess.run([sys.executable, "-c", ECHO], input=sent, capture_output=True, check=True)
                return serialize.loads(done.stdout)

            assert there(Worker().work, Batch(3)) == Batch(4)
            assert type(there(Worker().work, Batch(-1))) is MyError
            assert there(lambda: Batch) is Batch
            assert there(Worker().within) == ([], 1, 1)
            assert there(made_within) == 1
            """).lstrip()
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ran\n"  # once: nobody imports the script again


def test_a_class_that_cannot_be_sent_is_named():
    import threading

    lock = threading.Lock()

    class Locked:
        guard = lock

    with pytest.raises(TypeError, match=r"class .*Locked cannot be sent by value: .*lock"):
        serialize.dumps_alone(Locked())


def test_what_names_such_a_class_does_not_pickle():
    import threading

    lock = threading.Lock()

    class Locked:
        guard = lock

    class Outer:
        def make(self):
            return Locked()

    with pytest.raises(TypeError) as failed:
        serialize.dumps(Outer())
    explained = serialize.explain(failed.value, "A.b", (Outer(),), {}, ["x"])
    assert str(explained).startswith("argument 'x' of A.b cannot be pickled: class ")
    assert "Locked cannot be sent by value" in str(explained)


def test_a_definition_does_not_go_to_its_home():
    class Thing:
        pass

    dumped = serialize.dumps(Thing())
    own = dumped.definitions[0][:12]
    assert serialize.alone(dumped, own) == dumped.payload
    assert len(serialize.alone(dumped, serialize.home(5, 0))) > len(dumped.payload)
    assert serialize.closure(dumped.definitions, set(), own) == b""


def test_an_unknown_class_says_so():
    with pytest.raises(Exception, match="was never sent to this process"):
        _definitions.definition(b"\0" * 16)


def test_a_class_of_a_module_that_was_loaded_anew(monkeypatch):
    import types

    module = types.ModuleType("reloaded")
    monkeypatch.setitem(sys.modules, "reloaded", module)

    def load():
        module.Thing = type("Thing", (), {"__module__": "reloaded"})
        return module.Thing

    first = load()
    assert isinstance(serialize.dumps(first()), bytes)
    second = load()
    assert isinstance(serialize.dumps(second()), bytes)
    assert type(serialize.loads(serialize.dumps(second()))) is second
    # The first is no longer what its name says: it is still sent, by value.
    dumped = serialize.dumps(first())
    assert isinstance(dumped, Parts)
    assert type(serialize.loads(dumped.payload)) is first
