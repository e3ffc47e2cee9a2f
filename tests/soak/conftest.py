"""Endurance: each test has a short form, which `make test` runs, and a long one, for `make soak`; both print what they saw."""

import os
import sys

# Tests, and the procs that they start, import modules that lie beside them.
sys.path.append(os.path.dirname(__file__))
