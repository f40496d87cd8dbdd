"""A database that is far away: a proxy in front of it forwards everything after a delay."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.drills.drill import Drill, Outcome, measure
from tests.drills.ground import Ground, running_ground
from tests.drills.traffic import Traffic
from tests.faults.processes import Postgres
from tests.patience import PATIENCE_S

AWAY_S, DELAY_S = 15.0, 0.25
"""The seconds for which the database is far away, and the seconds by which everything is delayed each way meanwhile."""


class DelayProxy:
    """A TCP proxy, in a thread of its own, that delays all bytes. delay_s: the delay each way, which may be changed."""

    def __init__(self, socket_path: str) -> None:
        self.delay_s = 0.0
        self.port = 0
        self._socket_path = socket_path
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stops = asyncio.Event()
        self._listens = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._listens.wait(PATIENCE_S)

    def stop(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stops.set)
        self._thread.join(PATIENCE_S)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._listens.set()
        await self._stops.wait()
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_unix_connection(self._socket_path)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self._pass(reader, there_writer), self._pass(there_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward the bytes of one side, each piece after a delay, and close the other side at the end."""
        waiting, some = deque[tuple[float, bytes]](), asyncio.Event()

        async def write() -> None:
            while True:
                await some.wait()
                due_s, data = waiting.popleft()
                if not waiting:
                    some.clear()
                await asyncio.sleep(due_s - time.monotonic())
                if not data:
                    return
                writer.write(data)
                await writer.drain()

        writing = asyncio.create_task(write())
        try:
            while not writing.done():
                data = await reader.read(65536)
                waiting.append((time.monotonic() + self.delay_s, data))
                some.set()
                if not data:
                    break
            await writing
        except OSError:
            writing.cancel()
        finally:
            writer.close()


@contextmanager
def delayed(postgres: Postgres) -> Iterator[tuple[DelayProxy, str]]:
    """Give a proxy in front of a server, and the URL that leads through it."""
    parts = urlsplit(postgres.dsn)
    proxy = DelayProxy(f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432")
    try:
        yield proxy, f"postgresql://{parts.username}:{parts.password}@127.0.0.1:{proxy.port}/postgres?sslmode=disable"
    finally:
        proxy.stop()


def far_database(folder: Path, rng: random.Random) -> Outcome:
    (folder / "data").mkdir()
    postgres = Postgres(folder / "postgres")

    with delayed(postgres) as (proxy, dsn), running_ground(folder / "data", postgres=postgres, dsn=dsn) as ground:

        def fault(ground: Ground, traffic: Traffic, rng: random.Random) -> str:
            before = traffic.num_answered
            proxy.delay_s = DELAY_S
            time.sleep(AWAY_S)
            proxy.delay_s = 0.0
            return f"{traffic.num_answered - before} answers at {2 * DELAY_S} s a round trip"

        return measure(ground, fault, rng)


DRILLS = (Drill("database far", "requests go on at half a second a round trip", far_database),)
