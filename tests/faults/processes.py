"""Processes of a site that can be killed, frozen and started again: its own PostgreSQL, the fake engine, a gateway.

Each keeps its address: a gateway that starts again serves on the socket that it had, where clients wait for it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import asyncpg

from gateway.postgres.embedded import EmbeddedPostgres
from tests.installation.engines import Engine as Engine
from tests.installation.gateway_process import GatewayProcess as Gateway
from tests.installation.networks import inside
from tests.installation.processes import children, frozen, parent

__all__ = ["Engine", "Gateway", "Postgres"]


class Postgres:
    """A server of the site's own.

    network: the name of the network namespace in which the server listens.
    """

    def __init__(
        self, data_dir: Path, settings: Mapping[str, str] = MappingProxyType({}), *, network: str = ""
    ) -> None:
        self._server = EmbeddedPostgres(data_dir, settings=settings)
        self._network = network
        with inside(network):
            self.dsn = self._server.start()
        self._pid = asyncio.run(_postmaster(self.dsn))

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        """Kill the server with SIGKILL, and start it again, which recovers the database."""
        os.kill(self._pid, signal.SIGKILL)
        self._server.stop()
        self._start()

    def is_alive(self) -> bool:
        return self._server.alive()

    def start_again(self) -> None:
        """Start the server again after it ended by itself.

        Raises EmbeddedPostgresError: when the server can't start.
        """
        self._start()

    @property
    def pid(self) -> int:
        return self._pid

    def end(self) -> None:
        """Kill the server, and do not start it again."""
        os.kill(self._pid, signal.SIGKILL)
        self._server.stop()

    def restart(self) -> None:
        with self.stopped():
            pass

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stop the server until the context is left, so that no client can connect."""
        self._server.stop()
        try:
            yield
        finally:
            self._start()

    def _start(self) -> None:
        with inside(self._network):
            assert self._server.start() == self.dsn
        self._pid = asyncio.run(_postmaster(self.dsn))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the server until the context is left: connections stay open and nothing answers."""
        with frozen(self._pid, *children(self._pid)):
            yield


async def _postmaster(dsn: str) -> int:
    conn = await asyncpg.connect(dsn)
    try:
        return parent(await conn.fetchval("SELECT pg_backend_pid()"))
    finally:
        await conn.close()
