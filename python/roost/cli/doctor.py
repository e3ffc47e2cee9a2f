"""`python -m roost doctor`: what one-sided memory and GPUs find on this host, and what to do about it."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

from roost.cli.device_checks import device_checks
from roost.cli.findings import Finding, System
from roost.cli.gpu_checks import gpu_checks
from roost.cli.host_checks import host_checks
from roost.cli.xgmi import xgmi

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["add_to", "examine"]

_MARKS = {"ok": "ok  ", "note": "note", "warning": "WARN", "error": "FAIL"}


def add_to(commands: Any) -> None:
    """Say what the command takes."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="what roost finds of RDMA and GPUs on this host, and what to do about it",
        description="Look at what one-sided memory needs (RDMA devices, limits, the kernel's settings) and at GPUs and their libraries. "
        "Each finding comes with its fix. The exit status is 0 when nothing is to be done, and 1 when something is (WARN: it is slower "
        "so; FAIL: it does not work so).",
    )
    parser.add_argument("--json", action="store_true", help="as one JSON document")
    parser.add_argument(
        "--pair", nargs=2, metavar=("A", "B"), help="measure between two hosts, the addresses of their agents"
    )
    parser.add_argument("--key-file", metavar="FILE", help="the key of those agents")
    parser.add_argument("--root", default="/", help="where /sys, /proc and /dev are: of a container's host, say")
    parser.set_defaults(run=_run)


def examine(system: System) -> list[Finding]:
    """Everything that is found on a host."""
    return [*host_checks(system), *device_checks(system), *xgmi(system)]


def _run(options: argparse.Namespace) -> int:
    findings = [*examine(System(options.root)), *gpu_checks()]
    measured: dict[str, Any] | None = None
    if options.pair is not None:
        from roost.cli.pair import measure

        try:
            measured = asyncio.run(measure(options.pair, options.key_file))
        except Exception as error:  # noqa: BLE001 - whatever keeps two hosts apart is what was asked for
            fix = "python -m roost host has to run on both, with the same key; --key-file FILE here"
            findings.append(Finding("pair", "error", f"{' and '.join(options.pair)}: {error}", fix))
    if options.json:
        document = {"findings": [finding._asdict() for finding in findings], "pair": measured}
        print(json.dumps(document, indent=2))  # noqa: T201 - what a command says
    else:
        _show(findings, measured)
    return int(any(finding.level in ("warning", "error") for finding in findings))


def _show(findings: Sequence[Finding], measured: dict[str, Any] | None) -> None:
    write = sys.stdout.write
    for finding in findings:
        write(f"{_MARKS[finding.level]}  {finding.check}: {finding.text}\n")
        if finding.fix:
            write(f"      → {finding.fix}\n")
    if measured is None:
        return
    write(f"\nfrom {measured['from']} to {measured['to']}, by {measured['backend']}\n")
    for row in measured["reads"]:
        write(
            f"  read of {row['bytes']:>10} bytes: {row['microseconds']:10.1f} µs  {row['gigabytes_per_s']:7.2f} GB/s\n"
        )
