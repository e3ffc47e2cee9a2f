"""The training demo in its small form: one seed, with a failure every few seconds and without."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo"
MISSING = [name for name in ("torch", "torchft", "matplotlib") if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.chaos,  # it needs both cores to itself: `make chaos` runs it
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; `make demo` installs it"),
]


@pytest.fixture(scope="module", params=[(), ("--every-step",)], ids=["DiLoCo", "every step"])
def demo(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("demo")
    picture = folder / "demo.png"
    command = [sys.executable, DEMO, "--quick", "--out", picture, *request.param]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=280, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr, picture


def test_failures_happened_and_the_run_went_on(demo):
    stdout, stderr, _ = demo
    assert "step  120/120" in stderr
    assert "on purpose: " in stderr
    assert int(re.search(r"^(\d+) failures: ", stdout, re.MULTILINE)[1]) >= 1


def test_the_losses_come_down_together(demo):
    stdout, _, _ = demo
    found = re.search(r"final held-out loss: with failures (\d\.\d+), without (\d\.\d+)", stdout)
    with_failures, without = map(float, found.groups())
    # From 4.85, a guess among 128 characters; in so few steps both come down well below 3.
    assert with_failures < 3
    assert without < 3
    assert abs(with_failures - without) < 0.3


def test_the_picture_is_there(demo):
    _, _, picture = demo
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert 10_000 < len(data) < 200_000
