"""`python -m roost shell`: a prompt with a job's hosts attached."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import roost
from roost.cli.job import job_in
from roost.cli.program import program
from roost.errors import RoostError

if TYPE_CHECKING:
    import argparse

__all__ = ["add_to"]

_BANNER = """\
{status}
`hosts` has the meshes, `job` is the job; whatever waits gives a reply, of which you take the result():
>>> procs = hosts.{mesh}.spawn_procs()
>>> procs.exec(["uname", "-n"]).result()
Ctrl-D lets go of the hosts; the job stays."""


def add_to(commands: Any) -> None:
    """Say what the command takes."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "shell",
        help="a prompt with a job's hosts attached",
        description="Wait for the hosts of a job that was applied, attach them, and give a Python prompt.",
    )
    parser.add_argument("job", metavar="FILE.py[:NAME]", help="where the job is defined, as for `python -m roost job`")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    import code

    try:
        job = job_in(options.job)
        with job.state().result() as hosts:
            names = {"roost": roost, "job": job, "hosts": hosts}
            if sys.stdin.isatty():
                import readline
                import rlcompleter

                readline.set_completer(rlcompleter.Completer(names).complete)
                readline.parse_and_bind("tab: complete")
            banner = _BANNER.format(status=job.status().result(), mesh=next(iter(hosts)))
            code.interact(banner=banner, local=names, exitmsg="")
    except (RoostError, LookupError, ValueError, TypeError, OSError) as error:
        print(f"{program()} shell: {error}", file=sys.stderr)  # noqa: T201 - what a command says
        return 1
    return 0
