"""Uvicorn's server as this gateway runs it: without signal handlers, and without polling for its end.

Knows nothing of the application.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator

import uvicorn

DATE_EVERY_S = 1.0


class UvicornServer(uvicorn.Server):
    """A server that ends as soon as `should_exit` is set, from whatever thread."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._exits = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        """True if the server is to end."""
        return self._should_exit

    @should_exit.setter
    def should_exit(self, exits: bool) -> None:
        self._should_exit = exits
        if exits and self._loop is not None:
            self._loop.call_soon_threadsafe(self._exits.set)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the gateway: uvicorn would raise them again before the ledger is written."""
        yield

    async def main_loop(self) -> None:
        """Keep the date in replies up to date until the server is to end."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_EVERY_S):
                    await self._exits.wait()
