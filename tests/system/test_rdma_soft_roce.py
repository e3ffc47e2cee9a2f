"""One-sided memory over real libibverbs, in short: the rules between two procs in the machine of `make test-rdma`, which runs them all."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PREPARE_S, RUN_S = 240, 420
# What the machine's script ends with where it cannot be had; it has said why.
NO_MACHINE = 125


def in_the_machine(*command, timeout_s):
    said = subprocess.run(
        [sys.executable, ROOT / "scripts" / "rxe_vm.py", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=timeout_s,
    )  # fmt: skip
    if said.returncode == NO_MACHINE:
        pytest.skip(said.stdout.strip().splitlines()[-1])
    return said


@pytest.mark.timeout(PREPARE_S + RUN_S + 30)
def test_the_rules_hold_by_soft_roce():
    if shutil.which("qemu-system-x86_64") is None and not os.environ.get("CI"):
        pytest.skip("no qemu-system-x86_64: `make test-rdma` installs it")
    in_the_machine("--prepare", timeout_s=PREPARE_S)
    rules = ["tests/system/test_rdma_rules.py", "-k", "ibverbs and proc_reads_proc"]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *rules]
    settings = ["--timeout", str(RUN_S - 30), "--env", "ROOST_TEST_SOFT_ROCE=1"]
    said = in_the_machine(*settings, "--", *tests, timeout_s=RUN_S)
    assert said.returncode == 0, said.stdout
    assert " passed" in said.stdout
