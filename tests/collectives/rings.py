"""The self test's ring through the stand-in libraries."""

import standins

from roost.selftest import Ring


class StandinRing(Ring):
    """As it is on a GPU."""

    def __init__(self, libraries):
        standins.use(libraries)


class WrongRing(StandinRing):
    """One rank brings along something else."""

    def _own(self, comm):
        return super()._own(comm) + (comm.rank == 1)
