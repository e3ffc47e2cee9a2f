"""Which CPUs a proc is bound to: near its GPUs, by their PCI addresses, on a machine that is made up."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from roost import Bind, placing
from roost.errors import Unavailable

# Where the stand-in's two devices are; the folders have small letters.
PLACES = ["0000:c0:00.0", "0000:c1:00.0"]


class Machine:
    """Nodes with their CPUs, and GPUs at them."""

    def __init__(self, root):
        self.root = root

    def has(self, nodes, gpus):
        for node, cpus in nodes.items():
            self.write(f"devices/system/node/node{node}/cpulist", f"{cpus}\n")
        for place, node in zip(PLACES, gpus, strict=True):
            if node is not None:
                self.write(f"bus/pci/devices/{place}/numa_node", f"{node}\n")

    def write(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(placing, "_SYS", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr("roost._roost.gpu_devices", lambda _: ("rocm", [{"pci": place.upper()} for place in PLACES]))
    return Machine(tmp_path)


def near():
    return placing.cpus_of(Bind(near_gpu=True))


def test_gpus_of_one_node_and_of_two(machine):
    machine.has({0: "0-3", 1: "4,6-7"}, [1, 1])
    assert near() == [4, 6, 7]
    machine.has({}, [0, 1])
    assert near() == [0, 1, 2, 3, 4, 6, 7]


def test_cpus_that_this_process_may_not_run_on_are_left_out(machine, monkeypatch):
    machine.has({0: "0-3", 1: "4-7"}, [1, 1])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 5})
    assert near() == [5]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(
        ValueError, match=r"the GPUs are at 0000:c0:00\.0, .* near CPUs \[4, 5, 6, 7\], .* may run on \[0, 1\]"
    ):
        near()


@pytest.mark.parametrize("node", [-1, None])
def test_a_machine_that_does_not_say_leaves_it_where_it_is(machine, node):
    machine.has({0: "0-7"}, [node, node])
    assert near() is None


def test_what_cannot_be_near_a_gpu_is_told_why(machine, monkeypatch):
    machine.has({}, [3, 3])
    with pytest.raises(ValueError, match=r"Bind\(near_gpu=True\): this host has no such node .*node3"):
        near()
    monkeypatch.setattr("roost._roost.gpu_devices", lambda _: ("rocm", []))
    with pytest.raises(ValueError, match="sees no GPU; give it some with gpus_per_proc"):
        near()

    def none_here(_):
        raise Unavailable("a GPU is not available: rocm: tried much")

    monkeypatch.setattr("roost._roost.gpu_devices", none_here)
    with pytest.raises(ValueError, match=r"Bind\(near_gpu=True\): a GPU is not available: rocm: tried much"):
        near()
    for other in ({"cpus": [0]}, {"numa_node": 0}):
        with pytest.raises(ValueError, match="finds the CPUs by itself"):
            Bind(near_gpu=True, **other)


ASKED = """
import ctypes, sys
from roost import Bind, placing
ctypes.CDLL(sys.argv[1])
placing._SYS = sys.argv[2]
placing.os.sched_getaffinity = lambda _: set(range(8))
print(placing.cpus_of(Bind(near_gpu=True)))
"""


def test_the_addresses_are_those_that_hip_says(tmp_path):
    source = Path(__file__).parents[2] / "hip/tests/standin/gpu.c"
    library = tmp_path / "libamdhip64.so.7"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-pthread", "-DROCM", source, "-o", library], check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler here")
    Machine(tmp_path).has({0: "0-3", 1: "4-7"}, [None, 1])
    environment = {**os.environ, "ROOST_GPU_PLATFORM": "rocm"}
    done = subprocess.run(
        [sys.executable, "-c", ASKED, library, tmp_path], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[4, 5, 6, 7]\n"
