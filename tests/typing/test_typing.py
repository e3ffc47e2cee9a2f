"""The options that type checkers see. What they must accept and refuse is beside this file, and is checked by `make check`."""

import ast
import inspect
from pathlib import Path

from roost.host_mesh import HostMesh
from roost.mesh import SpawnOptions
from roost.spawning import spawn_procs

ROOT = Path(__file__).parents[2]


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
