"""Locks by which the gateways agree on one of them, for as long as its database session lasts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.db.pool import Connection

WATCHING = 0x6C6F7269776174  # "loriwat"
COLLECTING = 0x6C6F7269636F6C  # "loricol"

_TRY_LOCK = "SELECT pg_try_advisory_lock($1)"


async def try_take(conn: Connection, lock_key: int) -> bool:
    """Whether the lock is this session's now, until it ends. Who has it may ask again."""
    return bool(await conn.fetchval(_TRY_LOCK, lock_key))
