"""The pages tell the truth: programs run, and paths, tests, links and make targets are there.

A block fenced as `python` is a whole program and is run. A fragment is fenced as `py`, and must compile.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benches/*.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NAMED_PATH = re.compile(r"`((?:rust|python|tests|docs|examples|benches|scripts|fuzz)/[\w./-]*[\w/])(?:::(\w+))?`")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
TARGET = re.compile(r"(?:`|^\$ )make ([a-z-]+)", re.MULTILINE)


def blocks(language: str) -> list[object]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in FENCE.finditer(text):
            if match[1] == language:
                line = text.count("\n", 0, match.start()) + 1
                found.append(pytest.param(match[2], id=f"{page.relative_to(ROOT)}:{line}"))
    return found


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("program", blocks("python"))
def test_a_program_on_a_page_runs(program: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(program)
    run = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert not run.stderr


@pytest.mark.parametrize("fragment", blocks("py"))
def test_a_fragment_on_a_page_compiles(fragment: str) -> None:
    # Top-level `await` and `async with` are what fragments are for.
    compile(fragment, "fragment", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_paths_and_tests_that_a_page_names_are_there(page: Path) -> None:
    missing = []
    for path, test in NAMED_PATH.findall(page.read_text()):
        target = ROOT / path
        if not target.exists():
            missing.append(path)
        elif test and not re.search(rf"(?:def|fn) {test}\b", target.read_text()):
            missing.append(f"{path}::{test}")
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    assert not [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_make_targets_that_a_page_names_are_there(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert not [target for target in TARGET.findall(page.read_text()) if target not in targets]


@pytest.mark.parametrize("page", ["docs/semantics.md", "docs/core-rules.md", "docs/training-rules.md"])
def test_every_row_names_a_test(page: str) -> None:
    rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.endswith("| shown by |") and set(row) > set("|- ")]
    assert rows
    assert not [row for row in rows if not any(test for _, test in NAMED_PATH.findall(row.split("|")[-2]))]
