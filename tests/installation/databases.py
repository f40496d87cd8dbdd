"""One PostgreSQL for a whole test run, whatever the number of its processes, and a database of its own for each test.

The process that pytest was started in starts a keeper, which owns the run's folder and its server (`keeper.py`), before
it forks workers. The keeper ends once its standard input is closed, which the kernel does when the processes that hold
the other end are killed.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit, urlunsplit

import asyncpg

from gateway.db.roles import RUNTIME_ROLE
from tests.patience import PATIENCE_S

MEMORY = Path("/dev/shm")
ROOM_BYTES = 8 << 30
TEMPLATE = "lorikeet_template"
SOCKET_NAME = "keeper.socket"
RUN_VARIABLE = "TEST_RUN_FOLDER"
"""The environment variable that all processes of a run have, so that the keeper can kill leftover ones."""

READY = "ready "
"""The prefix of the keeper's answer with a connection string; any other answer is an error message."""

REPOSITORY = Path(__file__).parents[2]

NUM_WAITING = """
    SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
    WHERE NOT granted AND datname = current_database() AND locktype <> 'object'
"""
"""A query for the number of statements that wait for a lock of another transaction in this database.

Locks of objects are not counted, since notifications of all databases share one.
"""


class Keeper:
    """A child process that owns the folder of a run, and starts PostgreSQL in it at the first request."""

    def __init__(self) -> None:
        has_room = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM_BYTES
        # In memory where there is plenty: a test's own database is megabytes of writes.
        self.folder = Path(tempfile.mkdtemp(prefix="lorikeet-tests-", dir=MEMORY if has_room else None))
        self.folder.chmod(0o711)  # pytest's own folders are closed to the user that PostgreSQL runs as under root
        with socket.socket(socket.AF_UNIX) as listener:  # a client that connects too early waits for the keeper
            listener.bind(str(self.folder / SOCKET_NAME))
            listener.listen()
            command = [sys.executable, "-m", "tests.installation.keeper", str(self.folder), str(listener.fileno())]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                cwd=REPOSITORY,
                pass_fds=[listener.fileno()],
                start_new_session=True,  # a Ctrl-C is for pytest, which still needs the server to end in order
            )

    def close(self) -> None:
        """End the server and remove the folder with everything in it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        shutil.rmtree(self.folder, ignore_errors=True)  # where the keeper was killed


def server_dsn(folder: Path) -> str:
    """Return the connection string of the run's server, which the first call starts.

    Raises RuntimeError: when there can be no server, with the keeper's answer.
    """
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.settimeout(PATIENCE_S)
        keeper.connect(str(folder / SOCKET_NAME))
        answer = b"".join(iter(lambda: keeper.recv(65536), b"")).decode()
    if not answer.startswith(READY):
        raise RuntimeError(f"there is no database: {answer or 'its keeper ended'}")
    return answer.removeprefix(READY)


def with_database(dsn: str, name: str) -> str:
    """Return the connection string of another database of the same server."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


def of_gateways(dsn: str) -> str:
    """Return the connection string of the gateways' role for a database with the current schema on the run's server.

    The string of any other database is returned as it is.
    """
    parts = urlsplit(dsn)
    folder = os.environ.get(RUN_VARIABLE)
    if folder is None or folder not in unquote(parts.query) or parts.path.startswith(("/empty", "/postgres")):
        return dsn
    return urlunsplit(parts._replace(netloc=f"{RUNTIME_ROLE}:{parts.password}@{parts.hostname or ''}"))


async def execute(dsn: str, sql: str) -> None:
    """Run one statement over a connection of its own."""
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute(sql)
    finally:
        await conn.close()


class Databases:
    """A factory of databases on the run's server, under names that no other process of the run uses.

    A context manager: the connection is closed once the context is left.
    """

    def __init__(self, server: str, worker: str) -> None:
        self._server = server
        self._worker = worker
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._connection: asyncpg.Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._connection is not None:
            self._loop.run_until_complete(self._connection.close())
        self._loop.close()

    def create(self, name: str = "test", *, empty: bool = False) -> str:
        """Make a database with the current schema, or without any table, and return its connection string.

        empty: True: without any table.
        """
        unique = f"{name}_{self._worker}_{next(self._numbers)}"
        template = "" if empty else f" TEMPLATE {TEMPLATE} STRATEGY FILE_COPY"
        self._execute(f"CREATE DATABASE {unique}{template}")
        return with_database(self._server, unique)

    def drop(self, dsn: str) -> None:
        """Remove a database, even while others are connected to it."""
        self._execute(f"DROP DATABASE {urlsplit(dsn).path[1:]} WITH (FORCE)")

    @contextmanager
    def one(self, name: str = "test", *, empty: bool = False) -> Iterator[str]:
        """Give a database that is removed when the context is left.

        empty: True: without any table.
        """
        dsn = self.create(name, empty=empty)
        try:
            yield dsn
        finally:
            self.drop(dsn)

    def _execute(self, sql: str) -> None:
        if self._connection is None:
            self._connection = self._loop.run_until_complete(asyncpg.connect(self._server))
        self._loop.run_until_complete(self._connection.execute(sql))
