"""What tests of collectives share: their actors lie beside them, and run over gloo, and over RCCL by its stand-in."""

import os
import sys

import pytest

sys.path.append(os.path.dirname(__file__))


@pytest.fixture(autouse=True)
def needs_torch():
    pytest.importorskip("torch")


@pytest.fixture(scope="session")
def standin(tmp_path_factory):
    """The folder of the stand-in libraries."""
    pytest.importorskip("torch")
    import standins

    folder = standins.build(tmp_path_factory.mktemp("standins"))
    if folder is None:
        pytest.skip("no C compiler here")
    return folder


@pytest.fixture(params=["gloo", "rccl"])
def libraries(request):
    """What ranks are made with: None for gloo, or the folder of the stand-ins."""
    return None if request.param == "gloo" else request.getfixturevalue("standin")
