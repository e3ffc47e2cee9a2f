"""One peer, one case, one fresh process: `python -m benches.python.worker PEER CASE`. Its last line is JSON."""

from __future__ import annotations

import asyncio
import json
import sys

from .cases import CASES, Figure
from .peers import NotOffered, load


async def work(peer_name: str, case_name: str) -> dict[str, object]:
    """Runs the case; gives its figures, and why there are no more when the peer does not offer the rest."""
    peer = load(peer_name)
    figures: list[Figure] = []
    why = None
    await peer.open()
    try:
        async for figure in CASES[case_name](peer):
            figures.append(figure)  # noqa: PERF401  # what came before a NotOffered is kept
    except NotOffered as error:
        why = str(error)
    await peer.close()
    return {"figures": figures, "why": why}


def main() -> None:
    """Runs on uvloop where the peer's interpreter has it."""
    try:
        from uvloop import run
    except ImportError:
        run = asyncio.run
    result = run(work(sys.argv[1], sys.argv[2]))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
