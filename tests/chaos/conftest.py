"""What is promised when things go wrong, shown on real processes, row by row of the table "Reliability" in `docs/semantics.md`.

Each test has a short form, which `make test` runs, and a long one, for `make chaos`, which holds times to what is promised.
"""

import os
import sys

# Tests, and the procs that they start, import modules that lie beside them.
sys.path.append(os.path.dirname(__file__))

import loops  # noqa: F401 - the first of uvloop's loops opens a pipe that stays
