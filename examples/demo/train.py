"""The driver: rounds of training and averaging over whichever replicas are alive."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import model
from replica import HandedIn, Replica, Step

from roost import ActorDied, Restart, this_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    import torch
    from settings import Settings

    from chaos import Incident, Killer
    from roost import Event, Failure, Reply, Stream

T = TypeVar("T")

# The template imports these once, and each replica is a fork of it. The first optimizer step imports torch._dynamo.
PRELOAD = ("torch", "torch._dynamo", "torch.optim", "replica")


@dataclass
class History:
    """What a run leaves."""

    settings: Settings
    losses: list[list[float]]
    """By step, the losses that the replicas told."""
    averages: list[dict[str, torch.Tensor]] = field(default_factory=list)
    """The averaged weights of the last rounds."""
    alive: list[tuple[int, int]] = field(default_factory=list)
    """(step, live replicas) at each change."""
    incidents: list[Incident] = field(default_factory=list)
    pauses_s: list[tuple[float, bool]] = field(default_factory=list)
    """By round, how long after its last step the survivors had the average, and whether a kill fell in the round."""
    learnt_steps: int = 0
    seconds: float = 0.0


class Training:
    """One run.

    A replica that dies is left out until it is back: nobody waits for it. Once its process is up again it takes
    everything from a healthy replica, trains on from that replica's step, and is part of the next average.

    Args:
        settings: the run.
        text: the file to train on.
        killer: strikes while the run goes on.
        show: told of the run at each step.
    """

    def __init__(self, settings: Settings, text: Path, killer: Killer, show: Callable[[Training], None]) -> None:
        self.settings = settings
        self.text = text
        self.killer = killer
        self.show = show
        self.history = History(settings, [[] for _ in range(settings.steps)])
        self.incidents = self.history.incidents
        self.progress = 0
        self.loss = float("nan")
        self.until = 0
        self.round_began = 0.0
        self.live: set[int] = set()
        self.incarnations = [0] * settings.replicas
        self.revivals: list[asyncio.Task[None]] = []
        self.pids: dict[int, int] = {}
        # By rank, the step up to which it is known what became of each step: learnt from, or lost.
        self.accounted = [0] * settings.replicas
        self.in_round = asyncio.Event()
        self.random = random.Random(settings.seed)

    async def run(self) -> History:
        """Train to the end."""
        settings = self.settings
        # A restart at once, as often as it takes.
        restart = Restart(limit=100, within_s=600, backoff_s=(0, 0))
        procs = this_host().spawn_procs(
            {"replicas": settings.replicas}, name="trainers", preload=PRELOAD, restart=restart
        )
        async with procs:
            mesh = procs.spawn("replicas", Replica, settings, self.text)
            self.replicas: list[Replica] = list(await mesh.ready())
            self.procs = list(procs)
            states = await procs.states()
            began = time.monotonic()
            async with asyncio.TaskGroup() as self.tasks:
                watch = self.tasks.create_task(self.watch(mesh.events()))
                for rank in range(settings.replicas):
                    self.join(rank, states[rank].pid)
                for _ in range(settings.rounds):
                    await self.train()
                    await self.exchange()
                self.in_round.set()
                await asyncio.gather(*self.revivals)
                watch.cancel()
            self.history.seconds = time.monotonic() - began
            self.check([state.incarnation for state in (await procs.states()).values()])
        return self.history

    async def watch(self, events: AsyncIterator[Event]) -> None:
        """Hear of deaths, also of replicas that nobody waits for: one that has done its round and is killed then."""
        async for event in events:
            if event.kind == "failed":
                self.lose(event.point.rank, event.failure, "event")

    async def train(self) -> None:
        """One round: each live replica for itself. Over when those that lived through it are done."""
        self.until += self.settings.steps_per_round
        self.round_began = time.monotonic()
        self.in_round.set()
        await asyncio.gather(*(self.follow(rank) for rank in sorted(self.live)))
        self.in_round.clear()

    def follow(self, rank: int) -> Coroutine[None, None, None]:
        """Let a replica train, from now on, and hear of its steps until it has done its round, or dies."""
        return self.hear(rank, self.replicas[rank].train.stream(self.until))

    async def hear(self, rank: int, steps: Stream[Step]) -> None:
        """Note what a replica tells while it trains."""
        try:
            async for _, step in steps:
                self.note(rank, step)
        except ActorDied as death:
            self.lose(rank, death.failure, "ActorDied")

    def note(self, rank: int, step: Step) -> None:
        """A replica has done a step."""
        losses = self.history.losses[step.number - 1]
        losses.append(step.loss)
        self.progress = max(self.progress, step.number)
        self.loss = sum(losses) / len(losses)
        incident = self.incident_of(rank)
        if incident is not None and incident.state_taken and not incident.first_step:
            incident.first_step = step.at
        self.show(self)
        self.killer.strike(self, "training")

    async def exchange(self) -> None:
        """Average the weights of the live replicas, and hand the average back to them."""
        done = time.monotonic()
        hand_ins = {rank: self.replicas[rank].hand_in.call_one() for rank in sorted(self.live)}
        self.killer.strike(self, "handing in")
        handed = await self.answers(hand_ins)
        # By the steps: what a newcomer took from its donor counts once.
        steps = [one.end - one.first for one in handed.values()]
        weights = model.average([one.weights for one in handed.values()], steps)
        for rank, one in handed.items():
            self.account(rank, one)
        takes = {rank: self.replicas[rank].take.call_one(self.until, weights) for rank in handed}
        self.killer.strike(self, "taking")
        await self.answers(takes)
        self.history.averages = [*self.history.averages, weights][-self.settings.evaluated_rounds :]
        disturbed = any(max(one.killed, one.state_taken) > self.round_began for one in self.incidents)
        self.history.pauses_s.append((time.monotonic() - done, disturbed))

    async def answers(self, replies: dict[int, Reply[T]]) -> dict[int, T]:
        """The answers of those that lived to give one."""
        got: dict[int, T] = {}

        async def wait(rank: int, reply: Reply[T]) -> None:
            try:
                got[rank] = await reply
            except ActorDied as death:
                self.lose(rank, death.failure, "ActorDied")

        await asyncio.gather(*(wait(rank, reply) for rank, reply in replies.items()))
        # In the order of ranks, so that a sum over them is the same in each run.
        return dict(sorted(got.items()))

    def account(self, rank: int, handed: HandedIn) -> None:
        """These steps of a replica are in the average; the rest of its round is lost."""
        assert handed.first == self.accounted[rank], (
            f"replica {rank} handed in steps twice, or left some out: {handed.first}"
        )
        self.history.learnt_steps += handed.end - handed.first
        self.account_lost(rank, handed.end, self.until)

    def account_lost(self, rank: int, begin: int, end: int) -> None:
        """These steps of a replica are in no average."""
        if end > begin:
            incident = self.incident_of(rank)
            assert incident is not None, f"replica {rank} was never killed and has lost steps {begin} to {end}"
            incident.lost_steps += end - begin
        self.accounted[rank] = end

    def lose(self, rank: int, failure: Failure | None, heard: str) -> None:
        """A replica has died: go on without it, and see to its return."""
        assert failure is not None
        if failure.incarnation < self.incarnations[rank]:
            return  # one death is heard of by each call that was under way, and by an event
        incident = self.incident_of(rank)
        if incident is None or incident.seen:
            raise ActorDied(None, failure)
        incident.seen = time.monotonic()
        incident.heard = f"{heard}: {failure.kind} {failure.signal}"
        self.incarnations[rank] += 1
        self.live.discard(rank)
        self.history.alive.append((self.progress, len(self.live)))
        self.revivals.append(self.tasks.create_task(self.revive(rank, incident)))

    async def revive(self, rank: int, incident: Incident) -> None:
        """Bring a restarted replica to where the others are, and let it train on."""
        newcomer = self.replicas[rank]
        while True:
            await newcomer.ready()
            incident.up = incident.up or time.monotonic()
            # What is taken during an exchange is out of date at its end.
            await self.in_round.wait()
            until = self.until
            incident.donor = self.random.choice(sorted(self.live))
            try:
                step = await newcomer.adopt.call_one(self.replicas[incident.donor])
            except ActorDied:
                continue  # the donor was killed too: ask another
            if self.in_round.is_set() and self.until == until:
                break
        incident.state_taken = time.monotonic()
        self.account_lost(rank, self.accounted[rank], step)
        self.join(rank, None)
        await asyncio.gather(self.follow(rank), self.find_pid(rank))

    def join(self, rank: int, pid: int | None) -> None:
        """From now on a replica is one of those that train."""
        self.live.add(rank)
        if pid is not None:
            self.pids[rank] = pid
        self.history.alive.append((self.progress, len(self.live)))

    async def find_pid(self, rank: int) -> None:
        """Let the killer know a restarted replica."""
        states = await self.procs[rank].states()
        pid = states[0].pid
        if pid is not None and rank in self.live:
            self.pids[rank] = pid

    def incident_of(self, rank: int) -> Incident | None:
        """A replica's last incident."""
        return next((one for one in reversed(self.incidents) if one.rank == rank), None)

    def check(self, incarnations: list[int]) -> None:
        """The run was what it should be: only the killed were restarted, and no step was counted twice or forgotten."""
        killed = [sum(one.rank == rank for one in self.incidents) for rank in range(self.settings.replicas)]
        assert incarnations == killed, f"restarts by replica {incarnations}, kills {killed}"
        lost = sum(one.lost_steps for one in self.incidents)
        given = self.settings.replicas * self.settings.steps
        assert self.history.learnt_steps + lost == given, (
            f"{self.history.learnt_steps} learnt, {lost} lost, {given} in all"
        )
