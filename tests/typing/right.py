"""What type checkers must accept, and infer: never run, checked by mypy and basedpyright (`make check`)."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar, assert_type

import roost
from roost import Actor, Endpoint, HostMesh, Point, Port, ProcMesh, Reply, State, ValueMesh, endpoint, testing

T = TypeVar("T")


class Trainer(Actor):
    def __init__(self, lr: float, *, name: str = "trainer") -> None:
        self.lr = lr
        self.name = name
        self.size = 3

    async def __start__(self) -> None:
        self.steps = 0

    @endpoint
    async def step(self, batch: int, *, scale: float = 1.0) -> float:
        return self.lr * batch * scale

    @endpoint
    def weigh(self, text: str) -> int:
        return len(text)

    @endpoint
    async def tokens(self, count: int) -> AsyncIterator[str]:
        for number in range(count):
            yield str(number)

    @endpoint(concurrent=True, limit=4, group="io")
    async def load(self, path: str = "a") -> bytes:
        return path.encode()

    @endpoint(concurrent=True)
    def lookup(self, key: str) -> list[int]:
        return [len(key)]

    @endpoint(concurrent=True)
    async def lines(self) -> AsyncIterator[bytes]:
        yield b""

    @endpoint(reply="port")
    async def later(self, port: Port[dict[str, int]], key: str) -> None:
        port.send({key: 1})

    @endpoint(reply="port", concurrent=True)
    def later_on_a_thread(self, port: Port[bool]) -> None:
        port.send(True)

    @endpoint
    async def inner(self) -> None:
        assert_type(await self.step(1, scale=2.0), float)
        assert_type(self.weigh("a"), int)
        async for token in self.tokens(2):
            assert_type(token, str)
        assert_type(await self.load(), bytes)


class SlowTrainer(Trainer):
    @endpoint
    async def step(self, batch: int, *, scale: float = 1.0) -> float:
        return await super().step(batch, scale=scale) / 2


class Replay(Actor, Generic[T]):
    def __init__(self, capacity: int) -> None:
        self.items: list[T] = []
        self.capacity = capacity

    @endpoint
    async def add(self, item: T) -> int:
        self.items.append(item)
        return len(self.items)

    @endpoint
    def sample(self, count: int) -> list[T]:
        return self.items[:count]

    @endpoint
    async def drain(self) -> AsyncIterator[T]:
        for item in self.items:
            yield item


async def by_attribute(procs: ProcMesh) -> None:
    trainers = procs.spawn("trainers", Trainer, lr=1.0)
    assert_type(trainers, Trainer)
    assert_type(await trainers.step.call(1), ValueMesh[float])
    assert_type(await trainers.step.call(1).outcomes(), ValueMesh[float | BaseException])
    assert_type(await trainers.call(Trainer.step, 1).outcomes(), ValueMesh[float | BaseException])
    assert_type(await trainers.step.call_one(1, scale=0.5), float)
    assert_type(await trainers.step.choose(1), float)
    assert_type(await trainers.step.options(timeout=2.0).call(1), ValueMesh[float])
    async for point, loss in trainers.step.stream(2):
        assert_type(point, Point)
        assert_type(loss, float)
    trainers.step.broadcast(3)
    await trainers.step.broadcast(3)
    assert_type(await trainers.weigh.call("a"), ValueMesh[int])
    assert_type(await trainers.load.call_one(), bytes)
    assert_type(await trainers.lookup.call_one("a"), list[int])


async def streams(procs: ProcMesh) -> None:
    trainers = procs.spawn("trainers", Trainer, 1.0)
    async for _, token in trainers.tokens.stream(2):
        assert_type(token, str)
    async for _, line in trainers.stream(Trainer.lines):
        assert_type(line, bytes)
    assert_type(await trainers.tokens.call(2), ValueMesh[list[str]])
    assert_type(await trainers.call(Trainer.tokens, 2), ValueMesh[list[str]])
    assert_type(await trainers.tokens.call_one(2), list[str])


async def by_class(procs: ProcMesh) -> None:
    trainers = procs.spawn("trainers", SlowTrainer, 1.0, name="slow")
    assert_type(trainers, SlowTrainer)
    assert_type(await trainers.call(Trainer.step, 1, scale=2.0), ValueMesh[float])
    assert_type(await trainers.call_one(SlowTrainer.step, 1), float)
    assert_type(await trainers.choose(Trainer.weigh, "a"), int)
    async for point, loss in trainers.stream(Trainer.step, 1):
        assert_type(point, Point)
        assert_type(loss, float)
    trainers.broadcast(Trainer.step, 1)
    assert_type(await trainers.call("step", 1), ValueMesh[Any])


async def ports(procs: ProcMesh) -> None:
    trainers = procs.spawn("trainers", Trainer, 1.0)
    assert_type(await trainers.later.call("a"), ValueMesh[dict[str, int]])
    assert_type(await trainers.later.call_one(key="a"), dict[str, int])
    assert_type(await trainers.call_one(Trainer.later_on_a_thread), bool)


async def generic_actors(procs: ProcMesh) -> None:
    replay = procs.spawn("replay", Replay[int], 8)
    assert_type(replay, Replay[int])
    assert_type(await replay.add.call(3), ValueMesh[int])
    assert_type(await replay.sample.call_one(2), list[int])
    assert_type(await replay.drain.call_one(), list[int])
    assert_type(await replay.call_one(Replay[int].sample, 2), list[int])
    async for _, item in replay.drain.stream():
        assert_type(item, int)


async def meshes(procs: ProcMesh) -> None:
    async with procs.spawn("trainers", Trainer, 1.0) as trainers:
        assert_type(await trainers, Trainer)
        assert_type(await trainers.ready(), Trainer)
        assert_type(trainers.slice(gpus=0), Trainer)
        assert_type(trainers.slice(gpus=slice(0, 4, 2), hosts=1), Trainer)
        assert_type(trainers.flatten("all").rename(all="workers").split(workers=("a", "b"), b=2), Trainer)
        assert_type(len(trainers), int)
        assert_type(dict(trainers.sizes), dict[str, int])
        for rank in trainers:
            assert_type(await rank.step.call_one(1), float)
        states = await trainers.states()
        assert_type([state.pid for state in states], list[int | None])
        await trainers.stop(reason="done")
    with procs.spawn("trainers", Trainer, 1.0) as trainers:
        assert_type(trainers.step.call(1).result(), ValueMesh[float])


async def services(procs: ProcMesh) -> None:
    trainer = await roost.get_or_spawn("trainer", Trainer, 1.0, name="first")
    assert_type(trainer, Trainer)
    assert_type(await trainer.step.call_one(1), float)
    assert_type(roost.get_or_spawn("replay", Replay[int], 8), Reply[Replay[int]])
    assert_type(await roost.lookup("trainer", Trainer), Trainer)
    assert_type(await roost.lookup("replay", Replay[int]), Replay[int])
    assert_type(roost.lookup("trainer", Trainer).result(1.0), Trainer)
    assert_type(await procs.options(per_proc={"n": 2}).get_or_spawn("placed", Trainer, 1.0), Trainer)
    assert_type(await procs.get_or_spawn("placed", Trainer, 1.0), Trainer)
    await roost.remove("trainer")


async def monitors(procs: ProcMesh) -> None:
    trainers = procs.spawn("trainers", Trainer, 1.0)
    assert_type(roost.monitor(trainers), Reply[ValueMesh[State]])
    assert_type((await roost.monitor(trainers.slice(gpus=0))).item().reason, str)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(roost.monitor(procs))
    assert_type(task.result(), ValueMesh[State])


async def hosts() -> None:
    tls = roost.Tls(ca="ca.pem", certificate=Path("host.pem"), key="key.pem")
    hosts = roost.attach(["a:1", "b:1"], key_file="key", tls=tls, timeout=5, wait_for=2, lease_s=10)
    assert_type(hosts, HostMesh)
    assert_type(roost.attach(Path("hosts.txt"), insecure_plaintext=True), HostMesh)
    assert_type(await hosts.ready(), HostMesh)
    assert_type(hosts.slice(hosts=slice(0, 1)).rename(hosts="nodes"), HostMesh)
    assert_type(hosts.names, ValueMesh[str])
    assert_type(await hosts.states(), ValueMesh[State])
    async with roost.ProcessHosts(2, lease_s=5) as hosts, hosts.spawn_procs({"gpus": 2}) as procs:
        assert_type(hosts, HostMesh)
        assert_type(procs, ProcMesh)
        assert_type([host async for host in hosts.events()], list[roost.Event])
    assert_type(await roost.attach_torchrun(), HostMesh | None)
    await hosts.stop("enough")
    await hosts.shutdown()


async def tests_of_ones_own() -> None:
    procs = testing.local_mesh({"gpus": 2}, restart=roost.Restart(limit=1), setup=print)
    assert_type(procs, ProcMesh)
    trainers = procs.spawn("trainers", Trainer, 1.0)
    async with testing.Faults(trainers) as faults:
        assert_type(faults, testing.Faults)
        await faults.kill(Trainer.step, message=3, gpus=1)
        await faults.kill("step", signal=15, times=None, after=True, gpus=slice(0, 2))
        await faults.fail(Trainer.weigh, ValueError("x"))
        await faults.hang(Trainer.tokens)
        await faults.freeze(Trainer.load, 0.5)
        await faults.delay(Trainer.lookup, 1)
        await faults.drop(Trainer.later)
    testing.kill(trainers.slice(gpus=0))
    testing.kill(procs.slice(gpus=1), reason="enough")
    with testing.clock() as time, testing.in_process():
        assert_type(time, testing.FakeClock)
        await time.advance(60)
        assert_type(time.elapsed, float)


async def replies_are_coroutines(procs: ProcMesh) -> None:
    trainers = procs.spawn("trainers", Trainer, 1.0)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(trainers.step.call(1))
    assert_type(task.result(), ValueMesh[float])
    one, two = await asyncio.gather(trainers.step.call_one(1), trainers.weigh.call_one("a"))
    assert_type(one, float)
    assert_type(two, int)


async def twice(step: Endpoint[[int], float]) -> float:
    return await step.call_one(1) + await step.call_one(2)


def plain_endpoint() -> None:
    async def take(trainers: Trainer) -> Endpoint[[str], int]:
        return trainers.weigh

    _ = take


class Owner(Actor):
    @endpoint
    async def lend(self) -> roost.rdma.Buffer:
        return roost.rdma.Buffer(roost.rdma.empty(100))


async def one_sided(owner: Owner) -> None:
    buffer = await owner.lend.call_one()
    memory = roost.rdma.empty(100)
    assert_type(memory, memoryview)
    assert_type(await buffer.read_into(memory), None)
    assert_type(await buffer.read_into(memory, version=3, timeout=1.0, checksum=True), int)
    assert_type(await buffer.write_from(b"abc", offset=10), None)
    assert_type(buffer.backend, Literal["ibverbs", "same_host", "tcp"] | None)
    assert_type((buffer.size, buffer.owner), tuple[int, str])
    batch = roost.rdma.Batch().read(buffer, memory).write(buffer[0:3, ...], b"abc")
    assert_type(batch, roost.rdma.Batch)
    assert_type(await batch.submit(timeout=2), None)
    assert_type(await batch.submit(version=2), int)
    with buffer.update(version=4):
        memory[0] = 1
    async with buffer as same, roost.rdma.Buffers({"a": [memory]}) as structure:
        assert_type(same, roost.rdma.Buffer)
        assert_type(await structure.read_into({"a": [memory]}, cast=True), None)
        assert_type(await structure.read_into({"a": [memory]}, version=1), int)
        assert_type(await structure.drop(), None)
    try:
        await asyncio.gather(buffer.drop(), buffer.read_into(memory))
    except roost.rdma.VersionError as error:
        assert_type((error.wanted, error.found), tuple[int, int])
    except roost.rdma.BufferGone:
        pass
