"""Endurance: each test has a short form, which `make test` runs, and a long one, for `make soak`; both print what they saw."""

import os
import sys

import pytest

# Tests, and the procs that they start, import modules that lie beside them and beside the system tests.
sys.path += [os.path.dirname(__file__), os.path.join(os.path.dirname(__file__), "..", "system")]

from leftovers import leaving_nothing

_figures = pytest.StashKey[list]()


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="the long form of the endurance tests; takes hours")


def is_long(config):
    # Without tests/soak on the command line this file is read too late to add an option.
    return config.getoption("--long", default=False)


def pytest_configure(config):
    config.stash[_figures] = []


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.path.is_relative_to(os.path.dirname(__file__)):
            item.add_marker(pytest.mark.timeout(0 if is_long(config) else 120))


def pytest_terminal_summary(terminalreporter, config):
    if config.stash[_figures]:
        terminalreporter.section("endurance")
        for line in config.stash[_figures]:
            terminalreporter.write_line(line)


@pytest.fixture
def nothing_left():
    """No process, no descriptor, no shared memory is left behind."""
    with leaving_nothing():
        yield


@pytest.fixture
def rounds(request):
    """How often: `rounds(short, long)`."""
    return lambda short, long: long if is_long(request.config) else short


@pytest.fixture
def figures(request):
    """Notes a line that is shown at the end."""
    return lambda text: request.config.stash[_figures].append(f"{request.node.name}: {text}")
