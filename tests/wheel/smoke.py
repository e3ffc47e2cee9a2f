"""Run by `make wheel` with the installed wheel alone: imports, starts two procs, calls, hears of a death, stops."""

import asyncio
import os
import signal
import sys
import threading

before = set(os.listdir("/proc/self/fd"))
import roost

assert set(os.listdir("/proc/self/fd")) == before, "import opened a descriptor"
assert threading.active_count() == 1, "import started a thread"
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "import set a signal handler"
assert "torch" not in sys.modules and "numpy" not in sys.modules, "import dragged in what it may not need"


class Echo(roost.Actor):
    @roost.endpoint
    async def echo(self, value: object) -> object:
        return value

    @roost.endpoint
    async def pid(self) -> int:
        return os.getpid()

    @roost.endpoint
    async def forever(self) -> None:
        await asyncio.Event().wait()


async def main() -> None:
    async with roost.this_host().spawn_procs(per_host={"procs": 2}) as procs:
        actors = procs.spawn("echo", Echo)
        assert list(await actors.echo.call(b"x" * 1000)) == [b"x" * 1000] * 2
        pids = list(await actors.pid.call())
        assert len({os.getpid(), *pids}) == 3
        pending = actors.slice(procs=1).forever.call_one()
        os.kill(pids[1], signal.SIGKILL)
        try:
            await pending
        except roost.ActorDied as error:
            assert error.failure.signal == signal.SIGKILL
        else:
            raise AssertionError("a call to a killed proc returned")
        assert await actors.slice(procs=0).echo.call_one("still here") == "still here"


roost.run(main())
print(f"roost {roost.__version__} works on {sys.version.split()[0]}")
