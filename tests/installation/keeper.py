"""Owns the folder of a test run and the PostgreSQL in it, until standard input ends.

`python -m tests.installation.keeper FOLDER FD`, as `databases.Keeper` runs it. The first connection to the socket FD
starts the server and migrates the template; each connection is answered with the server's connection string, or with an
error in words. However the run ends, all processes that its processes started are killed, the server is stopped, and
the folder is removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import shutil
import signal
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from gateway.db.migrate import migrate
from gateway.db.roles import RUNTIME_ROLE, ensure_runtime_role
from gateway.postgres.embedded import EmbeddedPostgres
from tests.installation.databases import READY, RUN_VARIABLE, TEMPLATE, execute, with_database

SETTINGS = {
    "fsync": "off",  # tests that crash a server start one of their own
    "max_connections": "500",  # eight processes, each with houses of several gateways
    "shared_buffers": "256MB",
}


QUICK_LOGIN = "SET scram_iterations = 1; ALTER ROLE {role} PASSWORD '{password}'"
"""A statement that reduces the hashes of a login from 4096 to one, for the thousands of connections of a run."""


def _start(server: EmbeddedPostgres) -> str:
    dsn = server.start()
    password = str(urlsplit(dsn).password)
    asyncio.run(ensure_runtime_role(dsn, password))
    for role in ("CURRENT_USER", RUNTIME_ROLE):
        asyncio.run(execute(dsn, QUICK_LOGIN.format(role=role, password=password)))
    asyncio.run(execute(dsn, f"CREATE DATABASE {TEMPLATE}"))
    asyncio.run(migrate(with_database(dsn, TEMPLATE), runtime=RUNTIME_ROLE))
    return dsn


def _answer(connection: socket.socket, server: EmbeddedPostgres, dsn: str | None) -> str | None:
    with connection:
        try:
            dsn = dsn or _start(server)
            connection.sendall(f"{READY}{dsn}".encode())
        except Exception as error:
            connection.sendall(f"{type(error).__name__}: {error}".encode())
    return dsn


def _end_what_is_left(folder: Path) -> None:
    """Kill processes of the run that were not ended, for example since their parents were killed."""
    variable = f"{RUN_VARIABLE}={folder}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process ended, or belongs to somebody else
            if variable in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def main(folder: Path, listener: socket.socket) -> None:
    server = EmbeddedPostgres(folder / "shared", settings=SETTINGS)
    dsn: str | None = None
    try:
        while sys.stdin not in (readable := select.select([sys.stdin, listener], [], [])[0]):
            if listener in readable:
                dsn = _answer(listener.accept()[0], server, dsn)
    finally:
        _end_what_is_left(folder)
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
