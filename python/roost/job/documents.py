"""Documents that schedulers are given: what is added to one, and how people read it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from roost.errors import Unavailable

__all__ = ["Document", "as_yaml", "merged"]

Document = dict[str, Any]
"""One, as JSON has it."""


def merged(base: Any, more: Any) -> Any:
    """A document with what another one adds or changes: lists of things with names by their names, other lists one behind the other."""
    if isinstance(base, dict) and isinstance(more, dict):
        found = dict(base)
        for key, value in more.items():
            found[key] = merged(base[key], value) if key in base else value
        return found
    if isinstance(base, list) and isinstance(more, list):
        named = {one["name"]: one for one in more if isinstance(one, dict) and "name" in one}
        known = [one["name"] for one in base if isinstance(one, dict) and "name" in one]
        changed = [
            merged(one, named[one["name"]]) if isinstance(one, dict) and one.get("name") in named else one
            for one in base
        ]
        return changed + [one for one in more if not (isinstance(one, dict) and one.get("name") in known)]
    return more


def as_yaml(documents: list[Document], extra: str) -> str:
    """Documents for people.

    Args:
        documents: they.
        extra: the extra of Roost's that brings what writes YAML.

    Raises:
        Unavailable: that is not installed.
    """
    try:
        yaml: Any = import_module("yaml")
    except ImportError as error:
        raise Unavailable(f"to show YAML takes PyYAML ({error}): pip install 'roost[{extra}]'") from None

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # of a module that is imported by its name
        """Repeats what is there twice, and shows scripts as they are."""

        def ignore_aliases(self, _data: object) -> bool:
            return True

    def text(dumper: Any, value: str) -> Any:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return str(yaml.dump_all(documents, Dumper=Dumper, sort_keys=False, width=120))
