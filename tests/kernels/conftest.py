"""The kernels are compiled once a session; without a compiler or torch these tests are skipped."""

import shutil

import pytest

from .host import Kernels


@pytest.fixture(scope="session")
def kernels(tmp_path_factory) -> Kernels:
    pytest.importorskip("torch")
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler here")
    return Kernels(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="session")
def compared():
    """Counts what was compared; the sum is printed at the end."""
    counts: dict[str, int] = {}
    yield counts
    print("\nvalues compared with torch:", ", ".join(f"{name} {count:,}" for name, count in counts.items()))
