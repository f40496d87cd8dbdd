"""Whose turn it is, of all gateways, to do what one of them is enough for. Knows nothing of that work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.db.pool import Database
from gateway.db.turns import try_take

if TYPE_CHECKING:
    import asyncpg


class Turn:
    """Held by a database session of its own: another gateway's once that ends, however it ends.

    lock_key: one of `gateway.db.turns`.
    """

    def __init__(self, database: Database, lock_key: int) -> None:
        self._database = database
        self._lock_key = lock_key
        self._session: asyncpg.Connection[asyncpg.Record] | None = None

    async def is_mine(self) -> bool:
        """Take it unless another has it. Raises `FAILURES`; then it is another's perhaps."""
        if self._session is None or self._session.is_closed():
            self._session = await self._database.connect_alone()
        try:
            return await try_take(self._session, self._lock_key)
        except Exception:
            self.release()
            raise

    def release(self) -> None:
        if self._session is not None:
            self._session.terminate()
            self._session = None
