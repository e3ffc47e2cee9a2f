"""The examples beside this file, through two strict checkers with the project's own settings."""

import ast
import inspect
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from roost.host_mesh import HostMesh
from roost.mesh import SpawnOptions
from roost.spawning import spawn_procs

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
EXAMPLES = [HERE / "right.py", HERE / "wrong.py"]


def checked(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(find_spec("mypy") is None, reason="mypy is not installed")
@pytest.mark.timeout(120)
def test_mypy_infers_what_is_right_and_refuses_what_is_wrong() -> None:
    # The package's own errors are `make check`'s: a test of the examples must not hide behind them.
    run = checked("mypy", "--follow-imports=silent", *map(str, EXAMPLES))
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.skipif(find_spec("basedpyright") is None, reason="basedpyright is not installed")
@pytest.mark.timeout(120)
def test_pyright_infers_what_is_right_and_refuses_what_is_wrong() -> None:
    run = checked("basedpyright", "--outputjson", *map(str, EXAMPLES))
    report = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] == len(EXAMPLES)
    complaints = [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
    ]
    assert not complaints, "\n".join(complaints)


def test_the_options_that_checkers_see_are_those_that_there_are() -> None:
    pages = [ast.parse((ROOT / f"python/roost/{name}.py").read_text()) for name in ("mesh", "host_mesh")]
    classes = {node.name: node for page in pages for node in ast.walk(page) if isinstance(node, ast.ClassDef)}

    def fields(name: str) -> list[str]:
        return [
            node.target.id
            for node in classes[name].body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]

    parameters = inspect.signature(spawn_procs).parameters.values()
    assert fields("_ProcOptions") == [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    for name in fields("_ProcOptions"):
        assert f"\n            {name}: " in (HostMesh.spawn_procs.__doc__ or "")
    assert fields("_ActorOptions") == list(SpawnOptions.KNOWN)
