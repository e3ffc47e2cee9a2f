"""Tables out of the runs: each figure beside the floor's, with what is aimed at."""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

AIMS = {
    "import": "≤ 1.1",
    "cold start, 1 proc": "≤ 1.1",
    "cold start, 8 procs": "≤ 0.6",
    "call, other process": "≤ 1.0",
    "call, same process": "≤ 2.5",
    "pipelined, window 100": "≥ 2",
    "pipelined, window 1,000": "≥ 2",
    "broadcast": "≥ 2",
    "fan-out, 16 procs": "≤ 0.8",
    "fan-out, 1,024 actors in one proc": "≤ 0.5",
    "numpy echo, 64 MiB": "≥ 3",
    "spawn, 16 procs": "≤ 0.4",
    "1,000 actors in one proc": "≤ 3",
    "idle proc, memory of its own": "≤ 1.2",
    "kill -9 to the caller's exception": "≤ 2",
    "CPU a call, all processes": "≤ 1.0",
    "context switches a call": "≤ 1.25",
}
"""A figure's aim, as a multiple of the floor's."""


class Summary(NamedTuple):
    """The median of the rounds' medians, and the lowest and highest round."""

    median: float
    low: float
    high: float
    unit: str


Results = dict[str, dict[str, list[tuple[list[float], str]]]]
"""Peer → figure → one (samples, unit) a round."""


def summarise(rounds: list[tuple[list[float], str]]) -> Summary:
    """Reduces each round to its median, and the rounds to theirs."""
    medians = [statistics.median(samples) for samples, _ in rounds]
    return Summary(statistics.median(medians), min(medians), max(medians), rounds[0][1])


def short(value: float) -> str:
    """Three figures, no exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def python_table(results: Results, peers: list[str]) -> str:
    """One row a figure, in the order they were measured."""
    names = list(dict.fromkeys(name for peer in peers for name in results.get(peer, {})))
    others = [peer for peer in peers if peer not in ("roost_peer", "floor")]
    head = ["case", "unit", "roost", "floor", "roost / floor", "aim", *others]
    rows = [f"| {' | '.join(head)} |", "| --- | --- |" + " ---: |" * (len(head) - 2)]
    for name in names:
        seen = {peer: summarise(results[peer][name]) for peer in peers if name in results.get(peer, {})}
        roost, floor = seen.get("roost_peer"), seen.get("floor")
        cells = [name, next(iter(seen.values())).unit]
        cells += [f"{short(x.median)} ({short(x.low)}–{short(x.high)})" if x else "–" for x in (roost, floor)]
        cells.append(f"**{roost.median / floor.median:.2f}**" if roost and floor and floor.median else "–")
        cells.append(AIMS.get(name, ""))
        cells += [short(seen[peer].median) if peer in seen else "–" for peer in others]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def rust_table(criterion: Path) -> str:
    """Criterion's medians, with the floor of the same group beside each."""
    groups: dict[str, dict[str, float]] = {}
    for estimates in sorted(criterion.glob("*/**/new/estimates.json")):
        group, *function = estimates.parent.parent.relative_to(criterion).parts
        median = json.loads(estimates.read_text())["median"]["point_estimate"]
        groups.setdefault(group, {})["/".join(function)] = median
    rows = ["| group | what | ns | floor | × floor |", "| --- | --- | ---: | ---: | ---: |"]
    for group, functions in groups.items():
        for function, nanoseconds in functions.items():
            what, _, tail = function.partition("/")
            floor = functions.get(f"floor/{tail}" if tail else "floor")
            if what == "floor":
                continue
            ratio = f"{nanoseconds / floor:.2f}" if floor else ""
            rows.append(f"| {group} | {function} | {short(nanoseconds)} | {short(floor) if floor else ''} | {ratio} |")
    return "\n".join(rows)
