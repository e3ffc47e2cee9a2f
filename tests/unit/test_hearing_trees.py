"""Every failure has exactly one hearer: trees of owners, hooks that handle, decline, raise or wait, callers that look or do not,
failures at any moment; all of it against the rule as it is written down in `heirs`."""

import asyncio
import pickle
import random
from collections import Counter

import pytest

from roost.config import Config
from roost.errors import ActorDied
from roost.failure import Failure
from roost.hearing import Hearing
from roost.owning import OwnedMesh
from roost.reply import Reply, fail_reply
from roost.shape import Shape

SEEDS = 300


class Fakes:
    """What a mesh and the hearing need of a runtime: all of it, and nothing that hears."""

    def __init__(self, loop):
        self.loop, self.config = loop, Config()
        self.closed, self.is_driver, self.root_supervise = False, True, None
        self.owned, self.job_subscribers, self.tasks = {}, [], set()
        self.hearing = Hearing(self)
        self.owner, self.node = None, self

    def handling_runner(self):
        return self.owner

    def keep(self, work, scope=None):
        task = self.loop.create_task(work, context=scope)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    def on_loop(self, work):
        work()

    def job_event(self, _happened):
        pass

    def set_stopped(self, _mesh):
        pass

    def retire(self, _record):
        pass


class Owner:
    """An actor: a rank of a mesh, with meshes of its own. It fails once, and its meshes end with it."""

    def __init__(self, world, mesh, rank, does):
        self.world, self.mesh, self.rank, self.meshes = world, mesh, rank, []
        self.does = does
        self.instance = self if does is not None else None

    async def __supervise__(self, failure):
        return await self.world.hook(("actor", self.mesh.id, self.rank), self.does, failure)

    def fail(self, error, _during):
        if self.mesh.state(self.rank) != "up":
            return False
        self.world.passed_on[error.failure.reason] += 1
        # It comes to its owner from another process.
        self.world.fail(self.mesh, self.rank, cause=pickle.loads(pickle.dumps(error.failure)))
        return True


class Mesh(OwnedMesh):
    def stop_ranks(self, ranks, reason):
        for rank in ranks:
            self.set_state(rank, "stopped", reason=reason)

    def restart_ranks(self, ranks, reason):
        raise AssertionError("no run asks for a restart")


class World:
    def __init__(self, seed, loop):
        self.random = random.Random(seed)
        self.fakes = Fakes(loop)
        self.meshes, self.owners, self.failures, self.replies = [], {}, {}, []
        self.asked, self.handled, self.passed_on = Counter(), Counter(), Counter()
        for number in range(self.random.randint(1, 7)):
            self.add_mesh(number)
        self.root = self.choose_hook()
        if self.root is not None:
            self.fakes.root_supervise = lambda failure: self.hook(("root",), self.root, failure)

    def choose_hook(self):
        does = self.random.choice([None, None, True, False, "raises"])
        return None if does is None else (does, self.random.randint(0, 3))

    async def hook(self, whose, does, failure):
        self.asked[whose, failure.reason] += 1
        for _ in range(does[1]):
            await asyncio.sleep(0)
        if does[0] == "raises":
            raise RuntimeError("the hook itself")
        self.handled[failure.reason] += bool(does[0])
        return does[0]

    def add_mesh(self, number):
        owner = None
        if self.meshes and self.random.random() < 0.7:
            mesh = self.random.choice(self.meshes)
            key = mesh.id, self.random.randrange(len(mesh.whole))
            owner = self.owners.setdefault(key, Owner(self, mesh, key[1], self.choose_hook()))
        self.fakes.owner = owner
        does = self.choose_hook()
        supervise = does and (lambda failure: self.hook(("mesh", number), does, failure))
        mesh = Mesh(self.fakes, number, f"mesh{number}", Shape({"r": self.random.randint(1, 3)}), supervise)
        for rank in range(len(mesh.whole)):
            mesh.set_state(rank, "up")
        mesh.hook_does = does
        self.meshes.append(mesh)
        self.fakes.owned[number] = mesh
        if owner is not None:
            owner.meshes.append(mesh)

    def fail(self, mesh, rank, cause=None, looks=False):
        """A rank fails; a caller that waits for it gets that, and looks at it or does not."""
        if mesh.state(rank) != "up":
            return
        reason = f"failure {len(self.failures)}"
        failure = Failure(
            kind="error", origin="user", mesh=mesh.name, name=mesh.rank_name(rank), point=mesh.whole.point(rank), reason=reason,
            cause=cause,
        )  # fmt: skip
        self.failures[reason] = mesh, failure, looks
        if looks:
            reply = Reply(loop=self.fakes.loop)
            self.fakes.hearing.carried(failure, reply)
            fail_reply(reply, ActorDied(None, failure))
            assert isinstance(reply.exception(), ActorDied)
            self.replies.append(reply)
        mesh.climbs(rank, failure)
        mesh.set_state(rank, "failed", failure=failure)
        owner = self.owners.get((mesh.id, rank))
        for owned in reversed(owner.meshes if owner is not None else []):
            self.end_all(owned)

    def end_all(self, mesh):
        """A mesh is stopped, children first."""
        for rank in range(len(mesh.whole)):
            owner = self.owners.get((mesh.id, rank))
            for owned in reversed(owner.meshes if owner is not None else []):
                self.end_all(owned)
        mesh.stop(mesh.whole, "its owner ended")


def heirs(world, mesh, looks):
    """The rule: the hook of the mesh, else of its owner, is asked; what it does not handle a caller has heard of, or else ends
    the owner, and at the root is for the hook of the program, and then for its end. Gives (who is asked, who hears)."""
    owner = mesh.owner_runner
    hook = mesh.hook_does or (owner and owner.does)
    asked = [("mesh", mesh.id) if mesh.hook_does else ("actor", owner.mesh.id, owner.rank)] if hook else []
    if hook and hook[0] is True:
        return asked, "hook"
    if looks:
        return asked, "caller"
    if owner is not None:
        return asked, "owner"
    if world.root is not None:
        asked.append(("root",))
        if world.root[0] is True:
            return asked, "hook"
    return asked, "end"


async def run(seed, caplog):
    world = World(seed, asyncio.get_running_loop())
    for _ in range(world.random.randint(1, 12)):
        mesh = world.random.choice(world.meshes)
        world.fail(mesh, world.random.randrange(len(mesh.whole)), looks=world.random.random() < 0.3)
        for _ in range(world.random.randint(0, 4)):
            await asyncio.sleep(0)
    while world.fakes.tasks:
        await asyncio.sleep(0)
    raised = Counter(error.failure.reason for error in world.fakes.hearing.take_unheard())
    assert not world.fakes.hearing.take_unheard(), "what was raised once is not raised again"
    logged = [record.args[0].reason for record in caplog.records if "nobody will handle" in record.msg]
    for reason, (mesh, failure, looks) in world.failures.items():
        asked, hears = heirs(world, mesh, looks)
        assert {whose: count for (whose, about), count in world.asked.items() if about == reason} == dict.fromkeys(
            asked, 1
        )
        heard = {
            "hook": world.handled[reason],
            "owner": world.passed_on[reason] + logged.count(reason),
            "end": raised[reason],
        }
        expected = dict.fromkeys(heard, 0)
        if hears != "caller":
            expected[hears] = 1
        assert heard == expected, f"{failure} in {mesh.name}"


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_every_failure_has_exactly_one_hearer(first, caplog):
    for seed in range(first, first + 50):
        caplog.clear()
        try:
            asyncio.run(run(seed, caplog))
        except BaseException:
            print(f"seed {seed}")
            raise
