"""What tests of collectives share: their actors lie beside them, and run over gloo, with and without the
host's memory, and over RCCL by its stand-in.

The tests of a module have one loop, and so one job, all of whose procs are forked from one template that has imported torch.
"""

import os
import sys

import pytest
from leftovers import leaving_nothing

sys.path.append(os.path.dirname(__file__))


@pytest.fixture(scope="module", autouse=True)
def nothing_left_of_the_job():
    """Nothing of it, when its loop has ended."""
    # Whose threads stay.
    pytest.importorskip("torch")
    with leaving_nothing():
        yield


@pytest.fixture(scope="session")
def standin(tmp_path_factory):
    """The folder of the stand-in libraries."""
    pytest.importorskip("torch")
    import standins

    folder = standins.build(tmp_path_factory.mktemp("standins"))
    if folder is None:
        pytest.skip("no C compiler here")
    return folder


@pytest.fixture(params=["memory", "sockets", "rccl"])
def libraries(request):
    """What ranks are made with: None for gloo and this host's memory, "sockets" for gloo alone, or the folder of the stand-ins."""
    ways = {"memory": None, "sockets": "sockets"}
    return ways[request.param] if request.param in ways else request.getfixturevalue("standin")
