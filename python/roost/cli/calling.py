"""`--join`: this host tells a driver of itself, which does not know where it is."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from roost.rendezvous import NotProvedError, announce

if TYPE_CHECKING:
    from roost.addresses import Address

__all__ = ["Calls"]

_logger = logging.getLogger("roost.host")

# Before the driver is called again.
_AGAIN_S = 1.0


class Calls:
    """The calls of an agent to a driver, as long as it has none.

    Args:
        driver: where that takes calls.
        key: the text of the key.
        name: what this host is called.
    """

    def __init__(self, driver: Address, key: bytes, name: str) -> None:
        self._driver, self._key, self._name = driver, key, name
        self._free = asyncio.Event()
        self._free.set()
        self._told = ""

    def has_driver(self, has: bool) -> None:
        """A driver has attached this host, or has gone."""
        if has:
            self._free.clear()
        else:
            self._free.set()

    async def go_on(self, listening: str) -> None:
        """Call whenever no driver is there, for ever.

        Args:
            listening: where the driver finds this host; ":PORT" where it is to see the rest by itself.
        """
        while True:
            await self._free.wait()
            try:
                refusal = await announce(self._driver, self._key, self._name, listening)
            except NotProvedError as error:
                self._tell(logging.WARNING, f"{self._driver.text} was called in vain: {error}")
            except OSError as error:
                self._tell(logging.INFO, f"{self._driver.text} is not reached: {error.strerror or error}; going on")
            else:
                self._tell(logging.WARNING, refusal and f"{self._driver.text} does not want this host: {refusal}")
            await asyncio.sleep(_AGAIN_S)

    def _tell(self, level: int, text: str) -> None:
        """Once, however often it is so."""
        if text != self._told:
            self._told = text
            if text:
                _logger.log(level, "%s", text)
