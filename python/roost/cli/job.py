"""`python -m roost job`: what a program does with its jobs, from a shell."""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import TYPE_CHECKING, Any

from roost.cli.program import program
from roost.errors import RoostError

if TYPE_CHECKING:
    import argparse

    from roost.job import Job, JobStatus

__all__ = ["add_to", "job_in"]

_EPILOG = """\
FILE.py defines the job at its top level, as `job = SlurmJob(…)`; it is run as a module, so what stands below
`if __name__ == "__main__":` is not. :NAME says which, where there are several.

exit status: 0 done; 1 it could not be done, or the job has failed; 2 the command line makes no sense.
"""


def add_to(commands: Any) -> None:
    """Say what the command takes."""
    import argparse

    parser: argparse.ArgumentParser = commands.add_parser(
        "job",
        help="apply a job, see how it is, end it",
        description="Apply the job that a program defines, see how it is, read its logs, end it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    for name, text in (
        ("apply", "ask for its hosts, unless they have been asked for"),
        ("status", "how it is, host by host"),
        ("logs", "what one of its hosts wrote"),
        ("kill", "end it, and wait until it has ended"),
        ("render", "what would be submitted; needs no scheduler"),
    ):
        action = actions.add_parser(name, help=text, description=text.capitalize() + ".")
        action.add_argument("job", metavar="FILE.py[:NAME]", help="where it is defined")
        if name == "logs":
            action.add_argument("mesh", help="its mesh; `driver` for the job's own script")
            action.add_argument("rank", type=int, nargs="?", default=0, help="which of its hosts (default: 0)")
            action.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
        if name == "apply":
            action.add_argument("--wait", action="store_true", help="wait until its hosts are there")
        action.add_argument("--json", action="store_true", help="as JSON: one document, or for logs one a line")
        action.set_defaults(run=_run, action=name)


def _run(options: argparse.Namespace) -> int:
    try:
        job = job_in(options.job)
        return _ACTIONS[options.action](job, options)
    except (RoostError, LookupError, ValueError, TypeError, OSError) as error:
        print(f"{program()} job {options.action}: {error}", file=sys.stderr)  # noqa: T201 - what a command says
        return 1


def _apply(job: Job, options: argparse.Namespace) -> int:
    status = job.apply().result()
    return _show(job.ready().result() if options.wait else status, options)


def _status(job: Job, options: argparse.Namespace) -> int:
    return _show(job.status().result(), options)


def _kill(job: Job, options: argparse.Namespace) -> int:
    _show(job.kill().result(), options)
    return 0


def _logs(job: Job, options: argparse.Namespace) -> int:
    for line in job.logs(options.mesh, options.rank, follow=options.follow):
        _say(json.dumps({"mesh": options.mesh, "rank": options.rank, "line": line}) if options.json else line)
    return 0


def _render(job: Job, options: argparse.Namespace) -> int:
    text = job.render()
    _say(json.dumps({"name": job.name, "kind": job.kind, "text": text}) if options.json else text.rstrip("\n"))
    return 0


_ACTIONS = {"apply": _apply, "status": _status, "logs": _logs, "kill": _kill, "render": _render}


def _show(status: JobStatus, options: argparse.Namespace) -> int:
    _say(json.dumps(status.to_json(), indent=2) if options.json else str(status))
    return int(status.failed)


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - what a command says


def job_in(where: str) -> Job:
    """The job that a file defines.

    Raises:
        LookupError: it defines none of that name, or several.
        OSError: it cannot be read.
    """
    from roost.job import Job

    path, _, name = where.partition(":")
    # As the program itself would find what lies beside it.
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    defined = {key: one for key, one in runpy.run_path(path).items() if isinstance(one, Job)}
    if name:
        if name not in defined:
            raise LookupError(f"{path} defines no job {name!r} at its top level: it has {', '.join(defined) or 'none'}")
        return defined[name]
    if len(set(map(id, defined.values()))) != 1:
        raise LookupError(
            f"{path} defines {', '.join(defined) or 'no job'} at its top level: name one, as {path}:{next(iter(defined), 'job')}"
        )
    return next(iter(defined.values()))
