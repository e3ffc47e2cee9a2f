"""A seeded world around `Quorums`: replicas that train, die and come back, messages that take their time, coordinators that die.

A replica's state is the tuple of all (quorum id, step) that counted, so that two replicas with one state have one history.
"""

import heapq
import random
from itertools import count

from roost.ft.ending import End
from roost.ft.quorum import Ask, Decided, Decision, Ended, Formed, Report, Stopped
from roost.ft.quorums import Quorums


class Member:
    """One life of one replica: asks, trains, votes, and counts what was decided."""

    def __init__(self, world, replica, life):
        self.world, self.replica, self.life = world, replica, life
        self.history = ()
        self.has_state = False
        self.quorum = None
        self.last = None
        # Whether it asks for the next step with its vote, and has nothing to add to it then.
        self.idles = None
        # What it waits for an answer to: an Ask or a vote, sent again to every new coordinator.
        self.waiting = None
        # How training has ended for it.
        self.end = None
        self.alive = True

    def over(self, end):
        self.waiting, self.end = None, end
        self.world.later(self.world.told_end, self.world.epoch, end)
        if self.world.random.random() < 0.3:  # while others have not heard of the end
            self.world.later(self.world.start_coordinator)

    def ask(self):
        self.quorum = None
        idle = len(self.history) >= self.world.steps
        self.waiting = Ask(len(self.history), self.has_state, digest=str(hash(self.history)), is_idle=idle)
        self.world.send_up(self)

    def formed(self, quorum):
        if self.waiting is None or isinstance(self.waiting, Decision):
            return
        self.begin(quorum)

    def begin(self, quorum):
        self.waiting = None
        self.quorum = quorum
        sources = quorum.sources_of(self.replica)
        ok = True
        if sources:
            donors = [self.world.members.get(one) for one in sources]
            donors = [
                one for one in donors if one is not None and one.quorum == quorum and not one.has_moved_on(quorum)
            ]
            ok = bool(donors)
            if ok:
                self.history = donors[0].history
                self.has_state = bool(self.history)
        ok = ok and len(self.history) == quorum.step and self.world.random.random() < 0.9
        self.world.later(self.vote, quorum, ok)

    def has_moved_on(self, quorum):
        return self.last is not None and (self.last.quorum_id, self.last.step) == (quorum.id, quorum.step)

    def vote(self, quorum, ok):
        if self.alive:
            self.waiting = Decision(quorum.id, quorum.step, ok)
            self.idles = self.world.random.choice([None, len(self.history) + 1 >= self.world.steps])
            self.world.send_up(self)

    def decided(self, decision, following=None):
        vote = self.waiting
        if not isinstance(vote, Decision) or (vote.quorum_id, vote.step) != (decision.quorum_id, decision.step):
            return
        self.waiting = None
        self.last = decision
        self.world.note(self, decision, vote)
        if decision.is_yes:
            self.history += ((decision.quorum_id, decision.step),)
            self.has_state = True
        if following is None:
            self.world.later(self.ask)
        else:
            assert decision.is_yes
            self.begin(following)


class World:
    def __init__(self, seed, replicas, steps=12, faults=14, min_replicas=1, donors=1):
        self.random = random.Random(seed)
        self.donors = donors
        self.replicas, self.steps, self.min_replicas = replicas, steps, min_replicas
        self.faults = faults
        self.time = 0.0
        self.queue, self.numbers = [], count()
        self.members, self.lives = {}, [0] * replicas
        self.epoch, self.machine, self.pending = 0, None, {}
        self.verdicts, self.quorums = {}, {}
        self.stopped = self.ended = None
        # How often a vote was answered with the next quorum, too.
        self.followed = 0
        self.start_coordinator()
        for replica in range(replicas):
            self.start(replica)

    def later(self, what, *args, least=0.0):
        heapq.heappush(self.queue, (self.time + least + self.random.random(), next(self.numbers), what, args))

    def run(self):
        for _ in range(self.faults):
            self.later(self.fault, least=self.random.random() * self.steps * 3)
        for _ in range(200_000):
            if not self.queue or self.stopped:
                return
            self.time, _, what, args = heapq.heappop(self.queue)
            what(*args)
        raise AssertionError("it never ends")

    def fault(self):
        kind = self.random.choice(["kill", "kill", "coordinator", "both", "donor"])
        if kind in ("coordinator", "both"):
            self.start_coordinator()
        if kind != "coordinator":
            trained = [one for one in self.members.values() if one.has_state]
            victims = [one for one in self.members.values() if len(trained) > 1 or not one.has_state]
            if kind == "donor":
                victims = [one for one in victims if one.quorum is not None and one.quorum.is_source(one.replica)]
            # Who has ended is not brought back.
            victims = [one for one in victims if one.end is None]
            if victims:
                self.kill(self.random.choice(victims))

    def kill(self, member):
        member.alive = False
        del self.members[member.replica]
        self.pending = {key: one for key, one in self.pending.items() if one[0] is not member}
        self.later(self.tell_death, self.epoch, member.replica)
        # No message of the next life overtakes the news of this one.
        self.later(self.start, member.replica, least=1 + self.random.random() * 4)

    def tell_death(self, epoch, replica):
        if epoch == self.epoch:
            self.apply(self.machine.died(replica))

    def start(self, replica):
        member = self.members[replica] = Member(self, replica, self.lives[replica])
        self.lives[replica] += 1
        self.later(member.ask)

    def start_coordinator(self):
        self.machine, self.pending = (
            Quorums(self.epoch, self.replicas, min_replicas=self.min_replicas, donors=self.donors),
            {},
        )
        self.epoch += 1
        # What only the one before knew of the end is to be found again.
        self.ended = None
        for replica in range(self.replicas):
            self.later(self.hear, self.epoch, replica)
        for member in self.members.values():
            if member.waiting is not None:
                self.later(self.arrive, self.epoch, member, member.waiting)

    def hear(self, epoch, replica):
        if epoch == self.epoch:
            one = self.members.get(replica)
            report = None if one is None else Report(one.life, one.has_state, one.last, one.end)
            self.apply(self.machine.heard(replica, 0, report))

    def told_end(self, epoch, end):
        """A member's news of the end, lost with the coordinator that it was sent to."""
        if epoch == self.epoch:
            self.apply(self.machine.over(end))

    def send_up(self, member):
        self.later(self.arrive, self.epoch, member, member.waiting)

    def arrive(self, epoch, member, what):
        if epoch != self.epoch or not member.alive or member.waiting is not what:
            return
        self.pending[member.replica] = member, what
        if self.ended is not None and not isinstance(what, Decision):
            self.tell_end()
        elif isinstance(what, Decision):
            self.apply(self.machine.voted(member.replica, member.life, 0, what, member.idles))
        else:
            self.apply(self.machine.asked(member.replica, member.life, 0, what))

    def apply(self, outputs):
        for output in outputs:
            if isinstance(output, Formed):
                self.formed(output)
            elif isinstance(output, Stopped):
                self.stopped = output.reason
            elif isinstance(output, Ended):
                self.ended = End(output.base, output.trained)
                self.tell_end()
            elif isinstance(output, Decided):
                decision = output.decision
                key = self.epoch, decision.quorum_id, decision.step
                assert self.verdicts.setdefault(key, decision.is_yes) == decision.is_yes, "decided twice"
        for replica, (member, what) in list(self.pending.items()):
            if isinstance(what, Decision):
                verdict = self.machine.decision(what.quorum_id, what.step)
                if verdict is not None:
                    del self.pending[replica]
                    self.answer(member, member.decided, Decision(what.quorum_id, what.step, verdict))

    def tell_end(self):
        for replica, (member, what) in list(self.pending.items()):
            if not isinstance(what, Decision):
                del self.pending[replica]
                self.answer(member, member.over, self.ended)

    def answer(self, member, how, *what):
        """An answer on its way is lost with the coordinator, and with the member."""
        epoch = self.epoch

        def arrive():
            if epoch == self.epoch and member.alive:
                how(*what)

        self.later(arrive)

    def formed(self, output):
        quorum = output.quorum
        made = quorum.members, quorum.lives
        assert self.quorums.setdefault(quorum.id, made) == made, "an id was used twice"
        assert len(quorum.members) >= self.min_replicas
        # Of a member whose death was not told yet there is nothing to answer.
        waiting = {replica: self.pending.pop(replica) for replica in quorum.members if replica in self.pending}
        # Who has voted asks with the state that the step before has left.
        has_state = {one: isinstance(what, Decision) or what.has_state for one, (_, what) in waiting.items()}
        if any(has_state.values()):
            assert all(has or replica in quorum.healing for replica, has in has_state.items())
        for member, what in waiting.values():
            if isinstance(what, Decision):
                assert self.machine.decision(what.quorum_id, what.step), "asked with a vote that is not decided"
                assert member.idles is not None, "a quorum with one that has not asked"
                self.followed += 1
                self.answer(member, member.decided, what, quorum)
            else:
                self.answer(member, member.formed, quorum)

    def note(self, member, decision, vote):
        # What only those knew that are dead by now may be decided otherwise: it is lost with them.
        for other in self.members.values():
            if other.last is not None and (other.last.quorum_id, other.last.step) == (
                decision.quorum_id,
                decision.step,
            ):
                assert other.last == decision, "members were told different things"
        assert vote.is_yes or not decision.is_yes, "a step counted that a member had voted against"
