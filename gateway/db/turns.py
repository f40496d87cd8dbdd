"""Turns: locks that choose one process among all gateways and workers for work that only one has to do.

Knows nothing of the work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.db.pool import Database

if TYPE_CHECKING:
    import asyncpg

    from gateway.db.pool import Connection

WATCHING = 0x6C6F7269776174  # "loriwat"
COLLECTING = 0x6C6F7269636F6C  # "loricol"

BOOKS = 0x6C6F7269626F6F  # "loriboo"

ASK_TIMEOUT_S = 10.0
_TRY_LOCK = "SELECT pg_try_advisory_lock($1)"
_IS_FREE = "SELECT pg_try_advisory_xact_lock_shared($1)"


async def is_free(conn: Connection, lock_key: int) -> bool:
    """Tell whether no process has a turn, without taking it.

    lock_key: the key of the turn's lock, one of those in this module.
    """
    return bool(await conn.fetchval(_IS_FREE, lock_key))


class Turn:
    """A turn, held by a database session of its own; another process gets it once that session ends.

    lock_key: the key of the lock, one of those in this module.
    """

    def __init__(self, database: Database, lock_key: int) -> None:
        self._database = database
        self._lock_key = lock_key
        self._session: asyncpg.Connection[asyncpg.Record] | None = None

    async def is_mine(self) -> bool:
        """Take the turn unless another process has it; the process that has it may ask again.

        Raises one of `FAILURES`: when the database fails; another process may have the turn then.
        """
        if self._session is None or self._session.is_closed():
            self._session = await self._database.connect_alone()
        try:
            return bool(await self._session.fetchval(_TRY_LOCK, self._lock_key, timeout=ASK_TIMEOUT_S))
        except Exception:
            self.release()
            raise

    def release(self) -> None:
        """Release the turn, if this process has it."""
        if self._session is not None:
            self._session.terminate()
            self._session = None
