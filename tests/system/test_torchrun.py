"""Hosts out of a program that torchrun started."""

import os
import subprocess
import sys

import pytest

import roost

pytest.importorskip("torch")
HERE = os.path.dirname(__file__)


async def test_without_torchrun_it_says_so():
    with pytest.raises(RuntimeError, match="for programs that torchrun started"):
        await roost.attach_torchrun()


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("nothing_left")
def test_each_host_of_torchrun_is_one_of_the_mesh():
    port = 20000 + os.getpid() % 20000
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=roost", "--local-addr=127.0.0.1", "with_torchrun.py",
    ]  # fmt: skip
    nodes = [
        subprocess.Popen(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [node.communicate() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "".join(out for out, _ in said) == "{'hosts': 2, 'gpus': 2} [0, 0, 0, 0]\n"
