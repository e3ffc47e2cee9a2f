"""How Python values become message parts, and parts values.

A value is pickled with protocol 5. What is large (arrays, tensors, `bytes`; from `OUT_OF_BAND_BYTES_MIN` on) leaves the
pickle as a buffer of its own and is not copied here. What cannot be imported elsewhere travels by value.

`dumps` gives plain `bytes` when the pickle is all there is, which is nearly always; else `Parts`. Their buffers are
still the user's memory: whoever sends them captures them first.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

from roost import _pickling
from roost._definitions import closure, home, learn, set_home
from roost._exceptions import RemoteTraceback, dump_exception, load_exception
from roost._pickling import OUT_OF_BAND_BYTES_MIN, PARTS_MAX, Parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = [
    "OUT_OF_BAND_BYTES_MIN",
    "PARTS_MAX",
    "Parts",
    "RemoteTraceback",
    "alone",
    "closure",
    "dump_call",
    "dump_exception",
    "dumps",
    "dumps_alone",
    "explain",
    "home",
    "is_unawaited",
    "learn",
    "load_call",
    "load_exception",
    "loads",
    "set_home",
]

loads = pickle.loads
"""`loads(payload, buffers=buffers)`: the value. An error raised by unpickling comes as it is."""


def dumps(value: Any, /) -> bytes | Parts:
    """Pickle a value.

    Raises:
        TypeError: It, or something in it, cannot be pickled. A `__reduce__` of the user's may raise anything else.
    """
    return _pickling.dump(_pickling.large(value))


def dump_call(args: tuple[object, ...], kwargs: Mapping[str, object] | None = None) -> bytes | Parts:
    """Pickle the arguments of a call: the tuple alone without keywords, else a list of the tuple and the dict."""
    for arg in args:
        if (type(arg) is bytes or type(arg) is bytearray) and len(arg) >= OUT_OF_BAND_BYTES_MIN:
            args = tuple([_pickling.large(arg) for arg in args])
            break
    if not kwargs:
        return _pickling.dump(args)
    return _pickling.dump([args, {name: _pickling.large(value) for name, value in kwargs.items()}])


def load_call(payload: Any, buffers: Iterable[Any] | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments and keywords that `dump_call` took."""
    value = pickle.loads(payload, buffers=buffers)
    return (value[0], value[1]) if type(value) is list else (value, {})  # pyright: ignore[reportUnknownVariableType]


def dumps_alone(value: Any, /) -> bytes:
    """Pickle a value into bytes that need nothing beside them: any process of the job loads them with `loads`."""
    return alone(_pickling.dump(value, in_band=True))


def alone(dumped: bytes | Parts, receiver: bytes = b"") -> bytes:
    """The pickle with the forms of the classes that it names put before it: it loads where they were never learned.

    Args:
        dumped: What `dumps` or `dump_call` gave.
        receiver: The home of the only process that loads it: what is defined there does not go along.
    """
    if isinstance(dumped, bytes):
        return dumped
    forms = closure(dumped.definitions, receiver=receiver)
    if not forms:
        return dumped.payload
    # A pickle may begin with a call whose result is dropped; nothing in this one touches the memo that follows.
    call = b"\x80\x05croost._definitions\nlearn\nB" + len(forms).to_bytes(4, "little") + forms + b"\x85R0"
    return call + dumped.payload


def explain(
    error: BaseException, where: str, args: Sequence[Any], kwargs: Mapping[str, Any], names: Sequence[str] = ()
) -> TypeError:
    """The error to raise when arguments do not pickle: it names the one to blame.

    Args:
        error: What pickling raised.
        where: The endpoint, as "Trainer.step".
        args: The arguments by position.
        kwargs: The arguments by keyword.
        names: The parameters' names, for the arguments by position.
    """
    labels = [f"'{names[at]}'" if at < len(names) else str(at + 1) for at in range(len(args))]
    for label, value in [*zip(labels, args, strict=True), *((f"'{name}'", value) for name, value in kwargs.items())]:
        if is_unawaited(value):
            kind = type(value).__name__
            return TypeError(f"argument {label} of {where} is a {kind} that was not awaited: await it first")
        try:
            dumps(value)
        except Exception as this:  # noqa: BLE001  (whatever a user's __reduce__ raises is what the text tells of)
            return TypeError(f"argument {label} of {where} cannot be pickled: {culprit(this)}")
    return TypeError(f"the arguments of {where} cannot be pickled: {culprit(error)}")


def is_unawaited(value: object) -> bool:
    """Whether a value is a future, coroutine or async generator: a promise that no other process can keep."""
    return _pickling.is_promise(type(value))


def culprit(error: BaseException) -> str:
    """What an error of pickling says of the value to blame: its type, where that is all there is to say."""
    text = str(error)
    if text.startswith("cannot pickle '") and text.endswith("' object"):
        return text.removeprefix("cannot pickle '").removesuffix("' object")
    return text if isinstance(error, (TypeError, pickle.PicklingError)) and text else f"{type(error).__name__}: {text}"
