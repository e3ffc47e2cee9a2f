"""The commands of `roost`, which is `python -m roost`: `host`, `key`, `doctor`, `job`, `shell` and `completion`, a module each."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from roost._roost import __version__
from roost.cli import completion, doctor, host, job, key, shell
from roost.cli.program import program

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the process's exit status.

    Args:
        arguments: what stands behind the program's name; what this process was given when left out.
    """
    parser = argparse.ArgumentParser(
        prog=program(), description="Roost on a host of its own, and the jobs that have hosts."
    )
    parser.add_argument("--version", action="version", version=f"roost {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (host, key, doctor, job, shell, completion):
        command.add_to(commands)
    parser.set_defaults(root=parser)
    options = parser.parse_args(arguments)
    try:
        return int(options.run(options))
    except BrokenPipeError:
        # Whoever read this has gone; Python would complain when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
