"""Who can share a host's memory, and what is there when it cannot be had: nobody shares it then, and nothing fails."""

import os
import resource
import subprocess
import sys

import pytest

from roost._roost import HostGroup

# Opens an offer as another process would, after it has changed what the test says; 0 where it could.
_OPEN = (
    "import os, sys; {before}; from roost._roost import HostGroup; sys.exit(HostGroup.open(sys.argv[1], 2, 1) is None)"
)


def opened_elsewhere(offer, before="pass", wrapped=()):
    """Whether a process that is otherwise like this one opens it."""
    code = _OPEN.format(before=before)
    ran = subprocess.run(
        [*wrapped, sys.executable, "-c", code, offer], check=False, capture_output=True, text=True, timeout=60
    )
    assert ran.stderr == ""
    return ran.returncode == 0


@pytest.fixture
def offered():
    group, offer = HostGroup.make(2)
    yield offer
    del group


def test_another_process_of_the_same_user_can(offered):
    assert opened_elsewhere(offered)


@pytest.mark.skipif(os.getuid() != 0, reason="root becomes another user")
def test_another_user_and_another_container_cannot(offered):
    # The package is read before: another user may not reach its folder.
    as_nobody = "import roost._roost; os.setgid(65534); os.setuid(65534)"
    assert not opened_elsewhere(offered, as_nobody)
    in_container = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*in_container, "true"], check=False, capture_output=True).returncode != 0:
        pytest.skip("no new namespace of processes here")
    assert not opened_elsewhere(offered, wrapped=in_container)


def test_without_descriptors_or_memory_there_is_no_group():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        assert HostGroup.make(2) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        assert HostGroup.make(2) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert HostGroup.make(2) is not None


def test_more_ranks_than_share_memory_have_none():
    assert HostGroup.make(65) is None
    assert HostGroup.make(0) is None
