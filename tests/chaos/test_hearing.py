"""S1, S2. Who hears of a failure, of which, how often, and what they are told."""

import asyncio
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from itertools import pairwise

import pytest
from loops import handled, on_a_loop, process_state, until
from mortal import Mortal

from roost import Actor, ActorDied, Config, MeshError, Restart, context, endpoint, run, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")

# How a rank's actor or process can fail, and who hears of it: its owner, the caller, or both.
FAULTS = {
    "call raises": "caller",
    "broadcast raises": "owner",
    "constructor raises": "owner",
    "exits": "owner",
    "is killed": "owner",
    "aborts": "owner",
}


async def inject(procs, fault, number, supervise=None):
    """One fault in an actor of its own, where need be in a process of its own; gives a call that fails of it, if any."""
    if fault in ("exits", "is killed"):
        procs = this_host().spawn_procs(name=f"procs{number}", supervise=supervise)
    mortal = procs.options(supervise=supervise).spawn(
        f"mortal{number}", Mortal, "raise" if fault == "constructor raises" else ""
    )
    reply = None
    if fault == "call raises":
        reply = mortal.boom.call(f"fault {number}")
    elif fault == "broadcast raises":
        mortal.boom.broadcast(f"fault {number}")
    elif fault in ("exits", "is killed"):
        mortal.broadcast("os_exit", 3) if fault == "exits" else mortal.kill.broadcast()
        await procs.wait()
    elif fault == "aborts":
        assert await mortal.abort_self.call_one(f"fault {number}") == "aborting"
    if fault != "call raises":
        await mortal.wait()
    return mortal, reply


def expected_name(fault, number):
    return f"procs{number}" if fault in ("exits", "is killed") else f"mortal{number}"


@on_a_loop
async def test_s1_each_fault_has_exactly_one_hearer(rounds, figures):
    heard = Counter()

    async def supervise(failure):
        heard[failure.name] += 1
        return True

    wanted = Counter()
    async with this_host().spawn_procs() as procs:
        for number in range(rounds(12, 1000)):
            fault = random.choice(list(FAULTS)) if number >= len(FAULTS) else list(FAULTS)[number]
            _, reply = await inject(procs, fault, number, supervise)
            if FAULTS[fault] == "caller":
                with pytest.raises(MeshError) as caught:
                    await reply
                (error,) = caught.value.exceptions
                assert isinstance(error, ValueError)
                assert "in boom" in str(error.__cause__)
            else:
                wanted[expected_name(fault, number)] += 1
        await until(lambda: heard == wanted, within_s=30)
    assert heard == wanted
    figures(f"{number + 1} faults, {sum(wanted.values())} of them without a caller, each heard once")


def test_s1_what_nobody_hears_is_raised_at_the_root(rounds):
    wanted = []

    async def main():
        procs = await this_host().spawn_procs()
        for number in range(rounds(6, 60)):
            fault = list(FAULTS)[number % len(FAULTS)]
            await inject(procs, fault, number)
            wanted.append(f"fault {number}" if fault == "call raises" else expected_name(fault, number))

    with pytest.raises(MeshError) as caught:
        run(main())
    told = [error.failure.name for error in caught.value.exceptions if isinstance(error, ActorDied)]
    told += [str(error.exceptions[0]) for error in caught.value.exceptions if isinstance(error, MeshError)]
    assert sorted(told) == sorted(wanted)


class Crashing(Actor):
    """Notes each life, and ends in its constructor."""

    def __init__(self, path, how):
        with open(path, "a") as file:
            file.write(f"{time.monotonic()} {os.getpid()}\n")
        if how == "raises":
            raise LookupError(f"no such thing, process {os.getpid()}")
        print("my last words", file=sys.stderr)
        sys.stderr.flush()
        os._exit(9)


@pytest.mark.parametrize("how", ["raises", "exits"])
@on_a_loop
async def test_s2_a_crash_loop_ends_at_its_limit_with_all_reasons(how, rounds, figures, tmp_path):
    """Once the process, once the actor in it, is started again after growing pauses, and then never more."""
    # The default policy in the long form: 3 in 60 s, pauses from 0.1 s on.
    policy = rounds(Restart(limit=3, within_s=60, backoff_s=(0.04, 5.0)), Restart())
    heard, path = [], tmp_path / "lives"

    async def supervise(failure):
        heard.append(failure)
        return True

    own, none = {"restart": policy, "supervise": supervise}, {"supervise": supervise}
    async with this_host().spawn_procs(name="workers", **(own if how == "exits" else none)) as procs:
        crashing = procs.options(**(own if how == "raises" else none)).spawn("crashing", Crashing, str(path), how)
        with pytest.raises(ActorDied):
            await crashing
        await until(lambda: heard)
        lines = path.read_text().splitlines()
        (failure,) = heard
        assert failure.name == ("workers" if how == "exits" else "crashing")
        assert failure.incarnation == policy.limit
        assert [past.incarnation for past in failure.reasons] == list(range(policy.limit))
        for past in (failure, *failure.reasons):
            if how == "exits":
                assert (past.kind, past.exit_code) == ("exit", 9)
                assert "my last words" in past.stderr
            else:
                assert past.kind == "error"
                assert "no such thing" in past.reason
        assert len(lines) == 1 + policy.limit
        times, pids = zip(*(map(float, line.split()) for line in lines), strict=True)
        pauses = [later - earlier for earlier, later in pairwise(times)]
        first, _ = policy.backoff_s
        for number, pause in enumerate(pauses):
            assert pause >= first * 2**number * 0.8, "twice the last, give or take 20 %"
        assert len(set(pids)) == (1 + policy.limit if how == "exits" else 1)
        # Longer than any pause that could still have followed.
        await asyncio.sleep(2 * first * 2**policy.limit)
        assert path.read_text().splitlines() == lines, "nothing is started afterwards"
        assert len(heard) == 1
    figures(f"{policy.limit} restarts after {', '.join(f'{1000 * pause:.0f} ms' for pause in pauses)}")


def test_a_stuck_sibling_hides_no_death_and_does_not_outlive_its_mesh(rounds, promised):
    """Two ranks sleep in C for five minutes; one is killed."""
    seconds, ends = [], []
    grace_s = rounds(0.3, 5.0)

    async def once():
        async with this_host().spawn_procs({"ranks": 2}, name="workers") as procs:
            mortals = procs.spawn("mortals", Mortal)
            pids = await mortals.pid.call()
            both = mortals.block_loop.call(300)
            while [len(state.running) for state in await mortals.states()] != [1, 1]:
                pass
            begin = time.perf_counter()
            os.kill(pids[1], signal.SIGKILL)
            with pytest.raises(MeshError) as caught:
                await both
            seconds.append(time.perf_counter() - begin)
            assert [dict(point) for point, _ in caught.value.items()] == [{"ranks": 1}]
            assert "workers[ranks=1] was killed by SIGKILL" in str(caught.value)
            assert process_state(pids[0]) == "S"
            begin = time.perf_counter()
        ends.append(time.perf_counter() - begin)
        assert process_state(pids[0]) in "XZ"

    for _ in range(rounds(1, 10)):
        run(once(), config=Config(grace_s=grace_s, sigterm_s=grace_s))
    promised("from kill to the caller's error", seconds, 99, 0.1)
    promised("the other ended when the mesh was left", ends, 100, grace_s + 1.0)


class Member(Actor):
    """Waits with the others in a barrier over TCP, of which rank 1 is the server."""

    def __init__(self):
        self.sockets = []

    @endpoint
    async def listen(self):
        self.server = socket.create_server(("127.0.0.1", 0))
        return self.server.getsockname()[1]

    @endpoint
    async def join(self, port):
        if port is not None:
            self.sockets.append(socket.create_connection(("127.0.0.1", port)))

    @endpoint
    async def accept(self, count):
        self.sockets += [self.server.accept()[0] for _ in range(count)]

    @endpoint
    async def barrier(self, leader, ahead_s):
        """The leader breaks its connections so long before it ends."""
        if context().point.rank == leader:
            for one in self.sockets:
                one.recv(1)
            print("cannot go on: the disk is on fire", file=sys.stderr)
            sys.stderr.flush()
            for one in self.sockets:
                one.close()
            time.sleep(ahead_s)
            os._exit(41)
        self.sockets[0].send(b".")
        if not self.sockets[0].recv(1):
            raise ConnectionResetError("the barrier broke")


# By how much the others' errors come before the end of the process.
AHEAD_S = (0.0, 0.005)


def test_the_first_cause_is_reported_and_what_followed_below_it(rounds, figures):
    """Rank 1 of 4 ends while the others wait for it: their errors come first, and are not the cause."""
    # In the short form the machine is busy, and a death may be told late.
    config = Config(echo_hold_s=rounds(2.0, Config().echo_hold_s))
    count = rounds(2, 200)

    async def main():
        told = Counter()
        for number in range(count):
            async with this_host().spawn_procs({"ranks": 4}, name="workers", supervise=handled) as procs:
                members = procs.spawn("members", Member)
                port = await members.slice(ranks=1).listen.call_one()
                others = [members.slice(ranks=rank) for rank in (0, 2, 3)]
                await asyncio.gather(
                    members.slice(ranks=1).accept.call_one(3), *(one.join.call_one(port) for one in others)
                )
                reply = members.barrier.call(1, AHEAD_S[number % len(AHEAD_S)])
                with pytest.raises(MeshError) as caught:
                    await reply
                first = caught.value.exceptions[0]
                await reply.outcomes()
                told[type(first).__name__] += 1
                if isinstance(first, ActorDied):
                    check(caught.value, first.failure)
        return told

    def check(error, failure):
        assert (failure.name, failure.exit_code) == ("workers[ranks=1]", 41)
        assert "the disk is on fire" in failure.stderr
        followed = [one for one in failure.consequences if one.kind == "error"]
        assert sorted(one.name for one in followed) == [f"members[ranks={rank}]" for rank in (0, 2, 3)]
        assert all(one.cause is failure and "ConnectionResetError" in one.reason for one in followed)
        assert [type(one) for one in error.later] == [ConnectionResetError] * 3
        lines = str(error.exceptions[0]).splitlines()
        assert lines[0].startswith("workers[ranks=1] exited with code 41")
        below = "\n".join(lines[1:])
        assert "the disk is on fire" in below
        assert below.count("the barrier broke") == 3

    told = run(main(), config=config)
    figures(f"told first: {dict(told)}")
    assert told == {"ActorDied": count}
