import subprocess
import sys
import typing

import pytest

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


def prints(script: str) -> list[str]:
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.split()


def test_a_name_is_shown_before_its_first_use():
    """As completion asks for it, and `did you mean`."""
    assert prints("import roost; print(*sorted({*roost.__all__, 'ft', 'job', 'testing'} - set(dir(roost))))") == []


@pytest.mark.parametrize(
    "name",
    [
        "ft.DiLoCo",
        "job.SlurmJob",
        "kernels.pack",
        "testing.Failures",
        "collectives.Communicator",
        "rdma.Buffer",
        "spmd.run",
    ],
)
def test_parts_are_there_with_roost(name):
    assert prints(f"import roost; print(roost.{name}.__name__)") == [name.split(".")[1]]


def test_many_threads_may_use_roost_for_the_first_time_at_once():
    script = (
        "import random, sys, threading\n"
        "sys.setswitchinterval(1e-6)\n"
        "import roost\n"
        "barrier, failed = threading.Barrier(8), []\n"
        "def use(seed):\n"
        "    names = random.Random(seed).sample(roost.__all__, len(roost.__all__))\n"
        "    barrier.wait()\n"
        "    for name in names:\n"
        "        try:\n"
        "            getattr(roost, name)\n"
        "        except BaseException as error:\n"
        "            failed.append((name, error))\n"
        "threads = [threading.Thread(target=use, args=(seed,)) for seed in range(8)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
        "print(*failed)\n"
    )
    assert prints(script) == []


def test_whatever_is_public_can_be_looked_at_and_pickled():
    script = (
        "import inspect, pickle, pydoc, roost\n"
        "from roost import *\n"
        "from roost.runtime import Runtime\n"
        "assert set(roost.__all__) <= set(globals()) | {'__version__'}\n"
        "things = [getattr(roost, name) for name in roost.__all__ if name != '__version__']\n"
        "for thing in [roost, Runtime, *things]:\n"
        "    pydoc.render_doc(thing)\n"
        "    inspect.getmembers(thing)\n"
        "for thing in things:\n"
        "    assert inspect.ismodule(thing) or pickle.loads(pickle.dumps(thing)) is thing, thing\n"
    )
    assert prints(script) == []


def test_type_hints_of_an_actor_are_its_users_own():
    from roost import Actor, endpoint

    class Worker(Actor):
        size: "int"

        @endpoint
        async def work(self, amount: "int") -> "list[str]":
            return [str(amount)]

    assert typing.get_type_hints(Worker) == {"size": int}
