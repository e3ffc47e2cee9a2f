"""Prints what the named extra of pyproject.toml needs, with what the package itself needs, one requirement a line."""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
print("\n".join([*project["dependencies"], *project["optional-dependencies"][sys.argv[1]]]))
