"""What Roost knows of one endpoint: how it runs and which arguments it takes."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["POSITIONAL_ANY", "EndpointInfo", "EndpointKind"]

EndpointKind: TypeAlias = Literal["async", "sync", "stream", "port"]

POSITIONAL_ANY = 0x7FFF_FFFF
"""`positional_max` of an endpoint that takes `*args`."""


class EndpointInfo:
    """One endpoint of a class.

    A plain positional call of n arguments fits when `positional_min <= n <= positional_max`, which the send path
    checks by count alone; anything else is left to `bind`.
    """

    __slots__ = (
        "_signature",
        "concurrent",
        "function",
        "group",
        "is_async",
        "keyword_any",
        "keyword_names",
        "kind",
        "limit",
        "name",
        "positional_max",
        "positional_min",
        "qualname",
        "quick",
    )

    name: str
    """The endpoint's name on the mesh."""
    qualname: str
    """`Class.name` as written, for errors."""
    function: Callable[..., Any]
    """The plain function, called with the actor first."""
    kind: EndpointKind
    """`async` and `sync` return the answer, `stream` yields answers, `port` answers through its Port."""
    quick: Callable[..., object] | None
    """The function again when it is an `async def` that runs alone: the usual endpoint, which a worker awaits itself."""
    is_async: bool
    """Whether it runs on the loop; else on the actor's thread. It tells the two sorts of `port` apart."""
    concurrent: bool
    """Whether it may run beside others."""
    limit: int | None
    """How many of it, or of its group, may run at once."""
    group: str | None
    """The group whose endpoints share one limit."""
    positional_min: int
    """The fewest positional arguments of a call without keywords; above the most when there is no such call."""
    positional_max: int
    """The most positional arguments, `POSITIONAL_ANY` for any number."""
    keyword_names: frozenset[str]
    """Arguments that may be given by name."""
    keyword_any: bool
    """Whether it takes `**kwargs`."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        kind: EndpointKind,
        is_async: bool,
        concurrent: bool = False,
        limit: int | None = None,
        group: str | None = None,
    ) -> None:
        self.name = function.__name__
        self.qualname = function.__qualname__.rpartition("<locals>.")[2]
        self.function = function
        self.kind = kind
        self.is_async = is_async
        self.quick = function if kind == "async" and not concurrent else None
        self.concurrent = concurrent
        self.limit = limit
        self.group = group
        self._signature: inspect.Signature | None = None
        self._count_arguments()

    def _count_arguments(self) -> None:
        given_by_roost = 2 if self.kind == "port" else 1
        code = getattr(self.function, "__code__", None)
        if code is None or hasattr(self.function, "__wrapped__"):
            self._count_by_signature()
            return
        # Straight from the code object: a signature costs 20 µs an endpoint, at the import of every user's module.
        count = code.co_argcount
        has_args = bool(code.co_flags & inspect.CO_VARARGS)
        defaults = len(getattr(self.function, "__defaults__", None) or ())
        keyword_only = code.co_varnames[count : count + code.co_kwonlyargcount]
        keyword_defaults: Mapping[str, object] = getattr(self.function, "__kwdefaults__", None) or {}
        self.positional_min = max(0, count - given_by_roost - defaults)
        self.positional_max = POSITIONAL_ANY if has_args else max(0, count - given_by_roost)
        named_from = max(given_by_roost, code.co_posonlyargcount)
        self.keyword_names = frozenset((*code.co_varnames[named_from:count], *keyword_only))
        self.keyword_any = bool(code.co_flags & inspect.CO_VARKEYWORDS)
        if any(name not in keyword_defaults for name in keyword_only):
            self._refuse_plain_calls()

    def _count_by_signature(self) -> None:
        kinds = inspect.Parameter
        parameters = self.signature.parameters.values()
        positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
        self.positional_min = sum(p.default is kinds.empty for p in positional)
        has_args = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
        self.positional_max = POSITIONAL_ANY if has_args else len(positional)
        self.keyword_names = frozenset(
            p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
        )
        self.keyword_any = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
        if any(p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty for p in parameters):
            self._refuse_plain_calls()

    def _refuse_plain_calls(self) -> None:
        # A keyword is required, so no call by position alone fits.
        self.positional_min, self.positional_max = 1, 0

    @property
    def signature(self) -> inspect.Signature:
        """The arguments that callers pass: without the actor itself, and without the port that Roost passes."""
        if self._signature is None:
            signature = inspect.signature(self.function)
            parameters = list(signature.parameters.values())
            given_by_roost = 2 if self.kind == "port" else 1
            # A first `*args` takes what Roost passes and stays.
            while given_by_roost and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
                del parameters[0]
                given_by_roost -= 1
            self._signature = signature.replace(parameters=parameters)
        return self._signature

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """Check that a call's arguments fit.

        Raises:
            TypeError: They do not; the text gives the endpoint and its signature.
        """
        if not kwargs and self.positional_min <= len(args) <= self.positional_max:
            return
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.qualname}{self.signature}: {error}") from None

    def with_limit(self, limit: int | None) -> EndpointInfo:
        """The same endpoint with another limit."""
        return self if limit == self.limit else self._with(limit=limit)

    def with_function(self, function: Callable[..., Any]) -> EndpointInfo:
        """The same endpoint, taking the same arguments, that runs something else."""
        return self._with(function=function, quick=None if self.quick is None else function)

    def _with(self, **changes: object) -> EndpointInfo:
        info = EndpointInfo.__new__(EndpointInfo)
        info.__setstate__(self.__getstate__() | changes)
        return info

    def __getstate__(self) -> dict[str, object]:
        # Classes of `__main__` travel by value, and annotations in a signature may not.
        return {name: getattr(self, name) for name in self.__slots__ if name != "_signature"}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._signature = None

    def __repr__(self) -> str:
        return f"EndpointInfo({self.qualname}{self.signature}, kind={self.kind!r})"
