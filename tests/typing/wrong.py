"""What type checkers must refuse: each line's error is expected, and an error that is not there is one.

Never run, checked by mypy and basedpyright (`make check`): strict checkers complain of an ignore that ignores nothing.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=error

from collections.abc import AsyncIterator

import roost
from roost import Actor, Endpoint, Port, ProcMesh, ValueMesh, configure, endpoint, testing, this_host


class Trainer(Actor):
    def __init__(self, lr: float, *, name: str = "trainer") -> None:
        self.lr = lr
        self.name = name

    @endpoint
    async def step(self, batch: int, *, scale: float = 1.0) -> float:
        return self.lr * batch * scale

    @endpoint
    async def tokens(self, count: int) -> AsyncIterator[str]:
        yield str(count)

    @endpoint(reply="port")
    async def later(self, port: Port[int], key: str) -> None:
        port.send(len(key))
        port.send(key)  # type: ignore[arg-type]

    @endpoint
    async def inner(self) -> None:
        self.step("one")  # type: ignore[arg-type, unused-coroutine]
        text: str = await self.step(1)  # type: ignore[assignment]
        print(text)

    def plain(self) -> None: ...


class Twice(Trainer):
    @endpoint
    async def step(self, batch: str, *, scale: float = 1.0) -> float:  # type: ignore[override]
        return len(batch) * scale


class Wrong(Actor):
    def __start__(self) -> None: ...  # type: ignore[override]


@endpoint(reply="later")  # type: ignore[call-overload, untyped-decorator]
async def unknown_reply(self: Actor) -> None: ...


@endpoint(limit="2", concurrent=True)  # type: ignore[call-overload, untyped-decorator]
async def limit_of_text(self: Actor) -> None: ...


async def constructors(procs: ProcMesh) -> None:
    procs.spawn("trainers", Trainer)  # type: ignore[call-arg]
    procs.spawn("trainers", Trainer, lr="fast")  # type: ignore[arg-type]
    procs.spawn("trainers", Trainer, 1.0, "name")  # type: ignore[call-arg]
    procs.spawn("trainers", Trainer, 1.0, size=2)  # type: ignore[call-arg]
    procs.options(per_proc={"envs": 2}).spawn("trainers", Trainer, "fast")  # type: ignore[arg-type]
    procs.options(retries=3)  # type: ignore[call-arg]
    procs.options(per_proc=2)  # type: ignore[arg-type]


def hosts() -> None:
    this_host().spawn_procs({"gpus": "4"})  # type: ignore[dict-item]
    this_host().spawn_procs({"gpus": 4}, restart=3)  # type: ignore[arg-type]
    this_host().spawn_procs({"gpus": 4}, gpus=4)  # type: ignore[call-arg]


async def arguments(trainers: Trainer) -> None:
    await trainers.step.call("one")  # type: ignore[arg-type]
    await trainers.step.call()  # type: ignore[call-arg]
    await trainers.step.call_one(1, 2)  # type: ignore[call-arg]
    await trainers.step.call_one(1).outcomes()  # type: ignore[misc]
    await trainers.step.choose(1, scale="big")  # type: ignore[arg-type]
    trainers.step.broadcast(batches=1)  # type: ignore[call-arg]
    await trainers.call(Trainer.step, "one")  # type: ignore[call-overload]
    trainers.broadcast(Trainer.step, 1, 2)  # type: ignore[call-overload]
    await trainers.later.call(None, "key")  # type: ignore[arg-type, call-arg]
    await trainers.call(Trainer.plain)  # type: ignore[call-overload]
    await trainers.step.options(deadline=1.0).call(1)  # type: ignore[call-arg]
    trainers.tokens.stream("many")  # type: ignore[arg-type]


async def answers(trainers: Trainer) -> None:
    losses: ValueMesh[int] = await trainers.step.call(1)  # type: ignore[assignment]
    key: str = await trainers.later.call_one("key")  # type: ignore[assignment]
    token: str = await trainers.tokens.call_one(1)  # type: ignore[assignment]
    async for _, number in trainers.tokens.stream(1):
        number.bit_length()  # type: ignore[attr-defined]
    print(losses, key, token)
    print(trainers.unknown)  # type: ignore[attr-defined]


async def endpoints(trainers: Trainer) -> None:
    step: Endpoint[[str], float] = trainers.step  # type: ignore[assignment]
    print(step)


async def services(procs: ProcMesh) -> None:
    await roost.get_or_spawn("trainer", Trainer)  # type: ignore[call-arg]
    await roost.get_or_spawn("trainer", Trainer, "fast")  # type: ignore[arg-type]
    await procs.options(restart=None).get_or_spawn("trainer", Trainer, lr="fast")  # type: ignore[arg-type]
    await procs.options(probes=None).get_or_spawn("trainer", Trainer, 1.0)  # type: ignore[call-arg]
    await roost.lookup("trainer")  # type: ignore[call-arg]
    await roost.lookup(3, Trainer)  # type: ignore[arg-type]
    count: int = await roost.lookup("trainer", Trainer)  # type: ignore[arg-type]
    roost.monitor("trainer")  # type: ignore[arg-type]
    print(count)


async def other_hosts() -> None:
    roost.attach(7000)  # type: ignore[arg-type]
    roost.attach(["a:1"], key="key")  # type: ignore[call-arg]
    roost.Tls(ca="ca.pem")  # type: ignore[call-arg]
    roost.attach(["a:1"]).spawn("x", Trainer, 1.0)  # type: ignore[attr-defined]


async def tests_of_ones_own(procs: ProcMesh) -> None:
    testing.Faults(procs)  # type: ignore[arg-type]
    async with testing.Faults(procs.spawn("trainers", Trainer, 1.0)) as faults:
        await faults.kill(3)  # type: ignore[arg-type]
        await faults.fail("step", "x")  # type: ignore[arg-type]
        await faults.delay("step")  # type: ignore[call-arg]
        await faults.kill("step", message="third")  # type: ignore[arg-type]
    testing.kill("trainers")  # type: ignore[arg-type]
    testing.local_mesh({"gpus": 2}, env={})  # type: ignore[call-arg]


def limits() -> None:
    configure(grace=5)  # type: ignore[call-arg]
    configure(grace_s="long")  # type: ignore[arg-type]


async def one_sided(buffer: roost.rdma.Buffer, memory: memoryview) -> None:
    await buffer.read_into(memory, version="3")  # type: ignore[call-overload]
    version: int = await buffer.read_into(memory)  # type: ignore[assignment, func-returns-value]
    print(version)
    buffer["a"]  # type: ignore[index]
    roost.rdma.Batch().read(memory, memory)  # type: ignore[arg-type]
    with buffer.update():  # type: ignore[call-arg]
        pass
    buffer.size = 3  # type: ignore[misc]
