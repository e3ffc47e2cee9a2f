"""A program in which everything that has to do with time happens for a while; any event but those that it causes is an error."""

import asyncio
import os
import signal
import sys
import time

from mortal import Mortal
from patient import Patient

from roost import CallTimeoutError, Probe, Restart, context, run, this_host


async def main(seconds):
    leaps, begin = set(), time.monotonic()
    # Rounds may last as long as the clock's own, which would look the same each time.
    while time.monotonic() - begin < 0.25:
        leaps.add(round((time.time() - time.monotonic()) / 3600))
    assert len(leaps) > 1, "the clock does not leap"
    policy = Restart(limit=1_000_000, within_s=3600, backoff_s=(0.05, 0.05))
    async with this_host().spawn_procs({"ranks": 2}, restart=policy) as procs:
        mortals = procs.spawn("mortals", Mortal)
        patients = procs.options(probe=Probe(period_s=0.2, failures_max=2, grace_s=5)).spawn("patients", Patient)
        await mortals
        await patients
        events = context().job.events()
        kills = 0
        while time.monotonic() - begin < seconds:
            assert await mortals.slice(ranks=0).options(timeout=20).sleep.call_one(0.05) == "slept"
            try:
                await mortals.slice(ranks=0).options(timeout=0.05).sleep.call_one(20)
            except CallTimeoutError:
                pass
            else:
                raise AssertionError("a deadline passed unseen")
            # The pause before a restart is not of the wall clock either.
            one = mortals.slice(ranks=1)
            os.kill(await one.pid.call_one(), signal.SIGKILL)
            kills += 1
            async for event in events:
                assert event.kind in ("failed", "restarting", "recovered"), event
                assert event.kind != "failed" or event.failure.signal == signal.SIGKILL, event
                if event.kind == "recovered" and event.mesh == "patients":
                    break
            await mortals.ready()
        while not await patients.slice(ranks=0).questions.call_one():
            await asyncio.sleep(0.05)  # The machine may be busy; without a question the test's time ends.
        states = await procs.states()
        assert [state.incarnation for state in states] == [0, kills]
    print(f"{kills} restarts")


if __name__ == "__main__":
    run(main(float(sys.argv[1])))
