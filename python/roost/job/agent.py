"""The command that every kind of job has started on its hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["agent_command"]


def agent_command(
    python: str, listen: str, *, key_file: str | None = None, announce: str | None = None, name: str = "",
    more: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """What is started on a host.

    Args:
        python: its interpreter.
        listen: where the agent listens.
        key_file: the job's key.
        announce: the file in which the agent tells of itself.
        name: what the host calls itself; its own name when left out.
        more: other arguments.
    """
    given = {"--listen": listen, "--key-file": key_file, "--announce": announce, "--name": name}
    options = [text for option, value in given.items() if value for text in (option, value)]
    return [python, "-m", "roost", "host", *options, *more]
