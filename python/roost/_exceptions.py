"""Exceptions on their way home: as themselves when they can travel, as text when not, always with their traceback."""

from __future__ import annotations

import linecache
import os
import pickle
import traceback
from asyncio.exceptions import CancelledError
from typing import TYPE_CHECKING, Any, TypeGuard

from roost import _pickling
from roost._definitions import closure, learn
from roost.errors import RemoteError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = [
    "RemoteTraceback",
    "add_note",
    "as_text",
    "dump_exception",
    "load_exception",
    "may_travel",
    "one_line",
    "tame",
    "traceback_text",
]

_FRAMES_MAX = 100
_CHAIN_MAX = 32  # causes that are kept as objects; the text has them all
_PICKLE_BYTES_MAX = 16 * 1024 * 1024  # an exception that carries more arrives as text
_TRACEBACK_CHARS_MAX = 64 * 1024
_TEXT_CHARS_MAX = 16 * 1024
# Exceptions that come back as what they were whenever their args are plain: no need to try, which is half the cost of an error.
_SURE = frozenset({
    ArithmeticError, AssertionError, Exception, IndexError, KeyError, LookupError, NotImplementedError, OverflowError,
    RuntimeError, TypeError, ValueError, ZeroDivisionError,
})  # fmt: skip
_PLAIN = frozenset({type(None), bool, bytes, float, int, str})
_OURS = os.path.dirname(__file__) + os.sep


class RemoteTraceback(Exception):  # noqa: N818  (it is the traceback that is seen in a chain of causes, not an error)
    """Where in another process an exception was raised: the `__cause__` of what a call raises.

    Its own `__cause__` is the cause that the exception had there.

    Args:
        text: The formatted traceback.
    """

    text: str
    """The formatted traceback, with those of the causes."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def dump_exception(error: BaseException, known: set[bytes] | None = None) -> bytes:
    """Pickle an exception with its traceback; this never fails.

    Args:
        error: What was raised. What would disturb the receiver's loop travels as text: `CancelledError`,
            `StopIteration`, `SystemExit` and any other bare `BaseException`.
        known: The classes that the receiver has, by id; what goes along now is added.
    """
    try:
        return _dump_chain(error, known)
    except BaseException as broken:  # noqa: BLE001  (a user's __getattribute__ may raise anything, for any name)
        name, said = _type_name(error), f"<looking at it raised {type(broken).__name__}>"
        body = pickle.dumps((f"{name}: {said}\n", [(True, name, said, [], None)]), 5)
        return pickle.dumps((b"", body), 5)


def _dump_chain(error: BaseException, known: set[bytes] | None) -> bytes:
    names: dict[bytes, None] = {}
    chain: list[tuple[bool, str, str, Any, bytes | None]] = []
    is_cause = True
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and len(chain) < _CHAIN_MAX and id(link) not in seen:
        seen.add(id(link))
        chain.append((is_cause, _type_name(link), _text(link), _notes(link), _pickle(link, names)))
        is_cause, link = _next(link)
    body = pickle.dumps((traceback_text(error), chain), 5)
    forms = closure(names, known) if names else b""
    return pickle.dumps((forms, body), 5)


def load_exception(data: Any, note: str | None = None) -> BaseException:
    """The exception that `dump_exception` took, or a `RemoteError` when it cannot be made here.

    Args:
        data: The bytes.
        note: Added to the exception: which actor, point and endpoint it came from.
    """
    forms, body = pickle.loads(data)
    if forms:
        learn(forms)
    text, chain = pickle.loads(body)
    error = _load(text, *chain[0][1:])
    outer: BaseException = RemoteTraceback(text)
    # Past the __setattr__ of a user's class, which may refuse, as that of a frozen dataclass does.
    BaseException.__setattr__(error, "__cause__", outer)
    for is_cause, *link in chain[1:]:
        inner = _load("", *link)
        if is_cause:
            BaseException.__setattr__(outer, "__cause__", inner)
        else:
            BaseException.__setattr__(outer, "__context__", inner)
        outer = inner
    if note is not None:
        add_note(error, note)
    return error


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception; one whose class refuses, as a frozen dataclass does, goes without."""
    try:
        error.add_note(note)
    except BaseException:  # noqa: BLE001  (a user's class may raise for any attribute)
        return


def _next(error: BaseException) -> tuple[bool, BaseException | None]:
    """What an exception followed from. A traceback from yet another process is passed over: the text has it."""
    cause = error.__cause__
    if type(cause) is RemoteTraceback:
        error = cause
        cause = error.__cause__
    if cause is not None:
        return True, cause
    return False, None if error.__suppress_context__ else error.__context__


def may_travel(error: object) -> TypeGuard[Exception]:
    """Whether it is an exception that disturbs nobody's loop: no end of a process, a task or an iterator."""
    return isinstance(error, Exception) and not isinstance(error, (StopIteration, CancelledError))


def _pickle(error: BaseException, names: dict[bytes, None]) -> bytes | None:
    """The exception pickled, when it comes back as what it was."""
    if not may_travel(error):
        return None
    if type(error) in _SURE and not error.__dict__ and _PLAIN.issuperset(map(type, error.args)):
        payload = pickle.dumps(error, 5)
        return payload if len(payload) <= _PICKLE_BYTES_MAX else None
    try:
        dumped = _pickling.dump(error, in_band=True)
        payload, found = (dumped, ()) if isinstance(dumped, bytes) else (dumped.payload, dumped.definitions)
        # Many exceptions pickle and then fail to unpickle; here there is still a caller's text to send instead.
        if len(payload) > _PICKLE_BYTES_MAX or type(pickle.loads(payload)) is not type(error):
            return None
    except BaseException:  # noqa: BLE001  (whatever a user's class does, SystemExit too: the text goes instead)
        return None
    names.update(dict.fromkeys(found))
    return payload


def _load(text: str, name: str, said: str, notes: list[str], pickled: bytes | None) -> BaseException:
    why = ""
    if pickled is not None:
        try:
            loaded = pickle.loads(pickled)
            # Also of a member that sends what no other would.
            if may_travel(loaded):
                return loaded
        except BaseException as error:  # noqa: BLE001  (whatever a user's class does: the text is there)
            why = f"it arrives as text, since it could not be unpickled here: {type(error).__name__}: {_text(error)}"
    remote = RemoteError(name, said, text)
    for note in [*notes, why]:
        if note:
            remote.add_note(note)
    return remote


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__module__ != "builtins" else kind.__qualname__


def _text(error: BaseException) -> str:
    try:
        return _shorten(str(error), _TEXT_CHARS_MAX)
    except BaseException as broken:  # noqa: BLE001  (a user's __str__ may raise anything)
        return f"<its __str__ raised {type(broken).__name__}>"


def _notes(error: BaseException) -> list[str]:
    try:
        notes: Any = getattr(error, "__notes__", None)
    except BaseException:  # noqa: BLE001  (a user's __getattr__ may raise anything)
        return []
    if not isinstance(notes, (list, tuple)):
        return []
    return [_shorten(note, _TEXT_CHARS_MAX) for note in notes if isinstance(note, str)]  # pyright: ignore[reportUnknownVariableType]


def tame(error: BaseException) -> BaseException:
    """The exception, or its text when its class raises for every name, so that not even `isinstance` may look at it."""
    try:
        _ = error.__class__
    except BaseException:  # noqa: BLE001  (a user's __getattribute__ may raise anything)
        return as_text(error)
    return error


def as_text(error: BaseException) -> RemoteError:
    """What an exception says, without what it is; this never fails, whatever its class does."""
    return RemoteError(_type_name(error), _text(error), traceback_text(error))


def one_line(error: BaseException) -> str:
    """The type and the first line of the text of an exception; this never fails, whatever its class does."""
    said = _text(error).strip()
    return f"{_type_name(error)}: {said.splitlines()[0]}" if said else _type_name(error)


def traceback_text(error: BaseException) -> str:
    """The formatted traceback of an exception, from the user's frames on; this never fails, whatever its class does."""
    try:
        frames = _user_frames(error.__traceback__)
        lines = (
            _plain_lines(error, frames) if _is_plain(error) else traceback.format_exception(type(error), error, frames)
        )
        return _shorten("".join(lines), _TRACEBACK_CHARS_MAX)
    except BaseException as broken:  # noqa: BLE001  (a user's __str__, __repr__ or __cause__ may raise anything)
        return f"{_type_name(error)}: <its traceback could not be formatted: {type(broken).__name__}>\n"


def _is_plain(error: BaseException) -> bool:
    """Whether there is nothing to show but the frames and the exception itself: the usual case."""
    chained = error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__)
    return not chained and not isinstance(error, (BaseExceptionGroup, SyntaxError))


def _plain_lines(error: BaseException, frames: TracebackType | None) -> list[str]:
    """As `traceback.format_exception`, without the marks under parts of a line, which parse the source of each frame: 200 µs."""
    lines = ["Traceback (most recent call last):\n"]
    shown = 0
    while frames is not None and shown < _FRAMES_MAX:
        code = frames.tb_frame.f_code
        lines.append(f'  File "{code.co_filename}", line {frames.tb_lineno}, in {code.co_name}\n')
        source = linecache.getline(code.co_filename, frames.tb_lineno, frames.tb_frame.f_globals).strip()
        if source:
            lines.append(f"    {source}\n")
        frames = frames.tb_next
        shown += 1
    if frames is not None:
        lines.append("  … more frames left out …\n")
    if hasattr(error, "__notes__"):
        return lines + traceback.format_exception_only(error)
    said = str(error)
    return [*lines, f"{_type_name(error)}: {said}\n" if said else f"{_type_name(error)}\n"]


def _user_frames(frames: TracebackType | None) -> TracebackType | None:
    """Without the frames of Roost that called the user's code; all of them when there is nothing else."""
    inner = frames
    while inner is not None and inner.tb_frame.f_code.co_filename.startswith(_OURS):
        inner = inner.tb_next
    return inner or frames


def _shorten(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
