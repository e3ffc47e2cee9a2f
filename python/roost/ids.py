"""What is drawn: ids of what this process makes, and chances.

From the system, not from `random`. Programs seed that, and procs that seed alike would draw the same; a draw of Roost's would change what
the program draws next; and beside a script may lie a `random.py` of its own.
"""

from __future__ import annotations

import os

__all__ = ["DESK", "chance", "new_id"]

# The mesh of every process's desk (desk.py); no new id is even.
DESK = 2


def new_id() -> int:
    """An id of a proc, a mesh or a port: unlike every other in the job."""
    return int.from_bytes(os.urandom(8), "little") >> 1 | 1


def chance() -> float:
    """A number from 0 to just below 1."""
    return int.from_bytes(os.urandom(6), "little") / (1 << 48)
