"""`python -m roost.selftest`: what it says where there is no GPU, and that each of its lines can pass and fail."""

import json
import os
import subprocess
import sys

import pytest

from roost import this_host

pytestmark = pytest.mark.timeout(120)


def test_without_a_gpu_every_line_says_that_it_is_not_there():
    environment = {**os.environ, "ROOST_GPU_PLATFORM": "cuda"}
    command = [sys.executable, "-m", "roost.selftest", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["name"] for line in lines] == ["CUDA", "NCCL", "GPUs", "collectives"]
    assert lines[2]["said"].startswith("a GPU is not available: cuda: ")
    assert {line["status"] for line in lines[2:]} == {"not there"}


def test_memory_is_shared_with_a_process_and_exported_through_the_stand_in(standin):
    environment = {**os.environ, "ROOST_GPU_PLATFORM": "rocm", "LD_LIBRARY_PATH": standin}
    command = [sys.executable, "-m", "roost.selftest", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    lines = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    for number in (0, 1):
        assert lines[f"GPU {number} IPC"]["said"] == "4 MiB, written by two processes", done.stderr
        assert lines[f"GPU {number} dma-buf"]["said"] == "4 MiB"
        assert lines[f"GPU {number}"]["status"] == "not there"
    assert done.returncode == 0


FAULTY = """
import ctypes, os, sys
from roost import selftest
gpu = ctypes.CDLL("libamdhip64.so.7")
gpu.standin_fail(sys.argv[1].encode(), int(sys.argv[2]))
print(selftest._tried("it", lambda: getattr(selftest, sys.argv[3])(0)).status)
"""


@pytest.mark.parametrize(
    ("function", "code", "what", "status"),
    [
        ("hipIpcGetMemHandle", 1, "shared_with_a_process", "fail"),
        ("hipIpcGetMemHandle", 801, "shared_with_a_process", "not there"),
        ("hipMemGetHandleForAddressRange", 1, "dma_buf", "fail"),
        ("hipMemGetHandleForAddressRange", 801, "dma_buf", "not there"),
    ],
)
def test_what_the_driver_refuses_fails_and_what_it_has_not_is_not_there(standin, function, code, what, status):
    environment = {**os.environ, "ROOST_GPU_PLATFORM": "rocm", "LD_LIBRARY_PATH": standin}
    command = [sys.executable, "-c", FAULTY, function, str(code), what]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{status}\n", done.stderr


def test_a_kernel_that_makes_other_bits_fails(monkeypatch):
    import torch

    from roost import selftest

    cpu, seen = torch.device("cpu"), []
    for name, work in selftest.KERNELS.items():
        assert "the same as on the CPU" in selftest.compare(name, cpu)

        def wrong(place, work=work):
            made = work(place).clone()
            if not seen:
                made.view(-1).view(torch.uint8)[-1] ^= 1
            seen.append(place)
            return made

        seen.clear()
        monkeypatch.setitem(selftest.KERNELS, name, wrong)
        line = selftest._tried(name, lambda name=name: selftest.compare(name, cpu))
        assert line.status == "fail"
        assert line.said.startswith("AssertionError: 1 of ")


def test_memory_goes_there_and_back(monkeypatch):
    import torch

    from roost import selftest

    monkeypatch.setattr(selftest, "_BYTES", 1 << 20)
    assert selftest.memory(torch.device("cpu")) == "1 MiB there and back"


async def test_the_ring_of_all_gpus_through_the_stand_in(standin):
    from rings import StandinRing, WrongRing

    from roost import selftest

    async with this_host().spawn_procs({"gpus": 3}, preload=["torch", "rings"]) as procs:
        assert "over 3 ranks" in await selftest.turn(procs, StandinRing, standin)
        with pytest.raises(AssertionError, match="rank 1: the sum is"):
            await selftest.turn(procs, WrongRing, standin)
