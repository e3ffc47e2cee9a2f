"""Tests of jobs share modules that lie beside them, and an API server."""

import os
import sys

import pytest

sys.path.append(os.path.dirname(__file__))


@pytest.fixture
def kube(tmp_path):
    """An API server of ours; what tests put into `kube.jobs` watches it no more at the end."""
    from fake_kubernetes import serving  # most tests here need none

    with serving(tmp_path) as kube:
        kube.jobs = []
        yield kube
        # Of a job that was not ended, somebody watches.
        for job in kube.jobs:
            job._cluster.close()
