"""What tests of more than one kind share: nothing is left behind; short and long forms; figures that are shown at the end."""

import gc
import os
import sys

import pytest

# Tests, and the procs that they start, import modules that lie beside them and beside the system tests.
sys.path.append(os.path.join(os.path.dirname(__file__), "system"))

# By this name everywhere: imported under two, it would look for the processes of two different marks.
import nics
from leftovers import leaving_nothing
from times import percentile, shown

_HERE = os.path.dirname(__file__)
_WITH_LONG_FORM = tuple(os.path.join(_HERE, name) for name in ("chaos", "soak"))
_SHORT_TIMEOUT_S = 120


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="the long form of tests/chaos and tests/soak; takes hours")
    parser.addoption(
        "--on-hosts", action="store_true", help="the procs of tests/system live on three agents of this machine"
    )


def pytest_collection_modifyitems(config, items):
    is_long = config.getoption("--long")
    for item in items:
        # What a file or a test says of itself counts; but the long form takes as long as it takes.
        if str(item.path).startswith(_WITH_LONG_FORM) and (is_long or item.get_closest_marker("timeout") is None):
            item.add_marker(pytest.mark.timeout(0 if is_long else _SHORT_TIMEOUT_S))


def pytest_collection_finish():
    """What all tests' modules have imported, torch among it, is looked through once, not at the beginning and the end of each test."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure():
    """At the end of the interpreter it is taken apart as always: some libraries complain of what is left then."""
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter):
    reports = [report for of_a_kind in terminalreporter.stats.values() for report in of_a_kind]
    ended = [report for report in reports if getattr(report, "when", "") == "teardown"]
    lines = [line for report in ended for name, line in report.user_properties if name == "figure"]
    if lines:
        terminalreporter.section("figures")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture
def nothing_left():
    """No process, no descriptor, no shared memory is left behind."""
    with leaving_nothing():
        yield


@pytest.fixture(scope="session")
def nics_library(tmp_path_factory):
    """The environment by which NICs are found; one for all, since the driver's process opens such a library once."""
    return nics.library_in(tmp_path_factory.mktemp("nics"))


@pytest.fixture(params=nics.WAYS)
def way(request, monkeypatch):
    """A way that the bytes of one-sided memory take."""
    monkeypatch.delenv("ROOST_RDMA", raising=False)
    library = request.getfixturevalue("nics_library") if request.param == "ibverbs" else {}
    for name, value in nics.forced(request.param, library).items():
        monkeypatch.setenv(name, value)
    return request.param


@pytest.fixture
def rounds(request):
    """How often: `rounds(short, long)`."""
    return lambda short, long: long if request.config.getoption("--long") else short


@pytest.fixture
def figures(request, record_property):
    """Notes a line that is shown at the end, also when the test ran in another process."""
    return lambda text: record_property("figure", f"{request.node.name}: {text}")


@pytest.fixture
def promised(rounds, figures):
    """Notes times, and in the long form holds them to a promise: `promised(what, seconds, percent, within_s)`.

    In the short form the machine is busy with other things.
    """

    def hold(what, seconds, percent, within_s):
        figures(f"{what}: {shown(seconds)}; promised: p{percent} within {1000 * within_s:g} ms")
        if rounds(short=False, long=True):
            assert percentile(seconds, percent) <= within_s, what

    return hold
