"""Serves the application until it is told to stop, then what runs may finish within the drain, and the rest is ended.

Uvicorn would cancel what is left: whole requests would be answered with a fault of the server, streams cut in the midst
of an event, and nobody could tell either from a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator
from types import FrameType

import structlog
import uvicorn

from gateway.http.envelope import Application

log = structlog.get_logger(__name__)

ENDING_S = 2.0
"""The last part of the drain, of a short one the second half."""


class Server(uvicorn.Server):
    """end_generation: aborts what engines work on, so that its readers answer with an error."""

    def __init__(
        self, config: uvicorn.Config, app: Application, drain_s: float, end_generation: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self.app = app
        self._drain_s = drain_s
        self._end_generation = end_generation
        self._hurried = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leaves signals to us: uvicorn would raise them again before the ledger is written."""
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A second signal ends the drain."""
        if self.should_exit:
            self._hurried.set()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_requests())
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)

    async def _end_requests(self) -> None:
        """End requests in order: first those on which engines work, then all that have no reply yet, such as requests
        that wait for another gateway; then connections.

        An export that is still being sent then is worth nothing without its end, or goes to somebody who does not read.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(self._drain_s - ENDING_S, self._drain_s / 2)):
                await self._hurried.wait()
        log.warning("drain_ends", num_connections=len(self.server_state.connections))
        self._end_generation()
        await asyncio.sleep(ENDING_S / 2)
        self.app.cut_off()
        await asyncio.sleep(ENDING_S / 2)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
