"""Serves the application until it has to stop; running requests may then finish within the drain.

Afterwards the rest is ended. Uvicorn would cancel the rest: whole requests would be answered with a fault of the
server, streams cut in the midst of an event, and nobody could tell either from a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable
from types import FrameType

import msgspec
import structlog
import uvicorn

from gateway.http.envelope import Application
from gateway.http.uvicorn_server import UvicornServer

log = structlog.get_logger(__name__)

ENDING_S = 2.0
"""Seconds at the end of the drain in which the remaining requests are ended; in a short drain, its second half."""

BEGINNING_TURNS = 3
"""The turns of the event loop after which an accepted connection is among those that a stop closes."""

MAX_ACCEPT_S = 5.0
"""The most seconds of a stop in which waiting connections are accepted; in a short drain, a quarter of it. The event
loop accepts one in each of its turns, and a full queue has thousands."""


class Stages(msgspec.Struct, frozen=True, kw_only=True):
    """The actions for the application while the server stops."""

    leave: Callable[[], None]
    """The function that makes probes answer that this gateway is about to stop.

    Replies end their connections from then on.
    """

    begin_drain: Callable[[], None]
    """The function that ends work that would otherwise never end, such as streams of news."""

    end_generation: Callable[[], None]
    """The function that aborts requests on engines, so that their readers answer with an error."""


class Server(UvicornServer):
    """The server of one gateway.

    A stop has two parts. For lame_duck_s seconds requests are still taken, and the gateway says that it is about to
    stop, so that a balancer sends new ones elsewhere; then for drain_s seconds running requests may finish.
    """

    def __init__(
        self, config: uvicorn.Config, app: Application, stages: Stages, *, drain_s: float, lame_duck_s: float = 0.0
    ) -> None:
        super().__init__(config)
        self.app = app
        self._stages = stages
        self._drain_s = drain_s
        self._lame_duck_s = lame_duck_s
        self._forced = asyncio.Event()
        self._is_leaving = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to stop; a second signal ends both the wait for the balancer and the drain."""
        if self._is_leaving:
            self._forced.set()
            self.should_exit = True
            return
        self._is_leaving = True
        self._stages.leave()
        if self._lame_duck_s > 0:
            log.info("lame_duck", seconds=self._lame_duck_s)
            asyncio.get_running_loop().call_later(self._lame_duck_s, self._begin_drain)
        else:
            self._begin_drain()

    def _begin_drain(self) -> None:
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running requests finish within the drain, then end the rest."""
        self._stages.begin_drain()
        ending = asyncio.create_task(self._end_requests())
        try:
            await self._accept_waiting()
            await super().shutdown(sockets)
        finally:
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)

    async def _accept_waiting(self) -> None:
        """Accept the connections that wait in the kernel, which closes them along with the last copy of the listener.

        After MAX_ACCEPT_S the listener is closed all the same.
        """
        loop = asyncio.get_running_loop()
        ends_at_s = loop.time() + min(MAX_ACCEPT_S, self._drain_s / 4)
        poll = select.poll()
        for server in self.servers:
            for listener in server.sockets:
                poll.register(listener.fileno(), select.POLLIN)
        num_quiet = 0
        while loop.time() < ends_at_s and not self._forced.is_set():
            num_quiet = 0 if poll.poll(0) else num_quiet + 1
            if num_quiet > BEGINNING_TURNS:
                return
            await asyncio.sleep(0)

    async def _end_requests(self) -> None:
        """End requests in order: first those on which engines work, then all that have no reply yet.

        The latter may wait for another gateway. Connections end last.

        An export that is still being sent then is cut off: it took longer than the drain allows.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(self._drain_s - ENDING_S, self._drain_s / 2)):
                await self._forced.wait()
        log.warning("drain_ends", num_connections=len(self.server_state.connections))
        self._stages.end_generation()
        await asyncio.sleep(ENDING_S / 2)
        self.app.cut_off()
        await asyncio.sleep(ENDING_S / 2)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
