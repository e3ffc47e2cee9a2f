"""The command that every kind of job has started on its hosts."""

from __future__ import annotations

__all__ = ["agent_command"]


def agent_command(python: str, listen: str, key_file: str, announce: str, name: str = "") -> list[str]:
    """What is started on a host.

    Args:
        python: its interpreter.
        listen: where the agent listens.
        key_file: the job's key.
        announce: the file in which the agent tells of itself.
        name: what the host calls itself; its own name when left out.
    """
    named = ["--name", name] if name else []
    return [python, "-m", "roost", "host", "--listen", listen, "--key-file", key_file, "--announce", announce, *named]
