"""B5, O1, O2. Descriptors: none are left, or a child has them all."""

import ast
import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from greedy import Greedy, take_all
from loops import on_a_loop

from roost import Actor, ActorDied, endpoint, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")


def processor_seconds(stat):
    """What a process has used of the processor; its file in /proc is open, since no other can be opened any more."""
    user, system = os.pread(stat.fileno(), 4096, 0).decode().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class Witness(Actor):
    @endpoint
    async def pid(self):
        return os.getpid()


@pytest.mark.parametrize("where", ["in a proc", "in the driver"])
@on_a_loop
async def test_b5_without_descriptors_nothing_spins_and_the_connected_go_on(where, rounds, figures, caplog):
    seconds = rounds(1.0, 30.0)
    async with this_host().spawn_procs({"ranks": 3}) as procs:
        greedy = procs.spawn("greedy", Greedy)
        pids = [*await procs.spawn("witness", Witness).pid.call(), os.getpid()]
        stats = [open(f"/proc/{pid}/stat", "rb") for pid in pids]  # noqa: SIM115
        first, second, _ = greedy
        await greedy.echo.call(1)
        taken = []
        if where == "in a proc":
            await second.take.call_one()
        else:
            taken = take_all()
        try:
            # What needs a descriptor is tried again and again, as an application would.
            before, end = [processor_seconds(stat) for stat in stats], time.monotonic() + seconds
            refused = answered = 0
            late = None
            if taken:
                late = this_host().spawn_procs(name="late")
                with pytest.raises(ActorDied, match="descriptors"):
                    await late.ready()
            while time.monotonic() < end:
                assert list(await greedy.echo.call(answered)) == [answered] * 3
                answered += 1
                if not taken:
                    with pytest.raises(ActorDied, match="descriptors"):
                        await first.ask.call_one(second, 5)
                    refused += 1
                await asyncio.sleep(0.1)
            used = [after - earlier for after, earlier in zip(map(processor_seconds, stats), before, strict=True)]
        finally:
            for stat in stats:
                stat.close()
            for fd in taken:
                os.close(fd)
            if not taken:
                await second.give_back.call_one()
        if late is not None:
            await late.stop()
        assert await first.ask.call_one(second, 7) == 7
        async with this_host().spawn_procs(name="later") as later:
            assert await later.spawn("actor", Greedy).echo.call_one(3) == 3
    figures(
        f"{where}: {answered} calls answered, {refused} refused in {seconds:g} s, with {max(used):.2f} s of the processor "
        f"and {len(caplog.records)} warnings"
    )
    assert max(used) < 0.5 * seconds, "a loop that spins takes all that it gets"
    assert len(caplog.records) <= 2 + seconds


LISTING = """
import os
import subprocess
import sys
for fd in sorted(os.listdir('/proc/self/fd'), key=int)[3:]:
    try: print(fd, os.readlink(f'/proc/self/fd/{fd}'))
    except OSError: pass  # The one that lists them.
"""

DRIVER = """
import asyncio, subprocess, sys
import numpy as np
from greedy import Greedy
from roost import run, this_host

def listed():
    return subprocess.run([sys.executable, "-c", {listing!r}], close_fds=False, capture_output=True, text=True, check=True).stdout

async def main():
    async with this_host().spawn_procs({{"ranks": 2}}) as procs:
        first, second = await procs.spawn("greedy", Greedy)
        # Connections, shared memory, an event loop: all is there.
        assert await first.total.call_one(np.ones(4 << 20, np.uint8)) == 4 << 20
        assert await first.ask.call_one(second, 1) == 1
        return listed()

print(run(main()), end="")
"""


def test_o2_what_the_driver_executes_inherits_no_descriptor():
    """Also when nothing is closed for it; of procs see the system tests."""
    script = f"import sys\nsys.path[:] = {sys.path!r}\n" + DRIVER.format(listing=LISTING)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_o1_a_forked_child_gets_an_error_at_once_and_disturbs_nobody(rounds, promised):
    program = Path(__file__).with_name("driver_that_forks.py")
    command = [sys.executable, program, str(rounds(2, 100))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=rounds(100, 1000))
    assert (done.returncode, done.stderr) == (0, "")
    promised("to the errors of five uses", ast.literal_eval(done.stdout), 100, 1.0)
