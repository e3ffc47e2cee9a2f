"""Hosts with a real network between them: namespaces of this machine, whose wires are cut and heal, and who is in between."""

import os
import sys

import pytest

# Tests, and the procs that they start, import modules that lie beside them.
sys.path.append(os.path.dirname(__file__))

from leftovers import leaving_nothing
from network import Network, reason_to_skip


@pytest.fixture(scope="session")
def namespaces():
    """Skips where there can be none."""
    reason = reason_to_skip()
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture
def network(namespaces, tmp_path):
    """A driver's end of a network, and as many hosts as the test wants; nothing of them is left."""
    with leaving_nothing(), Network(tmp_path) as made:
        yield made
