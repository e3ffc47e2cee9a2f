import subprocess
import sys

HEAVY = (
    "numpy", "torch", "cloudpickle", "uvloop", "dataclasses", "json", "datetime", "random", "pickle", "roost.runtime",
)  # fmt: skip


def test_import_is_quick_because_it_leaves_much_out():
    script = (
        "import asyncio, sys\n"
        "before = set(sys.modules)\n"
        "import roost\n"
        f"print(*sorted(set({HEAVY!r}) & (set(sys.modules) - before)))\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
