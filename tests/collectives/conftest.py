"""What tests of collectives share: their actors lie beside them."""

import os
import sys

import pytest

sys.path.append(os.path.dirname(__file__))


@pytest.fixture(autouse=True)
def needs_torch():
    pytest.importorskip("torch")
