"""The keys that the servers behind pools ask for: encrypted in their rows, and in the clear in memory alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.db.changes import Change
from gateway.db.pool import Database
from gateway.db.pools.backend_keys import reseal_backend_key, sealed_backend_key, set_backend_key
from gateway.support.cipher import Cipher, Place, Sealed

if TYPE_CHECKING:
    from gateway.db.pool import Connection

HINT_CHARS = 4
_TABLE = "backend_keys"


class BackendKeys:
    """The keys of all pools, remembered until the change feed reports that a pool has changed.

    A gateway process has one.
    """

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database = database
        self._cipher = cipher
        self._known: dict[str, str] = {}
        self._num_changes = 0

    def changed(self, change: Change | None) -> None:
        """Forget the keys that a change may be about; None: all."""
        if change is None:
            self._num_changes += 1
            self._known.clear()
        elif change.table == "pools":
            self._num_changes += 1
            self._known.pop(change.id, None)

    async def key(self, pool_id: str) -> str:
        """Return the key of a pool's servers, "" where they need none.

        Raises ContentUnreadable: when this gateway lacks the content key that encrypted the servers' key.
        Raises one of `gateway.db.pool.FAILURES`: when the database fails.
        """
        known = self._known.get(pool_id)
        if known is None:
            before = self._num_changes
            known = await self._read(pool_id)
            if before == self._num_changes:  # else it may be the key from before the change
                self._known[pool_id] = known
        return known

    async def keep(self, conn: Connection, pool_id: str, key: str) -> None:
        """Store a pool's key in place of the one before. The caller has locked the pool."""
        sealed = self._cipher.seal(key.encode(), _place(pool_id))
        await set_backend_key(conn, pool_id, sealed.key_id, sealed.data, hint=hint_of(key))

    async def _read(self, pool_id: str) -> str:
        async with self._database.acquire() as conn:
            found = await sealed_backend_key(conn, pool_id)
            if found is None:
                return ""
            key = self._cipher.open(Sealed(*found), _place(pool_id))
            if found[0] != self._cipher.key_id:
                sealed = self._cipher.seal(key, _place(pool_id))
                await reseal_backend_key(conn, pool_id, found[0], sealed.key_id, sealed.data)
        return key.decode()


def hint_of(key: str) -> str:
    """Return the last characters of a key, by which people recognize it; "" for a key that is too short."""
    return key[-HINT_CHARS:] if len(key) >= 4 * HINT_CHARS else ""


def _place(pool_id: str) -> Place:
    return Place(pool_id, _TABLE, pool_id)
