"""Two procs exchange messages while one of them is killed again and again: nothing is lost, doubled or swapped."""

import asyncio
import contextlib
import os
import random
import signal
import time

import numpy as np
import pytest
from loops import handled, on_a_loop
from traffic import ANSWERED, BROADCAST, MAYBE_EXECUTED, NOT_EXECUTED, Page, Receiver, Sender

from roost import ActorDied, Config, Restart, run, this_host

pytestmark = pytest.mark.usefixtures("nothing_left")

POLICY = Restart(limit=1_000_000, within_s=60, backoff_s=(0.001, 0.001))
LIFE_S = (0.005, 0.08)


async def spawned(folder, count):
    """A sender and a receiver, each in a proc of its own."""
    procs = await this_host().spawn_procs({"ends": 2}, restart=POLICY, supervise=handled)
    sender = procs.slice(ends=0).spawn("sender", Sender, folder, count)
    receiver = procs.slice(ends=1).spawn("receiver", Receiver, folder, count)
    await sender.ready()
    await receiver.ready()
    return procs, sender, receiver


async def kill_again_and_again(procs, end):
    """Kill this one at random moments, for ever; gives the number of kills when it is cancelled."""
    one, kills = procs.slice(ends=end), 0
    try:
        while True:
            await one.ready()
            await asyncio.sleep(random.uniform(*LIFE_S))
            state = (await one.states())[0]
            if state.state == "up":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(state.pid, signal.SIGKILL)
                    kills += 1
                await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        return kills


def test_what_is_sent_to_a_receiver_that_is_killed_is_delivered_once_or_returned(rounds, figures, tmp_path):
    count = rounds(150_000, 1_000_000)
    run(sent_to_one_that_is_killed(count, figures, tmp_path), config=Config(dead_letters_max=count))


async def sent_to_one_that_is_killed(count, figures, tmp_path):
    page = Page(tmp_path, count)
    procs, sender, receiver = await spawned(tmp_path, count)
    async with procs:
        begin = time.monotonic()
        killer = asyncio.ensure_future(kill_again_and_again(procs, 1))
        outcomes, lives, letters = await sender.send.call_one(receiver, count)
        killer.cancel()
        kills = await killer
        seconds = time.monotonic() - begin
        # What was sent before this has arrived.
        await receiver.ready()
        await receiver.pid.call_one()
    taken = np.array(page.lives)
    delivered = taken > 0
    returned = np.isin(outcomes, (NOT_EXECUTED, MAYBE_EXECUTED))
    unheard_of = (outcomes == BROADCAST) & ~delivered
    # One that its actor has begun counts as delivered, and the kill may come before its first line: the next after the last.
    last_of_each_life = [int(np.flatnonzero(taken == life)[-1]) for life in np.unique(taken[delivered])]
    begun = sum(last + 1 < count and bool(unheard_of[last + 1]) for last in last_of_each_life)
    figures(
        f"{count} messages in {seconds:.1f} s, {kills} kills: {int(delivered.sum())} delivered, {int(returned.sum())} calls "
        f"failed ({int((outcomes == NOT_EXECUTED).sum())} surely not executed), {sum(letters)} dead letters"
    )
    assert list(page.wrong) == [0, 0], "doubled, out of order"
    assert (np.diff(taken[delivered].astype(np.int64)) >= 0).all(), "in order over all lives of the receiver"
    assert delivered[outcomes == ANSWERED].all()
    assert not delivered[outcomes == NOT_EXECUTED].any()
    assert letters[0] <= unheard_of.sum() <= sum(letters) + begun, "each broadcast was delivered or is a dead letter"
    # What failed with one life says that everything before it was not for a later one.
    latest = np.maximum.accumulate(taken)
    assert (latest[returned] <= lives[returned]).all()
    assert kills


@on_a_loop
async def test_what_a_sender_that_is_killed_had_sent_arrives_once_and_without_gaps(rounds, figures, tmp_path):
    count = rounds(150_000, 1_000_000)
    page = Page(tmp_path, count)
    procs, sender, receiver = await spawned(tmp_path, count)
    async with procs:
        begin = time.monotonic()
        killer = asyncio.ensure_future(kill_again_and_again(procs, 0))
        starts = [0]
        while True:
            try:
                await sender.send_on.call_one(receiver, count)
                break
            except ActorDied:
                starts.append(int(page.next[0]))
                await sender.ready()
        killer.cancel()
        kills = await killer
        seconds = time.monotonic() - begin
        await receiver.pid.call_one()
    taken = np.array(page.lives)
    delivered = taken > 0
    figures(f"{count} messages in {seconds:.1f} s, {kills} kills: {int(delivered.sum())} delivered")
    assert list(page.wrong) == [0, 0], "doubled, out of order"
    for begin_at, end_at in zip(starts, [*starts[1:], count], strict=True):
        one = delivered[begin_at:end_at]
        assert one[: one.sum()].all(), "of what one life sent the first arrives, and nothing behind a gap"
        assert len(set(taken[begin_at:end_at][one])) <= 1
    assert delivered[starts[-1] :].all()
    assert kills
