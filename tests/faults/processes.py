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
from tests.installation.processes import children, frozen, parent

__all__ = ["Engine", "Gateway", "Postgres"]


class Postgres:
    """A server of the site's own."""

    def __init__(self, data_dir: Path, settings: Mapping[str, str] = MappingProxyType({})) -> None:
        self._server = EmbeddedPostgres(data_dir, settings=settings)
        self.dsn = self._server.start()
        self._pid = asyncio.run(_postmaster(self.dsn))

    def stop(self) -> None:
        self._server.stop()

    def kill(self) -> None:
        """As the kernel ends it when memory runs out; then it recovers."""
        os.kill(self._pid, signal.SIGKILL)
        self._server.stop()
        self._start()

    def is_alive(self) -> bool:
        return self._server.alive()

    def again(self) -> None:
        """Start it once it has ended by itself. Raises EmbeddedPostgresError where it cannot."""
        self._start()

    @property
    def pid(self) -> int:
        return self._pid

    def end(self) -> None:
        """Kill it for good."""
        os.kill(self._pid, signal.SIGKILL)
        self._server.stop()

    def restart(self) -> None:
        with self.stopped():
            pass

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Nobody can connect."""
        self._server.stop()
        try:
            yield
        finally:
            self._start()

    def _start(self) -> None:
        assert self._server.start() == self.dsn
        self._pid = asyncio.run(_postmaster(self.dsn))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Connections stay open and nothing answers."""
        with frozen(self._pid, *children(self._pid)):
            yield


async def _postmaster(dsn: str) -> int:
    conn = await asyncpg.connect(dsn)
    try:
        return parent(await conn.fetchval("SELECT pg_backend_pid()"))
    finally:
        await conn.close()
