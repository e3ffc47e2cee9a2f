"""Every limit and timeout of Roost, with its default and why."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from roost.values import Frozen, check_finite, check_integer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from typing_extensions import TypedDict, Unpack

__all__ = ["Config", "configure", "current"]

_MIB = 1 << 20
_GIB = 1 << 30


class Config(Frozen, kw_only=True):
    """Roost's limits. Set them before the first use, with `roost.configure` or `roost.run(main(), config=…)`.

    Raises:
        ValueError: A limit that makes no sense; the text says what to do.
        TypeError: No such limit, or a value that is not a number.
    """

    message_bytes_max: int = 4 * _GIB
    """The largest message or reply, header and all parts, shared memory too: above it one-sided reads are better."""
    queue_bytes_max: int = 64 * _MIB
    """Bytes that wait at a sender for one peer: beyond them a verb waits or raises, so that memory stays bounded."""
    queue_messages_max: int = 65_536
    """Messages that wait at a sender for one peer: a window of 10,000 calls must run, a runaway loop must not."""
    queue_warning_s: float = 10.0
    """How long a queue is full, or a message waits for a busy actor, before that is told: longer than a slow step."""
    port_messages_max: int = 64
    """Values that wait in a channel unless its own limit says otherwise: back-pressure comes early."""
    segment_bytes_min: int = 256 << 10
    """Parts from this size on go through shared memory on one host: below it a copy through the socket is quicker."""
    segments_bytes_max: int = 8 * _GIB
    """Shared memory that one proc keeps pooled or holds for its receivers: beyond it parts go through the socket."""
    start_timeout_s: float = 120.0
    """Time for a proc to start, `setup` and preloads too: importing torch from a cold network disk takes a minute."""
    grace_s: float = 5.0
    """Time that a stop leaves to threads and C code before SIGTERM."""
    sigterm_s: float = 3.0
    """Time between SIGTERM and SIGKILL."""
    stall_s: float = 30.0
    """How long a proc's event loop may stand still before an event tells where it is stuck: longer than most steps."""
    beat_s: float = 1.0
    """Time between two signs of life between hosts: ten of them before silence is taken for death."""
    verdict_s: float = 10.0
    """How long another host may be silent before it is lost: a cable may be out for nine seconds, and nothing happens."""
    lease_s: float = 30.0
    """How long a host lives without a sign of its driver before it ends what that has there."""
    idle_s: float = 600.0
    """How long a connection between procs of two hosts may lie unused, once or twice that, before it is closed until one of
    them has something to say. Each that lies open costs a descriptor and some memory, making it anew a millisecond and the way
    there and back: far longer than a step, since a cast to a thousand idle procs makes a thousand at once."""
    tree_procs_min: int = 512
    """From so many procs of other hosts on, what the driver has for all of them goes along a tree of their hosts: it costs the
    driver less, and more steps on the way. Up to some hundred the straight way is quicker."""
    cleanup_timeout_s: float = 3.0
    """Time for an actor's `__cleanup__`; more than the grace is added to it."""
    echo_hold_s: float = 0.02
    """How long an error that may echo a peer's death is held back for the death to overtake it."""
    dead_letters_max: int = 1000
    """Dead letters kept in `context().job.dead_letters`: the newest matter."""
    events_max: int = 10_000
    """Events that wait for one reader of `events()`; beyond them the oldest make way for one `gap`."""

    def __post_init__(self) -> None:
        for name in Config._field_names:
            value: object = self.__dict__[name]
            if name.endswith("_s"):
                check_finite("Config", name, value, above=0, instead="give seconds, or leave it out for the default")
                self._convert(name, float(self.__dict__[name]))
            else:
                check_integer(
                    "Config", name, value, least=1, instead="give at least 1, or leave it out for the default"
                )

    def as_builtins(self) -> dict[str, int | float]:
        """The limits as plain numbers by name, to hand to a proc or to Rust."""
        return {name: self.__dict__[name] for name in Config._field_names}

    @classmethod
    def from_builtins(cls, limits: Mapping[str, int | float]) -> Config:
        """The config whose `as_builtins` gave `limits`."""
        return _changed(cls(), limits)


if TYPE_CHECKING:

    class _Changes(TypedDict, total=False):
        """Config's fields once more, so that type checkers see `configure`'s keywords; a test compares the two."""

        message_bytes_max: int
        queue_bytes_max: int
        queue_messages_max: int
        queue_warning_s: float
        port_messages_max: int
        segment_bytes_min: int
        segments_bytes_max: int
        start_timeout_s: float
        grace_s: float
        sigterm_s: float
        stall_s: float
        beat_s: float
        verdict_s: float
        lease_s: float
        idle_s: float
        tree_procs_min: int
        cleanup_timeout_s: float
        echo_hold_s: float
        dead_letters_max: int
        events_max: int


class _Store:
    """The process's config, and who has read it already."""

    def __init__(self) -> None:
        self.config: Config | None = None
        self.frozen = False


_store = _Store()


def configure(**changes: Unpack[_Changes]) -> None:
    """Change limits for this job, before its first use.

    Args:
        **changes: Fields of `Config` with their new values; what is not named stays.

    Raises:
        RuntimeError: The job runs already.
        ValueError: A limit that makes no sense.
        TypeError: No such limit.
    """
    _refuse_late("roost.configure()")
    _store.config = _changed(_store.config or Config(), changes)


def current() -> Config:
    """The config of this process, fixed from now on: the runtime calls it when it starts."""
    _store.frozen = True
    if _store.config is None:
        _store.config = Config()
    return _store.config


@contextmanager
def using(config: Config | None) -> Iterator[None]:
    """Take a whole config for one program, as `roost.run(config=…)` does; None leaves what there is.

    Raises:
        RuntimeError: The job runs already.
    """
    before = _store.config
    if config is not None:
        use(config)
    try:
        yield
    finally:
        _store.config = before


def use(config: Config) -> None:
    """Take a whole config, as a starting proc does.

    Raises:
        RuntimeError: The job runs already.
    """
    _refuse_late("config=")
    _store.config = config


def release() -> None:
    """Let limits be changed again: the runtime calls it when it has ended."""
    _store.frozen = False


def _refuse_late(what: str) -> None:
    if _store.frozen:
        raise RuntimeError(
            f"{what} came after Roost's first use, when its limits were fixed; call it before spawning anything"
        )


def _changed(config: Config, changes: Mapping[str, object]) -> Config:
    unknown = [name for name in changes if name not in Config._field_names]
    if unknown:
        raise TypeError(f"Config has no limit {unknown[0]!r}; it has {', '.join(Config._field_names)}")
    limits: dict[str, object] = {**config.as_builtins(), **changes}
    return Config(**limits)  # type: ignore[arg-type]  # the fields check their own types
