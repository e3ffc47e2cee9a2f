"""Actors that own others. Imported by procs: no pytest here."""

import os

from roost import Actor, endpoint, this_host


class Owned(Actor):
    """Writes its lives down."""

    def __init__(self, path):
        with open(path, "a") as file:
            file.write(f"{os.getpid()}\n")

    @endpoint
    async def pid(self) -> int:
        return os.getpid()


class Owner(Actor):
    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def own_procs(self):
        """Has processes of its own."""
        self.procs = this_host().spawn_procs({"ranks": 2}, name="below")
        return list(await self.procs.spawn("below", Owner).pid.call())

    @endpoint
    async def own(self, procs, path):
        """Has an actor on procs that are not its own."""
        self.owned = await procs.spawn("owned", Owned, path)
        return self.owned
