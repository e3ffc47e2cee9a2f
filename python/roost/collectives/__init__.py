"""Collectives between the ranks of a mesh, which a death releases: `await mesh.communicator()` in each rank.

The guide's chapter on collectives shows how.
"""

from roost.collectives.communicator import Communicator
from roost.collectives.process_group import ProcessGroup

__all__ = ["Communicator", "ProcessGroup"]
