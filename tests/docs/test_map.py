"""The map of `ARCHITECTURE.md` is whole: a module that is not on it fails here."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
CRATES = [ROOT / "rust/roost-core/src", ROOT / "rust/roost-py/src", ROOT / "hip/src"]


def map_of(heading: str) -> str:
    """What the map says under one of its three headings."""
    block = re.search(rf"^{heading}.*?(?=^\S)", PAGE, re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[0]


def top_modules(crate: Path) -> list[str]:
    """The modules of a crate: a file, or a folder with what its module is made of."""
    files = [file.name for file in crate.glob("*.rs") if file.name != "lib.rs"]
    return files + [f"{folder.name}/" for folder in crate.iterdir() if (folder / "mod.rs").exists()]


def nested_modules() -> list[tuple[Path, str]]:
    """(the file of the module that it is part of, its name), of every module inside another."""
    found = []
    for crate in CRATES:
        for file in sorted(crate.rglob("*.rs")):
            folder = file.parent
            if folder == crate or file.name in ("mod.rs", "tests.rs") or "tests" in folder.relative_to(crate).parts:
                continue
            parent = folder / "mod.rs"
            found.append((parent if parent.exists() else folder.with_suffix(".rs"), file.stem))
    return found


def test_every_python_module_is_on_the_map():
    told = set(re.findall(r"\b\w+\.py\b", map_of("python/roost/")))
    rooms = ("", "rdma", "collectives", "kernels", "ft", "job")
    there = {file.name for room in rooms for file in (ROOT / "python/roost" / room).glob("*.py")}
    assert told == there


@pytest.mark.parametrize("crate", CRATES, ids=lambda crate: crate.parent.name)
def test_every_rust_module_is_on_the_map(crate: Path):
    told = map_of(f"{crate.relative_to(ROOT)}/")
    assert not [name for name in top_modules(crate) if name not in told]


@pytest.mark.parametrize(("parent", "name"), nested_modules(), ids=lambda value: getattr(value, "name", value))
def test_a_module_inside_another_is_told_of_at_its_top(parent: Path, name: str):
    top = "".join(line for line in parent.read_text().splitlines(keepends=True) if line.startswith("//!"))
    assert f"`{name}`" in top, f"{parent.relative_to(ROOT)} does not say what {name} is"
