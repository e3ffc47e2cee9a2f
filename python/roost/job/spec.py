"""`MeshSpec`: what one mesh of a job is to have; and the checks of names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from roost.values import Frozen, check_integer, check_items

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MeshSpec", "check_job_name", "lists_of_texts", "specs_from", "tables"]

_MESH_NAME = re.compile(r"[a-z]([a-z0-9_]{0,38}[a-z0-9])?")
_JOB_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
# What attributes of the state are called already.
_RESERVED = ("driver", "get", "items", "job", "keys", "restarts", "values")


class MeshSpec(Frozen):
    """One mesh of a job: how many hosts, and what each of them is to have. None leaves it to the scheduler.

    Raises:
        ValueError: a number that makes no sense.
    """

    hosts: int
    """How many hosts."""
    gpus: int | None = None
    """GPUs of each."""
    cpus: int | None = None
    """Processors of each."""
    memory_mib: int | None = None
    """Memory of each, in MiB."""
    at_least: int | None = None
    """With how many hosts the mesh may do when others are lost; all of them when left out."""
    args: tuple[str, ...] = ()
    """More arguments for the scheduler, such as `--constraint=mi300x`, as they are."""

    def __post_init__(self) -> None:
        check_integer("MeshSpec", "hosts", self.hosts, least=1)
        for name in ("gpus", "cpus", "memory_mib", "at_least"):
            value = getattr(self, name)
            if value is not None:
                check_integer("MeshSpec", name, value, least=0 if name == "gpus" else 1)
        if self.at_least is not None and self.at_least > self.hosts:
            raise ValueError(f"MeshSpec at_least={self.at_least} of {self.hosts} hosts can never be")
        self._convert("args", check_items("MeshSpec", "args", self.args, '["--constraint=mi300x"]'))

    @property
    def needed(self) -> int:
        """How many hosts there must be."""
        return self.hosts if self.at_least is None else self.at_least

    def to_json(self) -> dict[str, Any]:
        """What is not left out, as a JSON document."""
        found = {name: getattr(self, name) for name in MeshSpec._field_names}
        found["args"] = list(self.args) or None
        return {name: value for name, value in found.items() if value is not None}


def specs_from(meshes: object) -> dict[str, MeshSpec]:
    """The meshes of a job, by name.

    Args:
        meshes: how many hosts, or a `MeshSpec`, by name.

    Raises:
        TypeError: it is no mapping of such.
        ValueError: there is none, or a name that cannot be used everywhere.
    """
    if not isinstance(meshes, Mapping):
        raise TypeError(f'meshes={meshes!r}: give hosts by name, such as {{"trainers": 4}}')
    found: dict[str, MeshSpec] = {}
    for name, spec in meshes.items():
        if not isinstance(name, str) or not _MESH_NAME.fullmatch(name) or name in _RESERVED:
            raise ValueError(
                f"{name!r} is no name for a mesh: give 1 to 40 small letters, digits and _, a letter first, and none of "
                f"{', '.join(_RESERVED)}"
            )
        found[name] = spec if isinstance(spec, MeshSpec) else MeshSpec(spec)
    if not found:
        raise ValueError('a job has at least one mesh: give hosts by name, such as {"trainers": 4}')
    return found


def check_job_name(name: object) -> str:
    """The name of a job: it names a folder, and travels on schedulers' command lines.

    Raises:
        ValueError: it cannot.
    """
    if not isinstance(name, str) or not _JOB_NAME.fullmatch(name):
        raise ValueError(
            f"name={name!r} is no name for a job: give 1 to 63 letters, digits, '.', '_' and '-', neither first nor last a sign"
        )
    return name


def lists_of_texts(kind: str, **given: Sequence[str]) -> dict[str, Any]:
    """Settings of a job that are lists of texts, as they are kept.

    Args:
        kind: the job's class.
        **given: the settings.

    Raises:
        TypeError: one is none.
    """
    found = {name: list(check_items(kind, name, value, '["…"]')) for name, value in given.items()}
    for name, texts in found.items():
        for one in texts:
            if not _is_a(str, one):
                raise TypeError(f"{kind} {name}: {one!r} is no text: give a list of such")
    return found


def tables(kind: str, **given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Settings of a job that are tables, empty when left out, as they are kept.

    Args:
        kind: the job's class.
        **given: the settings.

    Raises:
        TypeError: one is none.
    """
    for name, value in given.items():
        if value is not None and not _is_a(Mapping, value):
            raise TypeError(f"{kind} {name}={value!r}: give a dict")
    return {name: dict(value or {}) for name, value in given.items()}


def _is_a(kind: type, value: object) -> bool:
    """Whether users gave what the types say."""
    return isinstance(value, kind)
