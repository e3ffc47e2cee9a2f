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


def test_the_module_is_linked_with_no_vendors_library():
    """They are opened at run time, where they are."""
    script = "from roost import _roost; print(_roost.__file__)"
    module = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    linked = subprocess.run(["ldd", module], capture_output=True, text=True, check=True).stdout
    assert "libc.so" in linked
    for name in ("ibverbs", "rdmacm", "mlx5", "hip", "hsa", "rccl", "nccl", "cuda", "torch"):
        assert name not in linked
