"""Ids of what this process makes."""

from __future__ import annotations

import os

__all__ = ["DESK", "new_id"]

# The mesh of every process's desk (desk.py); no new id is even.
DESK = 2


def new_id() -> int:
    """An id of a proc, a mesh or a port: unlike every other in the job.

    From the system, not from `random`: programs seed that, and procs that seed alike would give the same ids.
    """
    return int.from_bytes(os.urandom(8), "little") >> 1 | 1
