"""The keys that projects bring for the servers behind pools: encrypted in their rows, and in the clear in memory alone.

A key is used for the requests of its project, and for nothing else: neither to check a server's health nor to load an
adapter.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from gateway.backends.pool import PoolRevision
from gateway.content.backend_keys import hint_of
from gateway.db.changes import Change
from gateway.db.pool import UNAVAILABLE, Database
from gateway.db.pools.provider_keys import reseal_provider_key, sealed_provider_key, set_provider_key
from gateway.domain.errors import Overloaded
from gateway.domain.pools.provider_key import KeyUse, ProviderKey
from gateway.support.cipher import Cipher, Place, Sealed

if TYPE_CHECKING:
    from gateway.db.pool import Connection

_TABLE = "provider_keys"

MAX_KNOWN = 10_000
"""Pairs of a project and a pool that are remembered, with or without a key."""


class ProviderKeys:
    """The keys of all projects, remembered until the change feed reports that one has changed.

    A gateway process has one.
    """

    def __init__(self, database: Database, cipher: Cipher) -> None:
        self._database = database
        self._cipher = cipher
        self._known: OrderedDict[tuple[str, str], ProviderKey | None] = OrderedDict()
        self._num_changes = 0

    def changed(self, change: Change | None) -> None:
        """Forget the keys that a change may be about; None: all."""
        if change is None:
            self._known.clear()
        elif change.table == _TABLE:
            for pair in [each for each in self._known if each[0] == change.project_id]:
                del self._known[pair]
        else:
            return
        self._num_changes += 1

    async def find(self, project_id: str, pool_id: str) -> ProviderKey | None:
        """Return the key that a project has brought for the servers of a pool; None where it has brought none.

        Raises ContentUnreadable: when this gateway lacks the content key that it needs.
        Raises Overloaded: when the database cannot be asked.
        """
        pair = project_id, pool_id
        if pair in self._known:
            self._known.move_to_end(pair)
            return self._known[pair]
        before = self._num_changes
        try:
            found = await self._read(project_id, pool_id)
        except UNAVAILABLE:
            raise Overloaded(
                "The key of this project cannot be looked up at the moment. Try again in a moment.", retry_after_s=1.0
            ) from None
        if before == self._num_changes:  # else it may be the key from before the change
            self._known[pair] = found
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return found

    async def use(self, project_id: str, pool: PoolRevision) -> KeyUse:
        """Return which key a project's requests to a pool are sent with. Raises as `find`."""
        if pool.own_keys == "none":
            return "pool"
        if await self.find(project_id, pool.pool_id) is not None:
            return "own"
        return "missing" if pool.own_keys == "required" else "pool"

    async def keep(self, conn: Connection, project_id: str, pool_id: str, key: str) -> None:
        """Store a project's key in place of the one before. The caller has locked the project."""
        sealed = self._cipher.seal(key.encode(), _place(project_id, pool_id))
        await set_provider_key(conn, project_id, pool_id, sealed.key_id, sealed.data, hint=hint_of(key))

    async def _read(self, project_id: str, pool_id: str) -> ProviderKey | None:
        async with self._database.acquire() as conn:
            found = await sealed_provider_key(conn, project_id, pool_id)
            if found is None:
                return None
            place = _place(project_id, pool_id)
            key = self._cipher.open(Sealed(found.content_key, found.sealed), place)
            if found.content_key != self._cipher.key_id:
                sealed = self._cipher.seal(key, place)
                await reseal_provider_key(conn, found.id, found.content_key, sealed.key_id, sealed.data)
        return ProviderKey(found.hint, key.decode())


def _place(project_id: str, pool_id: str) -> Place:
    return Place(project_id, _TABLE, pool_id)
