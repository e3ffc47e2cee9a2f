"""The owner's table of an actor mesh."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from roost.failure import Failure
from roost.news import life as life_of
from roost.news import proc_incarnation
from roost.owning import ENDED, NOTHING, OwnedMesh, noted
from roost.reply import Reply
from roost.stops import death_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from roost.constructing import Plan
    from roost.errors import ActorDied
    from roost.failure import Event, Probe, Restart, State
    from roost.looking import Doing
    from roost.owned_procs import OwnedProcs
    from roost.probing import Prober
    from roost.runtime import Runtime
    from roost.shape import Shape
    from roost.value_mesh import ValueMesh

__all__ = ["OwnedActors"]

# Consequences that a failure lists; a proc may hold thousands of actors.
_CONSEQUENCES_MAX = 64


class OwnedActors(OwnedMesh):
    """A mesh of actors that this process owns."""

    __slots__ = ("_probe", "_prober", "doing", "on", "plan", "stopping")

    def __init__(self, runtime: Runtime, mesh: int, name: str, plan: Plan, supervise: Any, probe: Probe | None) -> None:
        super().__init__(runtime, mesh, name, plan.whole, supervise)
        self.plan = plan
        self._probe = probe
        self._prober: Prober | None = None
        # The proc mesh, when this process owns that too.
        self.on: OwnedProcs | None = None
        # What was last seen of those that do something, by rank.
        self.doing: Mapping[int, Doing] = NOTHING
        # Why ranks were asked to stop, those that had failed too; None while none was.
        self.stopping: dict[int, str] | None = None

    @property
    def procs(self) -> tuple[int, ...]:
        """The procs that it lives on."""
        return self.plan.procs

    @property
    def per(self) -> int:
        """How many actors live on each of them."""
        return len(self.plan.per_proc)

    @property
    def class_name(self) -> str:
        """The class of the actors."""
        return self.plan.class_name

    @property
    def policy(self) -> Restart | None:
        """When an actor that failed is constructed again."""
        return self.plan.policy

    @property
    def cleanup_extra_s(self) -> float:
        """How much longer than usual a stop may take, for `__cleanup__`."""
        return max(0.0, (self.plan.cleanup_timeout_s or 0.0) - self.runtime.config.cleanup_timeout_s)

    @property
    def is_root(self) -> bool:
        """Whether it does not end with a proc mesh of this process."""
        return self.on is None

    def life(self, rank: int) -> int:
        """A number that grows with each life of the rank, its process's and its own."""
        known = super().life(rank)
        if self.on is not None:
            known = max(known, life_of(self.on.incarnation(self.on.procs.index(self.procs[rank // self.per])), 0))
        return known

    def ranks_of(self, proc: int) -> Iterable[int]:
        """The ranks that live on a proc."""
        for place, one in enumerate(self.procs):
            if one == proc:
                yield from range(place * self.per, (place + 1) * self.per)

    def pid(self, rank: int) -> int | None:
        """The process in which an actor lives, while it does."""
        if self._states[rank] in ENDED:
            return None
        proc = self.procs[rank // self.per]
        if self.on is not None:
            return self.on.pid(self.on.procs.index(proc))
        return self.runtime.pid if proc == self.runtime.proc else super().pid(rank)

    def has_listeners(self) -> bool:
        """Whether anybody listens to events of this mesh, or of the procs."""
        return super().has_listeners() or (self.on is not None and bool(self.on.subscribers))

    def give(self, happened: Event) -> None:
        """Pass an event on, also to those who listen to the procs."""
        if self.on is not None:
            for subscriber in list(self.on.subscribers):
                subscriber.push(happened)
        super().give(happened)

    # What procs do -----------------------------------------------------------------------------------------------------
    def proc_ended(self, proc: int, state: str, failure: Failure) -> list[Failure]:
        """The proc of some ranks has ended, as "restarting", "stopped" or "failed"; gives what followed for them."""
        followed = []
        for rank in self.ranks_of(proc):
            before = self._states[rank]
            if (
                before == state
                or (before in ENDED and state != "restarting")
                or (before in ENDED and self._stays_down(rank))
            ):
                continue
            if state == "restarting" and self.stopping is not None and rank in self.stopping:
                # The request to stop died with the process. One that comes back all the same is asked again.
                self.set_state(rank, "stopped", reason=self.stopping[rank])
                self.tell("stopped", rank, self.stopping[rank])
                continue
            self.set_state(rank, state, reason=failure.reason, failure=failure)
            if state == "stopped" or failure.kind == "stopped":
                self.tell(state, rank, failure.reason)
                continue
            one = self._followed(rank, failure)
            followed.append(one)
            if len(failure.consequences) < _CONSEQUENCES_MAX:
                failure._add_consequence(one)
            self.tell("failed", rank, failure.reason, one)
            if state == "restarting":
                self.tell("restarting", rank, failure.reason)
        self.check_over()
        return followed

    def proc_restarts(self, proc: int, reason: str) -> None:
        """The proc of some ranks, which had ended, is started again: they are constructed with it, if nobody stopped them."""
        for rank in self.ranks_of(proc):
            if self._states[rank] in ENDED and not self._stays_down(rank):
                self.set_state(rank, "restarting", reason=reason)
                self.tell("restarting", rank, reason)

    def _stays_down(self, rank: int) -> bool:
        """Whether a rank that was stopped on purpose is not constructed with its proc's next incarnation."""
        return (
            self.mesh_stopped is not None
            or self._states[rank] == "stopped"
            or (self.stopping is not None and rank in self.stopping)
        )

    def _followed(self, rank: int, cause: Failure) -> Failure:
        return Failure(
            kind=cause.kind, origin=cause.origin, mesh=self.name, name=self.rank_name(rank), point=self.whole.point(rank),
            actor_class=self.class_name, host=cause.host, incarnation=self.incarnation(rank), reason="its proc ended",
            exit_code=cause.exit_code, signal=cause.signal, cause=cause, times=cause.times,
        )  # fmt: skip

    def begin_probing(self) -> None:
        """Ask the actors whether they are healthy, from now on, where that is wanted."""
        if self._probe is not None:
            from roost.probing import Prober

            self._prober = Prober(self, self._probe)

    # What the actors' processes say ------------------------------------------------------------------------------------
    def hear_news(
        self, pid: int, state: str, rank: int, reason: str, life: int, incarnation: int, packed: bytes | None
    ) -> None:
        """A process says how a rank in it is."""
        if state == "waiting":
            self.tell("waiting", rank, reason)
            return
        if state == "probed":
            if self._prober is not None:
                self._prober.answered(rank, incarnation, reason)
            return
        failure = None
        if packed is not None:
            failure, original = pickle.loads(packed)
            failure = self.runtime.hearing.met(self.id, rank, failure, original).failure
        if state == "up" and self.on is not None:
            self.on.shown_up(self.procs[rank // self.per], proc_incarnation(life), pid)
        elif state == "up":
            self.pids = noted(self.pids, rank, pid)
        if not self.is_old(rank, life) or state != "up":
            self._changed(rank, state, reason, incarnation, failure)
        if state in ENDED:
            self.check_over()

    def _changed(self, rank: int, state: str, reason: str, incarnation: int, failure: Failure | None) -> None:
        before = self._states[rank]
        if state == "up" and before != "starting" and self._stays_down(rank):
            # It came back with its proc although it had been stopped.
            self.stop_ranks([rank], self.reasons.get(rank, "stopped"))
            return
        if before == state and state in ENDED:
            return
        if state == "failed" and failure is not None:
            # Who waits for the end must find that somebody is told of it.
            self.climbs(rank, failure)
        self.set_state(rank, state, reason=reason, failure=failure, incarnation=incarnation)
        if state == "up":
            self.tell("recovered" if incarnation else "started", rank)
        elif state == "stopped":
            self.tell("stopped", rank, reason)
        else:
            if failure is not None:
                self.tell("failed", rank, reason, failure)
            if state == "restarting":
                self.tell("restarting", rank, reason)
                self._restart_others(rank)

    def _restart_others(self, rank: int) -> None:
        """The policy's scope: what starts again with a rank that failed."""
        scope = "one" if self.policy is None else self.policy.scope
        first = 0 if scope == "all" else rank + 1
        if scope != "one":
            others = [
                other
                for other in range(first, len(self._states))
                # Not those that are being stopped: the restart would overtake the stop.
                if other != rank and self._states[other] == "up" and not self._stays_down(other)
            ]
            for other in others:
                self.set_state(other, "restarting")
            self.restart_ranks(others, f"starts again together with {self.rank_name(rank)}")

    # Looking -----------------------------------------------------------------------------------------------------------
    def states(self, shape: Shape) -> Reply[ValueMesh[State]]:
        """How each rank is, and what it does."""
        reply: Reply[ValueMesh[State]] = Reply(loop=self.runtime.loop)

        def seen() -> None:
            if not reply.done():
                reply.set_result(self.snapshot(shape))

        self.runtime.on_loop(lambda: self.runtime.looking.look(self, shape.ranks(), seen))
        return reply

    def _doing_of(self, rank: int) -> Doing:
        return self.doing.get(rank, super()._doing_of(rank))

    # What its users ask ------------------------------------------------------------------------------------------------
    def keep_down(self, ranks: Iterable[int], reason: str) -> None:
        """The next incarnation of their procs has them no more."""
        self.stopping = {**(self.stopping or {}), **dict.fromkeys(ranks, reason)}
        if self.mesh_stopped is not None and not self.runtime.closed:
            others = [proc for proc in dict.fromkeys(self.procs) if proc != self.runtime.proc]
            if others:
                self.runtime.control.forget_actor(others, self.id)

        for rank in ranks:
            if self._states[rank] == "restarting" and not self._has_proc(rank):
                # There is nobody to ask. One that comes all the same is asked then.
                self.set_state(rank, "stopped", reason=reason)
                self.tell("stopped", rank, reason)

    def _has_proc(self, rank: int) -> bool:
        """Whether the proc that a rank lives on may be there, as far as is known here."""
        if self.on is None:
            return True
        place = rank // self.per
        procs, proc = self.on.procs, self.procs[place]
        # Mostly they live on all of the procs, in their order.
        at = place if place < len(procs) and procs[place] == proc else procs.index(proc)
        return self.on.state(at) == "up"

    def stop_ranks(self, ranks: list[int], reason: str) -> None:
        """Have these actors stopped."""
        self.ask_procs(".stop", ranks, reason)
        runtime = self.runtime
        wait_s = runtime.grace_left_s() + self.cleanup_extra_s + runtime.config.sigterm_s
        runtime.loop.call_later(wait_s, self._overdue, ranks, reason)

    def no_restart(self, ranks: Iterable[int]) -> ActorDied | None:
        """Actors are constructed in procs: of one that has ended for good nobody would ever hear again."""
        for rank in ranks:
            proc = self.procs[rank // self.per]
            failure = self.runtime.members.gone.get(proc)
            if failure is not None and (self.on is None or self.on.state(self.on.procs.index(proc)) in ENDED):
                why = f"{self.rank_name(rank)} cannot be restarted without its proc: restart that first; {failure}"
                return type(death_error(failure))(why, failure)
        return None

    def restart_ranks(self, ranks: list[int], reason: str) -> None:
        """Have these actors constructed anew, in the same processes."""
        if self.stopping is not None:
            for rank in ranks:
                self.stopping.pop(rank, None)
        self.ask_procs(".restart", ranks, reason)

    def ask_procs(self, what: str, ranks: list[int], reason: str = "") -> None:
        """Send one of Roost's own messages to where these ranks live."""
        runtime = self.runtime
        if not runtime.closed:
            runtime.node.hold()
        for place, proc in enumerate(self.procs):
            slots = [rank - place * self.per for rank in ranks if rank // self.per == place]
            if not slots:
                continue
            if proc == runtime.proc:
                act = runtime.system_handler(what)
                runtime.loop.call_soon(act, self.id, proc, [(slot, slot) for slot in slots], reason.encode())
            else:
                runs = [(slot, 1, 1, slot, 1) for slot in slots]
                runtime.send_system(proc, self.id, what, reason.encode(), runs)

    def _overdue(self, ranks: list[int], reason: str) -> None:
        """Their process does not say that they have ended: its loop is blocked, and only its end would end them."""
        for rank in ranks:
            if self._states[rank] not in ENDED and not self.runtime.closed:
                text = f"{reason}; not confirmed, its process does not answer"
                self.set_state(rank, "stopped", reason=text)
                self.tell("stopped", rank, text)
        self.check_over()

    def check_over(self) -> None:
        """When all have ended their procs' deaths do not matter any more."""
        super().check_over()
        if self._retired:
            self.runtime.members.move_out(self)
            if self.on is not None and self in self.on.actors and not self.unheard:
                self.on.actors.remove(self)
