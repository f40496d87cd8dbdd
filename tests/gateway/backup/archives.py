"""Servers that are archived while a test acts on them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from gateway.postgres.archive import base_backups, keep_archive
from gateway.postgres.embedded import EmbeddedPostgres
from tests.installation.waiting import wait_until


@contextmanager
def archiving(dsn: str, archive: Path, on_poll: Callable[[], None] = lambda: None) -> Iterator[list[str]]:
    """Archive a server in a thread until the context is left; give the list of the lines that archiving reports.

    on_poll: called whenever the archiver looks whether something is to be done.
    """
    stop, lines = threading.Event(), list[str]()

    def keep() -> None:
        keep_archive(dsn, archive, base_every_s=3600, num_bases=2, report=lines.append, stop=stop, on_poll=on_poll)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        wait_until(lambda: (archive / "base").is_dir() and bool(base_backups(archive)), lambda: str(lines))
        yield lines
    finally:
        stop.set()
        thread.join()


@contextmanager
def running_server(folder: Path) -> Iterator[str]:
    """Run a server that keeps little of its write-ahead log; give its connection string."""
    postgres = EmbeddedPostgres(folder, settings={"max_slot_wal_keep_size": "64MB", "min_wal_size": "32MB"})
    try:
        yield postgres.start()
    finally:
        postgres.stop()


def is_all_received(dsn: str, archive: Path) -> Callable[[], bool]:
    """Return a function that tells whether the archive has all that the server has written by the time of the call."""

    async def ask() -> bool:
        conn = await asyncpg.connect(dsn)
        try:
            written = await conn.fetchval("SELECT pg_current_wal_flush_lsn()")
            slots = "SELECT bool_and(restart_lsn >= $1::pg_lsn) FROM pg_replication_slots WHERE active"
            streams = "SELECT bool_and(flush_lsn >= $1::pg_lsn) FROM pg_stat_replication"
            return bool(await conn.fetchval(streams, written)) or bool(await conn.fetchval(slots, written))
        finally:
            await conn.close()

    return lambda: (archive / "wal").is_dir() and asyncio.run(ask())
