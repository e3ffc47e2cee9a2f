"""`python -m roost key`: make the key that hosts and their driver share."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from roost.cli.program import program
from roost.keys import make_key

if TYPE_CHECKING:
    import argparse

__all__ = ["add_to"]


def add_to(commands: Any) -> None:
    """Say what the command takes."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "key",
        help="make a key for hosts and their driver",
        description="Make a key: 64 hexadecimal digits in a new file that only you can read. Copy the file to each host, as you "
        "would a password, and give it to `python -m roost host --key-file` there and to `roost.attach(key_file=)` here. "
        "A file that is there already is left as it is, and the exit status is 1.",
    )
    parser.add_argument("file", metavar="FILE", help="the file to write")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        make_key(options.file)
    except OSError as error:
        print(f"{program()} key: {error}", file=sys.stderr)  # noqa: T201 - what a command says
        return 1
    return 0
