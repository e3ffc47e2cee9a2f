"""One call of `attach` at work: which hosts answer, which are waited for, and what is said of those that do not."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from roost.addresses import is_loopback, read_addresses, resolve
from roost.candidates import RETRY_S, Candidate
from roost.errors import AuthenticationError, HostLostError, ProtocolError, VersionMismatchError
from roost.failure import Failure
from roost.rendezvous import Rendezvous

if TYPE_CHECKING:
    from roost.addresses import Address
    from roost.candidates import Source
    from roost.owned_hosts import OwnedHosts
    from roost.rendezvous import Caller
    from roost.runtime import Runtime

__all__ = ["Attaching"]

# What another attempt may mend.
_MENDABLE = ("unreachable", "busy")
_NO_KEY = "beyond this machine a key is needed that both have: `python -m roost key FILE`, then key_file=FILE here and --key-file there"


class Attaching:
    """One call of `attach` at work."""

    def __init__(
        self, runtime: Runtime, record: OwnedHosts, source: Source, timeout_s: float, config: dict[str, Any]
    ) -> None:
        self._runtime = runtime
        self._record = record
        self._source = source
        self._path = source.path
        self._timeout_s = timeout_s
        # Whether missing hosts are waited for.
        self._waits = source.wait_for is not None
        self._config = config
        self._candidates = [Candidate(address) for address in source.addresses]
        self._rendezvous: Rendezvous | None = None
        self._over = False

    def begin(self) -> None:
        """Ask for all hosts; on the loop."""
        for candidate in self._candidates:
            self._runtime.keep(self._dial(candidate))
        if self._source.listener is not None:
            self._rendezvous = Rendezvous(self._config["key"], self._called)
            self._runtime.keep(self._rendezvous.serve(self._source.listener))
        self._runtime.loop.call_later(self._timeout_s, self._time_out)
        if self._waits and self._path is not None:
            self._runtime.loop.call_later(RETRY_S[0], self._read_again)

    def reached(self) -> list[str]:
        """By what those that have joined were reached: "number:port", or "unix:" and the path of a socket."""
        return [one.reached for one in self._candidates if one.host is not None]

    async def _dial(self, candidate: Candidate) -> None:
        try:
            candidate.dialled = await resolve(self._runtime.loop, candidate.address)
        except OSError as error:
            self._refused(candidate, "unreachable", f"its name is not known: {error.strerror or error}")
            return
        if self._over:
            return
        if "key" not in self._config and "pki" not in self._config and not all(map(is_loopback, candidate.dialled)):
            # Whoever answers there would be given what the job's hosts know each other by.
            self._refused(candidate, "authentication", _NO_KEY)
            return
        for other in self._candidates:
            if other is not candidate and not set(other.dialled).isdisjoint(candidate.dialled):
                self._doubled(other, candidate)
                return
        runtime = self._runtime
        candidate.number = runtime.hosts.ask(self, candidate)
        runtime.control.attach(candidate.number, candidate.dialled, {**self._config, "name": candidate.address.host})

    def heard(self, candidate: Candidate, number: int, what: str, details: dict[str, Any]) -> None:
        """The control thread says how it went, or goes on."""
        if what == "joined":
            self._joined(candidate, number, details)
        elif what == "refused":
            if number == candidate.number:
                candidate.number = None
            self._refused(candidate, details["kind"], details["reason"])
        elif candidate.host is None:
            # It was let go before it was one of the mesh's.
            return
        elif (rank := self._rank_of(number)) is None:
            # While others were waited for.
            candidate.host = candidate.number = None
            self._refused(candidate, "unreachable", details.get("reason", "it went away again"))
        elif what == "lost":
            self._runtime.hosts.lost(*candidate.host, details["reason"])
        else:
            self._record.left(rank, self._record.mesh_stopped or "it was let go")

    def reached_by(self, host: int) -> str:
        """By what a host that has joined is reached from here."""
        return next(one.reached for one in self._candidates if one.host is not None and one.host[0] == host)

    def _rank_of(self, number: int) -> int | None:
        return next((rank for rank, one in self._record.numbers.items() if one == number), None)

    def _joined(self, candidate: Candidate, number: int, details: dict[str, Any]) -> None:
        was_refused = not self._waits and self._candidates.index(candidate) in self._record.refused
        if self._over or was_refused or candidate not in self._candidates:
            self._runtime.control.detach(number)
            return
        candidate.host, candidate.reached = (details["host"], details["name"]), details["address"]
        for other in self._candidates:
            if other is not candidate and other.host is not None and other.host[0] == candidate.host[0]:
                self._doubled(other, candidate)
                return
        if not self._waits:
            self._record.joins(self._candidates.index(candidate), candidate.host, number)
        there = [one for one in self._candidates if one.host is not None]
        if len(there) == len(self._record.whole):
            self._complete(there)

    def _called(self, caller: Caller) -> str | None:
        """An agent says where it is; why it is not wanted."""
        names = self._source.names
        if names and caller.name not in names:
            return f"it waits for {', '.join(names)}, and this is {caller.name}"
        for one in self._candidates:
            if one.address.text == caller.address.text:
                # It has called before.
                return None
            if names and one.name == caller.name:
                if one.host is not None:
                    return f"a host of that name is there already, at {one.address.text}"
                self._forget(one)
                break
        self._candidates.append(Candidate(caller.address, caller.name))
        self._runtime.keep(self._dial(self._candidates[-1]))
        return None

    def _forget(self, candidate: Candidate) -> None:
        self._candidates.remove(candidate)
        self._let_go(candidate)

    def _end(self) -> None:
        """No host is looked for any more."""
        self._over = True
        if self._rendezvous is not None:
            self._rendezvous.close()

    def _complete(self, there: list[Candidate]) -> None:
        """All hosts that are wanted are there; whoever else is still asked is not."""
        self._end()
        if self._source.names:
            there.sort(key=lambda one: self._source.names.index(one.name or ""))
        if self._waits:
            for rank, one in enumerate(there):
                assert one.host is not None
                assert one.number is not None
                self._record.joins(rank, one.host, one.number)
        self._let_go_but(there)

    def _let_go_but(self, kept: list[Candidate]) -> None:
        for one in self._candidates:
            if one not in kept:
                self._let_go(one)

    def _let_go(self, candidate: Candidate) -> None:
        if candidate.number is not None:
            self._runtime.control.detach(candidate.number)

    # What goes wrong ---------------------------------------------------------------------------------------------------
    def _refused(self, candidate: Candidate, kind: str, reason: str) -> None:
        if self._over:
            return
        if kind == "doubled" and self._rendezvous is None:
            self._fail_all(ValueError(f"{candidate}: {reason}; name each host once"))
            return
        candidate.why = reason
        loop = self._runtime.loop
        if not self._waits:
            error = _error(kind, f"host {candidate} {_DOES_NOT[kind]}: {reason}")
            self._fail(self._candidates.index(candidate), candidate, error, reason)
        elif kind in _MENDABLE:
            loop.call_later(candidate.pause_s, self._retry, candidate)
            candidate.pause_s = min(2 * candidate.pause_s, RETRY_S[1])
        else:
            candidate.is_hopeless = True
            hopeful = sum(1 for one in self._candidates if not one.is_hopeless)
            if not self._source.grows and hopeful < len(self._record.whole):
                self._fail_all(_error(kind, self._missing("are there")))

    def _retry(self, candidate: Candidate) -> None:
        if not self._over and not self._runtime.closed and candidate in self._candidates:
            self._runtime.keep(self._dial(candidate))

    def _read_again(self) -> None:
        """Somebody may have added an address to the file."""
        if self._over or self._runtime.closed:
            return
        self._runtime.loop.call_later(RETRY_S[1], self._read_again)
        assert self._path is not None
        # Somebody may be writing it this moment.
        with suppress(OSError, ValueError):
            self._add(read_addresses(self._path))

    def _add(self, addresses: list[Address]) -> None:
        known = {one.address.text for one in self._candidates}
        for address in addresses:
            if address.text not in known:
                self._candidates.append(Candidate(address))
                self._runtime.keep(self._dial(self._candidates[-1]))

    def _time_out(self) -> None:
        if self._over or self._runtime.closed:
            return
        if self._waits:
            self._fail_all(HostLostError(self._missing(f"are there after {self._timeout_s:g} s")))
            return
        for rank, one in enumerate(self._candidates):
            if one.host is None and rank not in self._record.refused:
                why = f"no answer in {self._timeout_s:g} s"
                self._fail(rank, one, HostLostError(f"host {one} cannot be reached: {why}"), why)
                self._let_go(one)

    def _missing(self, how: str) -> str:
        there = sum(1 for one in self._candidates if one.host is not None)
        missing = [f"{one}: {one.why}" for one in self._candidates if one.host is None]
        more = len(self._record.whole) - len(self._candidates)
        if self._path is not None and more > 0:
            missing.append(f"{more} more that {self._path} does not name")
        elif self._source.names:
            called = {one.name for one in self._candidates}
            missing += [f"{name}: it has not called" for name in self._source.names if name not in called]
        elif self._source.listener is not None and more > 0:
            missing.append(f"{more} more that have not called")
        count = "no host" if there == 0 else "one host" if there == 1 else f"{there} hosts"
        return f"{count} of {len(self._record.whole)} {how}; missing: {'; '.join(missing)}"

    def _doubled(self, first: Candidate, second: Candidate) -> None:
        if self._rendezvous is not None:
            # It has called by two of its addresses.
            self._forget(second)
        elif not self._over:
            text = f"{first.address.text!r} and {second.address.text!r} are one and the same host: name each host once"
            self._fail_all(ValueError(text))

    def _fail_all(self, error: Exception) -> None:
        """There will be no mesh."""
        self._end()
        self._let_go_but([])
        failure = self._failure("", 0, str(error))
        for rank in range(len(self._record.whole)):
            if rank not in self._record.refused:
                self._record.cannot_join(rank, error, failure)

    def _fail(self, rank: int, candidate: Candidate, error: Exception, reason: str) -> None:
        self._record.cannot_join(rank, error, self._failure(candidate.address.text, rank, reason))

    def _failure(self, host: str, rank: int, reason: str) -> Failure:
        mesh, name, point = self._record.place(rank)
        return Failure(kind="lost", origin="host", mesh=mesh, name=name, point=point, host=host, reason=reason)

    def give_up(self, reason: str) -> None:
        """The hosts are not wanted any more; those that have joined are let go by the mesh."""
        if not self._over:
            self._end()
            self._record.will_not_be(reason)
            kept = [one for one in self._candidates if one.number in self._record.numbers.values()]
            self._let_go_but(kept)


_DOES_NOT = {
    "unreachable": "cannot be reached",
    "authentication": "does not let this program in",
    "version": "does not work together with this program",
    "busy": "serves another job",
    "protocol": "does not speak Roost's protocol",
}


def _error(kind: str, text: str) -> Exception:
    kinds: dict[str, type[Exception]] = {
        "authentication": AuthenticationError, "version": VersionMismatchError, "protocol": ProtocolError,
    }  # fmt: skip
    return kinds.get(kind, HostLostError)(text)
