"""`python -m benches.python`: runs the cases on Roost, on the floor, and on other frameworks that are installed.

Each round runs each case on each peer in a fresh process, one after another and in turning order, so that a slow
stretch of the machine falls on all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from .cases import CASES
from .peers import load
from .report import Results, python_table, rust_table

REPOSITORY = Path(__file__).resolve().parents[2]
CASE_SECONDS_MAX = 300
IMPORT_PROBE = "import time; start = time.perf_counter(); {}; print((time.perf_counter() - start) * 1e3)"

Outcome = tuple[list[tuple[str, list[float], str]], str | None]


def python_of(peer: str, others: str) -> str:
    """Roost and the floor run here; the frameworks that they are compared with may live in another environment."""
    return sys.executable if peer in ("roost_peer", "floor") else others


def run_import(peer: str, python: str) -> Outcome:
    """Times the peer's import in fresh interpreters."""
    probe = IMPORT_PROBE.format(load_import_line(peer))
    samples = []
    for _ in range(3):
        done = subprocess.run([python, "-c", probe], capture_output=True, text=True, check=True, timeout=120)
        samples.append(float(done.stdout.splitlines()[-1]))
    return [("import", samples, "ms")], None


def load_import_line(peer: str) -> str:
    """Reads it from the module's text: the framework itself may not be installed here."""
    for line in (Path(__file__).parent / "peers" / f"{peer}.py").read_text().splitlines():
        if line.strip().startswith("import_line = "):
            return line.split('"')[1]
    return load(peer).import_line


def run_case(peer: str, case: str, python: str, log: Path) -> Outcome:
    """Runs one worker; what it prints beside its last line goes to the log."""
    environment = {**os.environ, "BENCH_STARTED": repr(time.monotonic()), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [python, "-m", "benches.python.worker", peer, case]
    with log.open("a") as errors:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            timeout=CASE_SECONDS_MAX,
            check=False,
        )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        return [], f"exit status {done.returncode}, see {log}"
    result = json.loads(lines[-1])
    return [tuple(figure) for figure in result["figures"]], result["why"]


def installed(peer: str, python: str) -> bool:
    """Says whether the peer's framework can be imported."""
    probe = subprocess.run([python, "-c", load_import_line(peer)], capture_output=True, timeout=120, check=False)
    return probe.returncode == 0


def measure(peers: list[str], cases: list[str], rounds: int, others: str) -> Results:
    """Runs everything, and says each figure as it comes."""
    results: Results = {}
    log = REPOSITORY / "target" / "bench.log"
    log.parent.mkdir(exist_ok=True)
    for number in range(rounds):
        for case in cases:
            for turn in range(len(peers)):
                peer = peers[(number + turn) % len(peers)]
                python = python_of(peer, others)
                figures, why = run_import(peer, python) if case == "import" else run_case(peer, case, python, log)
                for name, samples, unit in figures:
                    results.setdefault(peer, {}).setdefault(name, []).append((samples, unit))
                said = ", ".join(f"{name}: {sorted(s)[len(s) // 2]:.4g} {unit}" for name, s, unit in figures)
                print(f"round {number + 1} {case:13} {peer:11} {said}{'  — ' + why if why else ''}", flush=True)
    return results


def write(page: Path, table: str, rounds: int) -> None:
    """Writes the page that the repository keeps."""
    processor = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    machine = f"{os.cpu_count()} CPUs ({processor}), Linux {platform.release()}, CPython {platform.python_version()}"
    page.write_text(
        f"""# What Roost costs

Written by `make bench` on {time.strftime("%Y-%m-%d")}: {machine}.
A figure is the median of {rounds} rounds' medians, with the lowest and the highest round. Read the ratios: the same
machine gives other times an hour later, and both sides of a ratio ran in turn.

## From Python

The floor is `peers/floor_wire.py`: uvloop, a Unix socket and pickle by hand, without routing, order, bounds or
supervision. A payload's figure counts both ways.

{table}

## The core alone

Each beside the same bytes over a bare socket or a bare copy, where there is such a thing. Criterion runs them: it
leaves its medians as JSON, which this table is made of, and compares with the run before.

{rust_table(REPOSITORY / "target" / "criterion")}

The hot path is also counted in instructions (`make check-instructions`), which do not move with the machine's mood.
"""
    )


def main() -> int:
    """Parses the command line and runs."""
    parser = argparse.ArgumentParser(prog="python -m benches.python", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", default=",".join(["import", *CASES]), help="comma-separated: %(default)s")
    parser.add_argument("--peers", default="", help="frameworks beside Roost and the floor: monarch,ray,xoscar")
    parser.add_argument("--peers-python", default=sys.executable, help="the interpreter that has them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path, help="the page to write")
    options = parser.parse_args()
    peers = ["roost_peer", "floor"]
    for peer in filter(None, options.peers.split(",")):
        if installed(peer, options.peers_python):
            peers.append(peer)
        else:
            print(f"{peer} is not installed in {options.peers_python}: left out")
    results = measure(peers, options.cases.split(","), options.rounds, options.peers_python)
    table = python_table(results, peers)
    print(f"\n{table}")
    if options.write:
        write(options.write, table, options.rounds)
        print(f"\nwrote {options.write}")
    return 0 if results.get("roost_peer") else 1


if __name__ == "__main__":
    sys.exit(main())
