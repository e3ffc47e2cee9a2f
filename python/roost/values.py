"""The base of Roost's small frozen values.

`dataclasses` writes and compiles each class's methods at import, about a millisecond a class, and
`import roost` has to stay about as quick as `import asyncio`. This base gives what those values need, with
one set of methods for all of them, and type checkers read it as a frozen dataclass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, dataclass_transform

if TYPE_CHECKING:
    from inspect import Signature

__all__ = [
    "Frozen",
    "check_finite",
    "check_flag",
    "check_hook",
    "check_integer",
    "check_items",
    "check_modules",
    "check_name",
    "check_one_of",
]

_MISSING = object()


class _Signature:
    """What `inspect.signature` and `help` show of a class of fields; made when it is asked for."""

    def __get__(self, _value: object, owner: type[Frozen]) -> Signature:
        from inspect import Parameter, Signature, get_annotations

        positional = getattr(owner, "__match_args__", ())
        annotations: dict[str, object] = {}
        for base in reversed(owner.__mro__):
            annotations |= get_annotations(base)
        return Signature(
            [
                Parameter(
                    name,
                    Parameter.POSITIONAL_OR_KEYWORD if name in positional else Parameter.KEYWORD_ONLY,
                    default=getattr(owner, name, Parameter.empty),
                    annotation=annotations[name],
                )
                for name in owner._field_names
            ]
        )


class _Text:
    """A class's docstring with those of its fields, as `help` shows it; the source is read when it is asked for."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, _value: object, owner: type[Frozen]) -> str:
        import ast
        import inspect

        try:
            [kind] = ast.parse(inspect.getsource(owner)).body
        except (OSError, TypeError, SyntaxError):
            # The sources are not there, or of a class inside something else.
            return self._text
        fields = kind.body if isinstance(kind, ast.ClassDef) else []
        lines = [inspect.cleandoc(self._text), "", "Attributes:"]
        for field, text in pairwise(fields):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                lines.append(f"    {ast.unparse(field.target)}: {' '.join(ast.literal_eval(text.value).split())}")
        return "\n".join(lines)


@dataclass_transform(eq_default=True, frozen_default=True)
class Frozen:
    """A value whose annotated attributes are its fields, set once when it is made."""

    # Not `_fields`, as named tuples have it: `help` would list everything that begins with an underscore.
    _field_names: ClassVar[tuple[str, ...]] = ()
    _names_compared: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        # `_names` are bookkeeping of the class, never fields.
        own = tuple(name for name in cls.__annotations__ if not name.startswith("_"))
        cls._field_names += own
        if "_names_compared" not in cls.__dict__:
            cls._names_compared = cls._field_names
        if not TYPE_CHECKING:
            if not kw_only:  # type checkers derive it from the fields
                cls.__match_args__ = cls._field_names
            if cls.__doc__:
                cls.__doc__ = _Text(cls.__doc__)

    if not TYPE_CHECKING:  # type checkers derive the signature from the fields
        __signature__ = _Signature()

        def __init__(self, *args: object, **kwargs: object) -> None:
            fields = type(self)._field_names
            positional = getattr(type(self), "__match_args__", ())
            if len(args) > len(positional):
                raise TypeError(
                    f"{type(self).__name__}() takes {len(positional)} positional arguments ({', '.join(positional)}),"
                    f" {len(args)} were given"
                )
            values = dict(zip(positional, args, strict=False))
            for name, value in kwargs.items():
                if name not in fields:
                    raise TypeError(
                        f"{type(self).__name__}() has no field {name!r}; its fields are {', '.join(fields)}"
                    )
                if name in values:
                    raise TypeError(f"{type(self).__name__}() got field {name!r} twice")
                values[name] = value
            for name in fields:
                value = values.get(name, _MISSING)
                if value is _MISSING:
                    value = getattr(type(self), name, _MISSING)
                    if value is _MISSING:
                        raise TypeError(f"{type(self).__name__}() is missing field {name!r}")
                self.__dict__[name] = value
            self.__post_init__()

        def __replace__(self, /, **changes: object) -> Frozen:
            return type(self)(**{name: self.__dict__[name] for name in type(self)._field_names} | changes)

        # Seen by type checkers, these would say that any attribute may be set or deleted.
        def __setattr__(self, name: str, value: object) -> NoReturn:
            self._refuse(name)

        def __delattr__(self, name: str) -> NoReturn:
            self._refuse(name)

    def __post_init__(self) -> None:
        """Check and convert the fields; subclasses say how."""

    def _refuse(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} is frozen: {name!r} cannot be set; make a new one")

    def _convert(self, name: str, value: object) -> None:
        """Set a field while the value is being made."""
        self.__dict__[name] = value

    def _compared(self) -> tuple[object, ...]:
        return tuple(self.__dict__[name] for name in type(self)._names_compared)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash((type(self), self._compared()))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={self.__dict__[name]!r}" for name in type(self)._field_names)
        return f"{type(self).__name__}({fields})"


def check_hook(supervise: object) -> None:
    """Refuse a `supervise=` that cannot be awaited: it would be found out by the first failure."""
    if supervise is None:
        return
    import inspect

    # An object may be called too, by a method that is async.
    of_object = getattr(type(supervise), "__call__", None)  # noqa: B004 - not whether, but how it is called
    if not inspect.iscoroutinefunction(supervise) and not inspect.iscoroutinefunction(of_object):
        raise TypeError(
            f"supervise={supervise!r}: give an `async def` that takes a failure and returns True when it has handled it"
        )


def check_modules(preload: object) -> tuple[str, ...]:
    """Refuse what is no list of names of modules; one name alone would be taken letter by letter."""
    if isinstance(preload, str | bytes) or not isinstance(preload, Iterable):
        raise TypeError(f'preload={preload!r}: give a list of names of modules, such as preload=["torch"]')
    names = tuple(preload)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f'preload: {name!r} is no name of a module: give names, such as preload=["torch"]')
    return names


def check_integer(owner: str, name: str, value: object, *, least: int, instead: str = "") -> None:
    """Refuse what is not a whole number of at least `least`; `instead` says what to do about it."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{owner} {name} must be a whole number, not {value!r}")
    if value < least:
        raise ValueError(f"{owner} {name}={value} is below {least}{instead and '; '}{instead}")


def check_items(owner: str, name: str, value: object, instead: str) -> tuple[Any, ...]:
    """What is listed; refuses what is no list, and a text, which would be taken letter by letter. `instead` shows one."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{owner} {name}={value!r}: give a list, such as {name}={instead}")
    return tuple(value)


def check_flag(owner: str, name: str, value: object, meaning: str) -> None:
    """Refuse what is neither True nor False; `meaning` says what they decide."""
    if not isinstance(value, bool):
        raise TypeError(f"{owner} {name}={value!r} must be True or False, {meaning}")


def check_name(owner: str, name: object) -> None:
    """Refuse a name that is no text; None leaves it to us."""
    if name is None:
        return
    if not isinstance(name, str):
        raise TypeError(f"{owner} name={name!r} must be a str")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{owner} name={name!r} has characters that are half of one (surrogates)") from None


def check_finite(
    owner: str,
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float = 0.0,
    most: float = math.inf,
    instead: str = "",
) -> None:
    """Refuse what is not a finite number from `least` to `most`, and greater than `above` when that is given."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TypeError(f"{owner} {name} must be a number, not {value!r}")
    tail = f"; {instead}" if instead else ""
    try:
        is_finite = math.isfinite(value)
    except OverflowError:
        # A whole number that no float is as large as; to write it down may be refused, too.
        raise ValueError(
            f"{owner} {name} is too large: a whole number of {int(value).bit_length()} bits{tail}"
        ) from None
    if not is_finite:
        raise ValueError(f"{owner} {name}={value} is not finite{tail}")
    if above is not None and value <= above:
        raise ValueError(f"{owner} {name}={value} must be greater than {above:g}{tail}")
    if value < least:
        raise ValueError(f"{owner} {name}={value} is below {least:g}{tail}")
    if value > most:
        raise ValueError(f"{owner} {name}={value} is more than {most:g}{tail}")


def check_one_of(owner: str, name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a word that is not one of `allowed`."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{owner} {name}={value!r} is unknown; use one of {', '.join(map(repr, allowed))}")
