"""`python -m roost.selftest`: what works on this host's GPUs, line by line, held against the CPU.

Each line passes, fails, or says that what it is about is not there. The exit status is 1 when a line has failed, else 0.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import traceback
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from roost import gpus, kernels, libraries
from roost._roost import DeviceBlock, gpu_devices, gpu_libraries
from roost.actor import Actor
from roost.context import context
from roost.endpoint import endpoint
from roost.errors import RoostError, Unavailable
from roost.running import run, this_host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from roost.collectives import Communicator
    from roost.mesh import ProcMesh

__all__ = ["Line", "Ring", "answer", "main", "turn"]

_SEED = 5
# Odd, so that there are tails, and more than a block of threads has.
_ROWS, _COLUMNS = 301, 4099
_BYTES = 256 << 20
# Whole large pages, as drivers export them.
_SHARED_BYTES = 4 << 20
_PROCESS_S = 60.0


class Line(NamedTuple):
    """What came of one thing."""

    name: str
    status: Literal["pass", "fail", "not there"]
    said: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m roost.selftest", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object a line: name, status, said")
    options = parser.parse_args(arguments)
    failed = False
    for line in _lines():
        failed |= line.status == "fail"
        text = json.dumps(line._asdict()) if options.json else f"{line.status:9}  {line.name}: {line.said}"
        print(text, flush=True)  # noqa: T201 - what it is there for
    return int(failed)


def _lines() -> Iterator[Line]:
    yield from _libraries()
    count = 0
    for name, said, number, place in _devices():
        if number is None:
            yield Line(name, "not there", said)
            continue
        # What needs no torch.
        yield _tried(f"{name} IPC", partial(shared_with_a_process, number))
        yield _tried(f"{name} dma-buf", partial(dma_buf, number))
        if place is None:
            yield Line(name, "not there", said)
            continue
        count += 1
        yield Line(name, "pass", said)
        for work in KERNELS:
            yield _tried(f"{name} {work}", partial(compare, work, place))
        yield _tried(f"{name} memory", partial(memory, place))
    if count:
        yield _tried("collectives", lambda: run(_ring(count)))
    else:
        yield Line("collectives", "not there", "no GPU that torch can use")


def _tried(name: str, work: Callable[[], str]) -> Line:
    """Whatever goes wrong is what the line is there to say."""
    try:
        return Line(name, "pass", work())
    except Unavailable as error:
        return Line(name, "not there", str(error))
    except Exception as error:  # noqa: BLE001
        if not isinstance(error, (AssertionError, RoostError)):
            traceback.print_exc()
        return Line(name, "fail", f"{type(error).__name__}: {error}")


def _libraries() -> Iterator[Line]:
    for name, path, said in gpu_libraries(gpus.wanted()):
        if path is None:
            yield Line(name, "not there", said)
        elif "two copies" in said:
            # Memory of one is unknown to the other.
            yield Line(name, "fail", f"{path}: {said}")
        else:
            # A runtime without a driver is nothing that works.
            works = said.endswith("devices") or said.startswith("version")
            yield Line(name, "pass" if works else "not there", f"{path}: {said}")


def _devices() -> Iterator[tuple[str, str, int | None, Any]]:
    """Of each, its name, what it is, its number, and where torch has it; None where there is none, or torch has it not."""
    try:
        platform, devices = gpu_devices(gpus.wanted())
        torch = libraries.torch()
    except Unavailable as error:
        yield "GPUs", str(error), None, None
        return
    for device in devices:
        number = device["number"]
        said = f"{device['name']}, {device['architecture']}, at {device['pci']}, {platform}"
        if number < torch.cuda.device_count():
            yield f"GPU {number}", said, number, torch.device("cuda", number)
        else:
            yield (
                f"GPU {number}",
                f"{said}; torch {torch.__version__} does not see it: install one for {platform}",
                number,
                None,
            )


# What is done on a GPU and on the CPU, with the same bits --------------------------------------------------------------
def _numbers(place: Any) -> Any:
    torch = libraries.torch()
    numbers = torch.randn(_ROWS, _COLUMNS, generator=torch.Generator().manual_seed(_SEED))
    # With what is easily got wrong.
    numbers[:, :5] = torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e-42])
    return numbers.to(place)


def _outer_step(place: Any) -> Any:
    torch = libraries.torch()
    outer = torch.linspace(-1, 1, _COLUMNS).to(place)
    local, velocity = outer * 0.75, outer * 0.125
    kernels.outer_step(outer, velocity, local, learning_rate=0.7, momentum=0.9)
    return outer


KERNELS: dict[str, Callable[[Any], Any]] = {
    "pack": lambda place: kernels.pack([_numbers(place), _numbers(place)[1:]], dtype=libraries.torch().bfloat16),
    "quantise": lambda place: kernels.quantise(_numbers(place)).codes,
    "dequantise": lambda place: kernels.dequantise(kernels.quantise(_numbers(place))),
    "outer step": _outer_step,
    "checksum": lambda place: libraries.torch().tensor([kernels.checksum(_numbers(place)) >> 1]),
}
"""By its name, what a kernel makes at a place."""


def compare(kernel: str, place: Any) -> str:
    """Hold what a kernel makes at a place against the CPU's.

    Raises:
        AssertionError: they differ.
    """
    torch = libraries.torch()
    there, here = (KERNELS[kernel](one).cpu().reshape(-1).view(torch.uint8) for one in (place, torch.device("cpu")))
    different = int((there != here).sum())
    if different:
        raise AssertionError(f"{different} of {len(here)} bytes are not the CPU's")
    return f"{len(here)} bytes, the same as on the CPU"


def memory(place: Any) -> str:
    """Bytes there and back.

    Raises:
        AssertionError: they are not what they were.
    """
    torch = libraries.torch()
    before = torch.randint(0, 256, (_BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(_SEED))
    after = before.to(place).clone().cpu()
    if not torch.equal(before, after):
        raise AssertionError(f"{int((before != after).sum())} of {_BYTES} bytes came back as others")
    return f"{_BYTES >> 20} MiB there and back"


def shared_with_a_process(number: int) -> str:
    """Another process opens memory of a GPU, finds there what this one wrote, and writes its answer.

    Raises:
        AssertionError: it found something else, or it could not.
        Unavailable: the driver shares no memory.
    """
    block = DeviceBlock(gpus.wanted(), number, _SHARED_BYTES)
    sent = (bytes(range(251)) * (_SHARED_BYTES // 251 + 1))[:_SHARED_BYTES]
    block.write(sent)
    handle, offset, size = block.share()
    told = json.dumps([number, list(handle), offset, size])
    command = [sys.executable, "-c", f"from roost.selftest import answer; answer({told!r})"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PROCESS_S, check=False)
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise AssertionError(f"the other process could not open it: {last or f'it ended with {done.returncode}'}")
    if block.read() != sent[::-1]:
        raise AssertionError("what the other process has written is not here")
    return f"{_SHARED_BYTES >> 20} MiB, written by two processes"


def answer(told: str) -> None:
    """In the other process: turn the bytes there round."""
    number, handle, offset, size = json.loads(told)
    block = DeviceBlock.opened(gpus.wanted(), number, (handle, offset, size))
    block.write(block.read()[::-1])


def dma_buf(number: int) -> str:
    """What NICs reach a GPU's memory by.

    Raises:
        AssertionError: it is smaller than the memory.
        Unavailable: the driver, or the kernel, has none.
    """
    length, offset = DeviceBlock(gpus.wanted(), number, _SHARED_BYTES).dma_buf()
    if length < offset + _SHARED_BYTES:
        raise AssertionError(f"it has {length} bytes, and the memory ends at {offset + _SHARED_BYTES}")
    return f"{length >> 20} MiB"


class Ring(Actor):
    """One rank, with a GPU of its own."""

    @endpoint
    async def turn(self) -> str:
        """Sums, and messages to the next one; says what was wrong."""
        mesh = context().mesh
        assert mesh is not None, "an endpoint runs in a mesh"
        comm = await mesh.communicator(backend="rccl")
        total = await comm.all_reduce(self._own(comm))
        wanted = comm.size * (comm.size + 1) / 2
        if not bool((total == wanted).all()):
            return f"rank {comm.rank}: the sum is {total[0].item()}, not {wanted}"
        before = (comm.rank - 1) % comm.size
        got = self._own(comm) * 0
        if comm.size > 1:
            sent = comm.send(self._own(comm), (comm.rank + 1) % comm.size)
            await comm.receive(got, before)
            await sent
            if not bool((got == before + 1.0).all()):
                return f"rank {comm.rank}: rank {before} has sent {got[0].item()}, not {before + 1.0}"
        await comm.close()
        return ""

    def _own(self, comm: Communicator) -> Any:
        return libraries.torch().full((1_000_003,), comm.rank + 1.0, device=comm.place)


async def turn(procs: ProcMesh, ring: type[Ring] = Ring, *arguments: Any) -> str:
    """All ranks' turn.

    Raises:
        AssertionError: a rank says what was wrong.
    """
    said = [one for one in (await procs.spawn("ring", ring, *arguments).turn.call()).values() if one]
    if said:
        raise AssertionError("; ".join(said))
    return f"an all-reduce and a ring of messages over {len(procs)} ranks"


async def _ring(count: int) -> str:
    async with this_host().spawn_procs({"gpus": count}, gpus_per_proc=1, preload=["torch"]) as procs:
        return await turn(procs)


if __name__ == "__main__":
    # By its own name: the ranks import it.
    sys.exit(import_module("roost.selftest").main())
