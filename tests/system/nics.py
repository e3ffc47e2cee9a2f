"""The ways of one-sided memory, for its tests; NICs are soft-RoCE's in the machine of `make test-rdma`, elsewhere a stub's."""

import os
import subprocess
from pathlib import Path

WAYS = ["same_host", "shared", "tcp", "between_hosts", "ibverbs"]

STUB = Path(__file__).parents[2] / "rust" / "roost-rdma" / "tests" / "stub_verbs.c"


def on_soft_roce():
    return "ROOST_TEST_SOFT_ROCE" in os.environ


def forced(way, library):
    """The environment variables that make bytes take a way."""
    if way == "ibverbs":
        return {"ROOST_RDMA": way, **library}
    return {"ROOST_RDMA": way} if way == "tcp" else {}


def library_in(folder):
    """Those by which a program and its procs find NICs; the program is at one end of the machine's cable."""
    if on_soft_roce():
        return {"ROOST_RDMA_DEVICES": "rxe0"}
    library = folder / "libstub.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-pthread", STUB, "-o", library], check=True)
    return {"ROOST_IBVERBS": str(library), "ROOST_STUB_VERBS_FILE": str(folder / "shared")}


def of_host(point, _incarnation):
    """The environment of a proc: two hosts are the two ends of the cable."""
    return {"ROOST_RDMA_DEVICES": f"rxe{point['hosts']}"} if on_soft_roce() else {}


def patient(seconds):
    """As long as that, and longer in the machine, whose processor is emulated."""
    return 10 * seconds if on_soft_roce() else seconds
