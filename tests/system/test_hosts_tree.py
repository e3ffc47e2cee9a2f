"""What a driver has for many procs of many hosts goes along a tree of these, and their answers come gathered."""

import asyncio
import functools
import os
import signal
from contextlib import contextmanager, suppress

import pytest
from loops import handled, until

from roost import Actor, ActorDied, Config, MeshError, ProcessHosts, endpoint, process, run

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.timeout(180)]

HOSTS, EACH = 16, 2


def with_a_tree(test):
    """Run an async test as a program that has enough procs for a tree."""
    return functools.wraps(test)(lambda **given: run(test(**given), config=Config(tree_procs_min=HOSTS * EACH)))


class Keeper(Actor):
    """Keeps what it was told, in order."""

    def __init__(self):
        self.told = []

    @endpoint
    async def tell(self, number):
        self.told.append(number)

    @endpoint
    async def ask(self, number):
        self.told.append(number)
        return number

    @endpoint
    async def all(self):
        return self.told

    @endpoint
    async def answer_when_signalled(self, folder):
        """After SIGUSR1 this is the last that its process does; until then a file of its number is there."""
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        loop.add_signal_handler(
            signal.SIGUSR1, lambda: (told.set(), loop.call_later(0.5, os.kill, os.getpid(), signal.SIGKILL))
        )
        loop.add_signal_handler(signal.SIGUSR2, told.set)
        (folder / str(os.getpid())).touch()
        await told.wait()
        return "answered"


@contextmanager
def letters():
    """Counts what this driver gives to the tree, and what comes back along it."""
    runtime = process.current()
    control, members = runtime.control, runtime.members
    counted = {"sent": 0, "came": 0, "at once": 0}

    class Counting:
        def __getattr__(self, name):
            return getattr(control, name)

        def post(self, given):
            counted["sent"] += len(given)
            control.post(given)

    def came(given):
        counted["came"] += len(given)
        counted["at once"] = max(counted["at once"], len(given))
        runtime.node.take_letters(given)

    runtime.control, members._on_letters = Counting(), came
    try:
        yield counted
    finally:
        runtime.control = control
        del members._on_letters


@with_a_tree
async def test_calls_casts_spawns_and_stops_to_many_hosts_go_along_a_tree():
    async with ProcessHosts(HOSTS, timeout=60) as hosts, hosts.spawn_procs({"gpus": EACH}) as procs:
        first = await procs.spawn("first", Keeper)
        count = len(first)
        # Their answers acknowledge all that was sent before; then what comes next goes along the tree.
        assert list(await first.ask.call(0)) == [0] * count
        with letters() as counted:
            assert list(await first.ask.call(1)) == [1] * count
            assert counted["sent"] >= count, counted
            assert counted["came"] >= count, counted
            before = dict(counted)
            keepers = await procs.spawn("keepers", Keeper)
            assert counted["sent"] >= before["sent"] + count, "the constructors too"
            # Whatever way each takes, all arrive in order and once.
            one = keepers.slice(hosts=HOSTS - 1, gpus=0)
            for number in range(60):
                keepers.tell.broadcast(number)
                if number % 5 == 0:
                    assert await one.ask.call_one(number + 1000) == number + 1000
                if number % 7 == 0:
                    await first.ask.call(number)
            everywhere = list(await keepers.all.call())
            expected = list(range(60))
            assert everywhere[:-EACH] == [expected] * (count - EACH)
            assert [number for number in everywhere[-EACH] if number < 1000] == expected
            assert [number for number in everywhere[-EACH] if number >= 1000] == list(range(1000, 1060, 5))
            # What is large goes over the connections, behind what is small.
            keepers.tell.broadcast(b"large" * 20_000)
            keepers.tell.broadcast("last")
            for told in await keepers.all.call():
                assert told[-1] == "last"
                assert told[-2] == b"large" * 20_000
            before = dict(counted)
            await keepers.stop()
            assert counted["sent"] >= before["sent"] + count, "and their end"


def in_the_tree(agents, procs):
    """Agents by their place in the tree: those that the driver gives its carriers to, and those that get them from these.

    A carrier goes to the hosts in the order of their ids: of each run of two the first passes it on to the second.
    """
    order = [agents.names.index(name) for _, name in sorted(procs._hosts)]
    return order[0::2], order[1::2]


@with_a_tree
async def test_an_answer_that_is_behind_the_news_of_its_procs_death_counts(tmp_path):
    """It is on its way through another agent, which stands still; the news go straight to the driver."""
    agents = ProcessHosts(HOSTS, timeout=60)
    async with agents as hosts, hosts.spawn_procs({"gpus": EACH}, supervise=handled) as procs:
        keepers = await procs.spawn("keepers", Keeper)
        await keepers.ask.call(0)
        # Nothing else is said to them any more: the answers go by the way that this has come.
        answers = keepers.answer_when_signalled.call(tmp_path)
        await until(lambda: len(list(tmp_path.iterdir())) == HOSTS * EACH, 60)
        inner, outer = in_the_tree(agents, procs)
        pids = {host: [state.pid for state in await procs.slice(hosts=host).states()] for host in range(HOSTS)}
        for host in inner:
            agents.processes[host].send_signal(signal.SIGSTOP)
        try:
            for host in outer:
                for pid in pids[host]:
                    os.kill(pid, signal.SIGUSR1)
            for host in outer:
                assert {state.state for state in await procs.slice(hosts=host).wait()} == {"failed"}
        finally:
            for host in inner:
                agents.processes[host].send_signal(signal.SIGCONT)
        for host in inner:
            for pid in pids[host]:
                os.kill(pid, signal.SIGUSR2)
        assert list(await answers.outcomes()) == ["answered"] * HOSTS * EACH


@with_a_tree
async def test_who_passes_on_and_is_killed_in_the_middle_of_casts_costs_the_others_nothing():
    agents = ProcessHosts(HOSTS, timeout=60)
    async with agents as hosts, hosts.spawn_procs({"gpus": EACH}, supervise=handled) as procs:
        keepers, others = await procs.spawn("keepers", Keeper), await procs.spawn("others", Keeper)
        await keepers.ask.call(-1)
        inner = set(in_the_tree(agents, procs)[0][:4])
        with letters() as counted:
            for number in range(40):
                keepers.tell.broadcast(number)
                if number == 20:
                    for agent in inner:
                        agents.processes[agent].send_signal(signal.SIGKILL)
                # What is answered acknowledges the cast, so that the next goes along the tree where there is one.
                with suppress(MeshError):
                    await others.ask.call(number)
            assert counted["sent"] > HOSTS * EACH
        living = [host for host in range(HOSTS) if host not in inner]
        for host in living:
            told = list(await keepers.slice(hosts=host).all.call())
            assert told == [[-1, *range(40)]] * EACH, host
        with pytest.raises(MeshError) as caught:
            await keepers.all.call()
        assert all(isinstance(error, ActorDied) for error in caught.value.exceptions)
