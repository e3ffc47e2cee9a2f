import asyncio
import functools
import inspect
import pickle
import subprocess
import sys

import cloudpickle
import pytest

from roost.actor import HOOKS, RESERVED, Actor
from roost.endpoint import Endpoint, EndpointMethod, endpoint


class Trainer(Actor):
    def __init__(self, lr: float = 1.0):
        self.lr = lr
        self.name = "mine"
        self.size = 3

    @endpoint
    async def step(self, batch: int, *, scale: float = 1.0) -> float:
        """One step."""
        return self.lr * batch * scale

    @endpoint
    def weigh(self, text: str) -> int:
        return len(text)

    @endpoint
    async def tokens(self, count: int):
        for number in range(count):
            yield number

    @endpoint(concurrent=True, limit=4, group="io")
    async def load(self) -> bytes:
        return b""

    @endpoint(concurrent=True, group="io")
    def save(self) -> None: ...

    @endpoint(reply="port")
    async def later(self, port, key: str) -> None:
        await port.send(key)

    @endpoint(reply="port", concurrent=True)
    def later_on_a_thread(self, port) -> None: ...


class Slow(Trainer):
    @endpoint
    async def step(self, batch: int, *, scale: float = 1.0) -> float:
        return await super().step(batch, scale=scale) / 2

    @endpoint
    async def extra(self) -> None: ...


class TestTable:
    def test_kinds(self):
        table = Trainer.__roost_endpoints__
        assert {name: (info.kind, info.is_async, info.concurrent) for name, info in table.items()} == {
            "step": ("async", True, False),
            "weigh": ("sync", False, False),
            "tokens": ("stream", True, False),
            "load": ("async", True, True),
            "save": ("sync", False, True),
            "later": ("port", True, False),
            "later_on_a_thread": ("port", False, True),
        }

    def test_inherits_and_overrides(self):
        table = Slow.__roost_endpoints__
        assert set(table) == {*Trainer.__roost_endpoints__, "extra"}
        assert table["step"].function is not Trainer.__roost_endpoints__["step"].function
        assert table["weigh"] is Trainer.__roost_endpoints__["weigh"]
        assert "extra" not in Trainer.__roost_endpoints__
        assert Actor.__roost_endpoints__ == {}

    def test_takes_endpoints_of_a_mixin(self):
        class Mixin:
            @endpoint
            async def ping(self) -> str:
                return "pong"

        class Both(Mixin, Trainer): ...

        assert "ping" in Both.__roost_endpoints__
        assert "step" in Both.__roost_endpoints__

    def test_a_group_has_one_limit(self):
        assert {Trainer.__roost_endpoints__[name].limit for name in ("load", "save")} == {4}
        assert Trainer.save.info.limit is None

    def test_underscored_names_are_fine(self):
        class Private(Actor):
            @endpoint
            async def _step(self) -> None: ...

        assert "_step" in Private.__roost_endpoints__

    def test_a_plain_name_that_a_mesh_has_is_fine(self):
        class Plain(Actor):
            def stop(self) -> None: ...

        assert Plain.__roost_endpoints__ == {}


class TestOnAnInstance:
    def test_is_the_plain_method(self):
        trainer = Trainer(2.0)
        assert asyncio.run(trainer.step(3, scale=2.0)) == 12.0
        assert trainer.weigh("abc") == 3
        assert inspect.ismethod(trainer.step)
        assert asyncio.run(Slow(2.0).step(3)) == 3.0

        async def drained() -> list[int]:
            return [token async for token in trainer.tokens(3)]

        assert asyncio.run(drained()) == [0, 1, 2]

    def test_has_none_of_the_meshs_methods(self):
        trainer = Trainer()
        assert (trainer.name, trainer.size) == ("mine", 3)
        for name in (*RESERVED, *HOOKS, "__len__", "__iter__", "__await__", "__aenter__", "__enter__"):
            assert not hasattr(trainer, name), name


class TestOnTheClass:
    def test_is_itself(self):
        assert isinstance(Trainer.step, EndpointMethod)
        assert Trainer.step is Trainer.step
        assert Trainer.step.info is Trainer.__roost_endpoints__["step"]

    def test_shows_name_text_and_signature(self):
        assert Trainer.step.__doc__ == "One step."
        assert Trainer.step.__name__ == "step"
        assert repr(Trainer.step) == "<endpoint Trainer.step(batch: int, *, scale: float = 1.0) -> float>"
        assert "one step" in inspect.getdoc(Trainer.step).lower()
        assert (
            repr(Trainer.__roost_endpoints__["weigh"]) == "EndpointInfo(Trainer.weigh(text: str) -> int, kind='sync')"
        )

    def test_abstract_endpoints_stay_abstract(self):
        import abc

        class Base(Actor, abc.ABC):
            @endpoint
            @abc.abstractmethod
            async def step(self) -> None: ...

        with pytest.raises(TypeError, match="abstract"):
            Base()


def test_a_mesh_endpoint_is_not_called_itself():
    with pytest.raises(TypeError, match=r"use one of its verbs: \.call, \.call_one, \.choose, \.stream, \.broadcast"):
        Endpoint()(1)
    assert Endpoint[[int], float].__origin__ is Endpoint


def define(body: str) -> type:
    names = {"Actor": Actor, "Trainer": Trainer, "endpoint": endpoint}
    exec(f"class Wrong(Actor):\n {body}", names)
    return names["Wrong"]


class TestRefused:
    @pytest.mark.parametrize("name", RESERVED)
    def test_reserved_names(self, name):
        with pytest.raises(TypeError, match=rf"Wrong\.{name} cannot be an endpoint: a mesh has its own '{name}'"):
            define(f"@endpoint\n async def {name}(self): ...")

    @pytest.mark.parametrize("name", HOOKS)
    def test_hooks_that_are_not_async(self, name):
        with pytest.raises(TypeError, match=rf"Wrong\.{name} must be `async def`"):
            define(f"def {name}(self, *args): ...")
        with pytest.raises(TypeError, match=rf"Wrong\.{name} must be `async def`"):
            define(f"async def {name}(self, *args): yield")
        define(f"async def {name}(self, *args): ...")

    @pytest.mark.parametrize(
        ("body", "error", "text"),
        [
            ("@endpoint\n def step(self): yield", TypeError, "is a `def` that yields; make it `async def`"),
            (
                "@endpoint(reply='later')\n def step(self): ...",
                TypeError,
                "reply='later'\\) is unknown; use reply=\"port\"",
            ),
            ("@endpoint(limit=2)\n def step(self): ...", TypeError, r"limit=…\) bounds .*; add concurrent=True"),
            ("@endpoint(group='io')\n def step(self): ...", TypeError, r"group=…\) bounds .*; add concurrent=True"),
            ("@endpoint(concurrent=True, limit=0)\n def step(self): ...", ValueError, "limit=0.* would run nothing"),
            (
                "@endpoint(concurrent=True, group='io')\n def step(self): ...",
                TypeError,
                "group 'io' of Wrong has no limit",
            ),
            ("@endpoint\n def step(): ...", TypeError, "Wrong.step must take self first"),
            ("@endpoint\n def step(*, a): ...", TypeError, "Wrong.step must take self first"),
            ("@endpoint(reply='port')\n def step(self): ...", TypeError, "Wrong.step must take self and port first"),
            ("@endpoint(reply='port')\n async def step(self, port): yield", TypeError, 'yields and has reply="port"'),
            ("@endpoint\n async def __start__(self): ...", TypeError, "such names are Python's and the runtime's"),
            ("@endpoint\n @staticmethod\n def step(): ...", TypeError, "goes on a `def` or `async def` method"),
            ("step = endpoint(3)", TypeError, "goes on a `def` or `async def` method, not on 3"),
            ("@endpoint\n def step(self): ...\n again = step", TypeError, "'step' under a second name"),
        ],
    )
    def test_at_class_definition(self, body, error, text):
        with pytest.raises(error, match=text):
            define(body)

    def test_groups_that_disagree(self):
        with pytest.raises(TypeError, match=r"group 'io' of Wrong has limits \[1, 2\]; give one limit="):
            define(
                "@endpoint(concurrent=True, group='io', limit=1)\n def a(self): ...\n"
                " @endpoint(concurrent=True, group='io', limit=2)\n def b(self): ..."
            )

    def test_an_override_that_forgot_the_decorator(self):
        with pytest.raises(TypeError, match=r"overrides the endpoint Trainer\.weigh without being one; add @endpoint"):

            class Wrong(Trainer):
                def weigh(self, text: str) -> int:
                    return 0


def signatures():
    def plain(self, a, b=2, *, c=3): ...
    def nothing(self): ...
    def many(self, a, *rest): ...
    def keyword_needed(self, a, *, b): ...
    def positional_only(self, a, b=2, /, c=3): ...
    def anything(self, *args, **kwargs): ...
    def all_default(self, a=1, b=2): ...
    def self_too(*args): ...
    def self_has_default(self=None, a=1): ...

    @functools.wraps(plain)
    def wrapped(*args, **kwargs): ...

    positional = [plain, nothing, many, positional_only, all_default]
    return [*positional, keyword_needed, anything, self_too, self_has_default, wrapped]


class TestBinding:
    @pytest.mark.parametrize("function", signatures(), ids=lambda function: function.__qualname__)
    def test_counting_agrees_with_the_signature(self, function):
        info = endpoint(function).info
        for count in range(6):
            args = tuple(range(count))
            fits = info.positional_min <= count <= info.positional_max
            try:
                inspect.signature(function).bind("self", *args)
            except TypeError:
                assert not fits, count
                with pytest.raises(TypeError, match=r"\(.*\): "):
                    info.bind(args, {})
            else:
                assert fits, count
                info.bind(args, {})
        for name in ("a", "b", "c", "z"):
            known = inspect.signature(function).parameters.get(name)
            by_name = known is not None and known.kind in (known.POSITIONAL_OR_KEYWORD, known.KEYWORD_ONLY)
            assert (name in info.keyword_names) == by_name, name
        assert info.keyword_any == (function.__name__ == "anything")

    def test_the_port_is_not_the_callers(self):
        info = Trainer.later.info
        assert (info.positional_min, info.positional_max, info.keyword_names) == (1, 1, {"key"})
        info.bind(("key",), {})
        info.bind((), {"key": "key"})
        with pytest.raises(TypeError):
            info.bind((), {"port": None, "key": "key"})

    def test_errors_name_endpoint_and_signature(self):
        info = Trainer.step.info
        with pytest.raises(TypeError) as caught:
            info.bind((), {"batches": 1})
        text = "Trainer.step(batch: int, *, scale: float = 1.0) -> float: missing a required argument: 'batch'"
        assert str(caught.value) == text
        with pytest.raises(TypeError, match="too many positional arguments"):
            info.bind((1, 2), {})
        with pytest.raises(TypeError, match="multiple values for argument 'batch'"):
            info.bind((1,), {"batch": 1})
        info.bind((1,), {"scale": 2.0})


class TestTravelling:
    def test_an_endpoint_travels_as_its_name(self):
        packed = pickle.dumps(Trainer.step, protocol=5)
        assert pickle.loads(packed) is Trainer.step
        assert len(packed) < 120

    def test_a_local_class_travels_with_its_table(self):
        script = (
            "import sys, pickle, asyncio\n"
            "cls = pickle.loads(sys.stdin.buffer.read())\n"
            "infos = cls.__roost_endpoints__\n"
            "assert list(infos) == ['step'] and infos['step'] is cls.step.info, infos\n"
            "assert str(infos['step'].signature) == '(batch: int) -> int'\n"
            "print(asyncio.run(cls().step(20)))\n"
        )

        class Local(Actor):
            @endpoint
            async def step(self, batch: int) -> int:
                return batch + 1

        run = subprocess.run(
            [sys.executable, "-c", script], input=cloudpickle.dumps(Local), capture_output=True, check=False
        )
        assert run.stdout.strip() == b"21", run.stderr.decode()
