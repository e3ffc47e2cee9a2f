"""A module that writes down in which processes it was imported. Imported by procs: no pytest here."""

import os
from pathlib import Path

from mortal import Mortal

if "IMPORTS" in os.environ:
    with Path(os.environ["IMPORTS"]).open("a") as _file:
        _file.write(f"{os.getpid()}\n")


class Slow(Mortal):
    """What takes long is the import of its module."""
