"""One-sided memory when its owner is busy, ends, starts anew, takes it back, or writes it meanwhile."""

import asyncio
import logging
import os
import signal
import time

import memories
import nics
import numpy as np
import pytest
from loops import on_a_loop
from memories import two

from roost import Restart
from roost.errors import PeerLostError
from roost.rdma import Buffer, BufferGone, Buffers, empty

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(nics.patient(90))]


@on_a_loop
async def test_the_owners_python_has_no_part_in_it(way):
    async with two(way) as (owner, reader):
        assert await reader.run.call_one(memories.read_while_it_is_locked, owner, 2.0) > 3


@pytest.mark.parametrize("size", [memories.MIB, 128 * memories.MIB])
@on_a_loop
async def test_an_owner_that_is_killed_is_lost_at_once(way, size):
    async with two(way) as (owner, reader):
        buffer = await owner.lend.call_one(size)
        pid = await owner.pid.call_one()
        await reader.run.call_one(a_read, buffer, 0)
        reading = reader.run.call_one(memories.read_until_it_ends, buffer)
        await asyncio.sleep(0.5)
        assert not reading.done()
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        kind, text, heard, _ = await reading
        assert kind is PeerLostError, text
        assert heard - killed < nics.patient(0.25)
        kind, text, seconds, _ = await reader.run.call_one(how_it_fails, buffer)
        assert kind is PeerLostError, text
        assert seconds < nics.patient(0.25)


async def how_it_fails(buffer):
    target, started = np.zeros(buffer.size, "u1"), time.monotonic()
    try:
        await buffer.read_into(target)
    except Exception as error:
        return type(error), str(error), time.monotonic() - started, 0


@on_a_loop
async def test_the_next_life_answers_to_no_handle_of_the_last(way):
    async with two(way, restart=Restart(backoff_s=(0.01, 0.1), while_down="wait")) as (owner, reader):
        old = await owner.lend.call_one(1000)
        await reader.run.call_one(a_read, old, 0)
        os.kill(await owner.pid.call_one(), signal.SIGKILL)
        new = await owner.lend.call_one(1000, 7)
        kind, text, *_ = await reader.run.call_one(how_it_fails, old)
        assert kind is PeerLostError, text
        await reader.run.call_one(a_read, new, 7)


async def a_read(buffer, seed):
    target = np.zeros(buffer.size, "u1")
    await buffer.read_into(target)
    assert (target == memories.pattern(buffer.size, seed)).all()


@on_a_loop
async def test_a_buffer_that_is_taken_back_while_it_is_read(way):
    async with two(way) as (owner, reader):
        buffer = await owner.lend.call_one(128 * memories.MIB)
        await reader.run.call_one(a_read, buffer, 0)
        reading = reader.run.call_one(memories.read_until_it_ends, buffer)
        await asyncio.sleep(0.3)
        started = time.monotonic()
        assert await owner.drop.call_one(buffer)
        assert time.monotonic() - started < nics.patient(2)
        kind, text, *_ = await reading
        assert kind is BufferGone, text
        counts = await owner.counts.call_one()
        assert (counts["regions"], counts["leases_given"]) == (0, 0)


@on_a_loop
async def test_between_hosts_nics_are_taken_where_there_are_some(nics_library, monkeypatch):
    monkeypatch.delenv("ROOST_RDMA", raising=False)
    for name, value in nics_library.items():
        monkeypatch.setenv(name, value)
    async with two("between_hosts") as (owner, reader):
        buffer = await owner.lend.call_one(100_000)
        assert await reader.run.call_one(backend_after_a_read, buffer) == "ibverbs"


async def backend_after_a_read(buffer):
    await a_read(buffer, 0)
    return buffer.backend


@on_a_loop
async def test_a_structure_goes_over_and_back(way):
    async with two(way) as (owner, reader):
        values = {
            "a": [np.arange(1000.0), np.arange(12).reshape(3, 4).T],
            "n": 3,
            "none": np.zeros((0, 2)),
            "zero": np.array(7),
        }
        lent = await owner.run.call_one(lend_structure, values)
        await reader.run.call_one(read_structure, lent)
        assert await owner.run.call_one(structure_is, 100.0)


KEPT = {}


async def lend_structure(values):
    KEPT["values"] = {**values, "a": [np.array(one) for one in values["a"]], "zero": np.array(values["zero"])}
    KEPT["lent"] = Buffers(KEPT["values"])
    return KEPT["lent"]


async def read_structure(lent):
    values = await lent.read()
    assert (values["n"], values["zero"], values["none"].shape) == (3, 7, (0, 2))
    assert (values["a"][0] == np.arange(1000.0)).all()
    assert (values["a"][1] == np.arange(12).reshape(3, 4).T).all()
    other = {"a": [np.zeros(1000, "f4"), np.zeros((4, 3), "i2")], "none": np.zeros((0, 2)), "zero": np.array(0)}
    memories.refused(ValueError, lambda: lent.read_into(other), "cast=True converts it")
    await lent.read_into(other, cast=True)
    assert (other["a"][0] == np.arange(1000.0)).all()
    assert (other["a"][1] == values["a"][1]).all()
    memories.refused(ValueError, lambda: lent.read_into({"a": other["a"]}), "lacks ['none'], ['zero']")
    other["a"][0][:] = 100.0
    await lent.write_from(other, cast=True)


async def structure_is(value):
    assert (KEPT["values"]["a"][0] == value).all()
    with KEPT["lent"].update(version=2):
        KEPT["values"]["zero"][...] = 1
    await KEPT.pop("lent").drop()
    return True


@on_a_loop
async def test_in_the_driver_alone_and_everything_is_given_back(caplog):
    from roost.rdma.transfers import transfers

    caplog.set_level(logging.INFO, "roost.rdma")
    memory = empty(100_000)
    async with Buffer(memory) as buffer, Buffer(np.ones(10)) as other:
        target = np.ones(100_000, np.uint8)
        await buffer.read_into(target)
        assert not target.any()
        assert caplog.messages == ["memory of driver is reached by same_host"]
        assert transfers().engine.counts()["regions"] == 2
        with buffer.update(version=1):
            memory[0] = 3
        assert await buffer.read_into(target, version=1) == 1
        assert target[0] == 3
        assert other.owner == "driver"
        await buffer.drop()
        await memories.fails(BufferGone, buffer.read_into(target))
    counts = transfers().engine.counts()
    assert (counts["regions"], counts["leases_given"], counts["transfers"]) == (0, 0, 0)


def test_a_script_without_a_loop_waits_for_results():
    buffer = Buffer(np.arange(100, dtype="u1"))
    target = np.zeros(100, "u1")
    buffer.read_into(target).result(10)
    assert (target == np.arange(100)).all()
    buffer.drop().result(10)
    with pytest.raises(BufferGone):
        buffer.read_into(target).result(10)
    # The job of a script ends with the interpreter; here the test does it.
    from roost import process

    runtime = process.current()
    runtime.loop.call_soon_threadsafe(runtime.stopping.set)
    runtime.background.join(10)


@on_a_loop
async def test_memory_is_kept_as_long_as_its_buffer(way):
    async with two(way) as (owner, reader):
        lent = await owner.run.call_one(lend_and_forget, way)
        await reader.run.call_one(a_read, lent, 4)


async def lend_and_forget(way):
    import gc

    memory = (
        np.frombuffer(empty(4 * memories.MIB), np.uint8) if way == "shared" else np.zeros(4 * memories.MIB, np.uint8)
    )
    memory[:] = memories.pattern(4 * memories.MIB, 4)
    buffer = Buffer(memory)
    del memory
    gc.collect()
    return buffer


class TestOfTorch:
    @on_a_loop
    async def test_freed_storage_is_gone_and_its_owner_lives(self, way):
        pytest.importorskip("torch")
        async with two(way) as (owner, reader):
            lent, fine = await owner.run.call_one(lend_freed)
            kind, text, *_ = await reader.run.call_one(how_it_fails, lent)
            assert kind is BufferGone, text
            await reader.run.call_one(a_read, fine, 0)

    @on_a_loop
    async def test_modules_and_optimizers(self, way):
        pytest.importorskip("torch")
        async with two(way) as (owner, reader):
            lent = await owner.run.call_one(lend_model)
            assert await reader.run.call_one(take_model, lent) == 1


async def lend_freed():
    import torch

    tensor = torch.zeros(64 * memories.MIB, dtype=torch.uint8)
    lent = Buffer(tensor)
    KEPT["tensor"] = tensor
    tensor.untyped_storage().resize_(0)
    return lent, Buffer(memories.pattern(1000))


def model_of(seed):
    import torch

    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))
    model[2].bias = model[2].bias
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


async def lend_model():
    model, optimizer = model_of(1)
    import torch

    model(torch.ones(8, 16)).sum().backward()
    optimizer.step()
    KEPT["model"] = model, optimizer
    lent = Buffers({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sum": checksum(model)})
    with lent.update(version=1):
        pass
    return lent


def checksum(model):
    return sum(float(value.double().sum()) for value in model.state_dict().values())


async def take_model(lent):
    import torch

    model, optimizer = model_of(2)
    values = await lent.read(version=1)
    optimizer.load_state_dict(values["optimizer"])
    model.load_state_dict(values["model"])
    assert checksum(model) == values["sum"]
    state = optimizer.state_dict()["state"]
    assert all(
        torch.equal(state[number]["exp_avg"], values["optimizer"]["state"][number]["exp_avg"]) for number in state
    )
    halves = {"model": {name: torch.zeros_like(value, dtype=torch.bfloat16 if value.is_floating_point() else None)
                        for name, value in values["model"].items()},
              "optimizer": values["optimizer"]}  # fmt: skip
    return await lent.read_into(halves, cast=True, version=1)
