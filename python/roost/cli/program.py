"""By what name this program was called: it stands in what it says."""

from __future__ import annotations

import os
import sys

__all__ = ["program"]


def program() -> str:
    """`roost`, or `python -m roost` where that was typed."""
    return "python -m roost" if os.path.basename(sys.argv[0]) == "__main__.py" else "roost"
