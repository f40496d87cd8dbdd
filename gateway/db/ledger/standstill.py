"""Blocks writes to the ledger for one short transaction, which may not wait or last long."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.db.pool import Connection

# A transaction that waits for this lock holds up all later writers: behind a slow writer it gives up instead.
_LOCK_TIMEOUT = "SET LOCAL lock_timeout = '1s'"

_HOLD = "SELECT hold_ledger()"


async def hold_ledger(conn: Connection) -> None:
    """Wait until no transaction writes to the ledger, and block writes until the caller's transaction ends.

    From now on the caller's transaction waits a second for each of its locks at most.

    Raises asyncpg.LockNotAvailableError, one of `CONFLICTS`: when writers do not end within a second.
    """
    await conn.execute(_LOCK_TIMEOUT)
    await conn.execute(_HOLD)
