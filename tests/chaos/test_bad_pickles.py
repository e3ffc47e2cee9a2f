"""H10. A member of the job sends bytes that are no pickle, or a hostile one: that call fails, and nothing else comes of it."""

import collections
import os
import time

import pytest
from liars import Member, Neighbour, drawn, known
from loops import on_a_loop

from roost import this_host

pytestmark = pytest.mark.usefixtures("nothing_left")

# Calls between two looks at how the others are.
BATCH = 100


@on_a_loop
async def test_h10_a_bad_pickle_fails_its_call_and_the_loop_lives(rounds, figures):
    """As arguments, as an answer and as an error; what it is made of is drawn, and what an expert would try comes first."""
    seed = int(os.environ.get("ROOST_TEST_SEED", time.time_ns() % 1_000_000))
    payloads = [*known(), *drawn(seed, rounds(500, 50_000))]
    print(f"ROOST_TEST_SEED={seed}")
    async with this_host().spawn_procs({"ranks": 2}) as procs:
        liar, other = await procs.spawn("members", Member)
        pids = [await one.pid.call_one() for one in (liar, other)]
        waiting, busy = [(await procs.spawn(name, Neighbour)).slice(ranks=1) for name in ("waiting", "busy")]
        held = waiting.sleep.call_one()
        kinds = collections.Counter()
        for at in range(0, len(payloads), BATCH):
            batch = payloads[at : at + BATCH]
            kinds.update(await liar.send_all.call_one(other, batch))
            kinds.update(await other.ask_for_all.call_one(liar, batch))
            assert await other.take.call_one(at, at=at) == 2
            assert await busy.count.call_one(at) == at
        assert [await one.pid.call_one() for one in (liar, other)] == pids
        assert not held.done()
        held.cancel()
    figures(
        f"{sum(kinds.values())} calls and {len(payloads)} broadcasts with {len(payloads)} bad pickles; {kinds['a value']} load after all, "
        f"the others are errors of {len(kinds) - 1} kinds: 0 deaths, 0 calls that hang"
    )
