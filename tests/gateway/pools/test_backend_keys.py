"""The keys of pools' servers are remembered until they change."""

from __future__ import annotations

from gateway.content.backend_keys import BackendKeys
from gateway.db.changes import Change
from gateway.db.pool import Database
from gateway.support.cipher import Cipher, ContentKey, Place, Sealed
from tests.gateway.experiments.making import make_pool_row


class _ChangedMeanwhile(Cipher):
    """Tells of a change while a key is read."""

    keys: BackendKeys | None = None
    num_opened = 0

    def open(self, sealed: Sealed, place: Place) -> bytes:
        self.num_opened += 1
        if self.num_opened == 1:
            assert self.keys is not None
            self.keys.changed(Change(1, "pools", place.id, None))
        return super().open(sealed, place)


async def test_a_key_that_changes_while_it_is_read_is_not_remembered(database: Database) -> None:
    cipher = _ChangedMeanwhile([ContentKey(b"k" * 32)])
    cipher.keys = keys = BackendKeys(database, cipher)
    async with database.acquire() as conn:
        async with conn.transaction():
            await make_pool_row(conn, "theirs", "f" * 64)
        pool_id = await conn.fetchval("SELECT id FROM pools WHERE name = 'theirs'")
        await keys.keep(conn, pool_id, "first")
        assert await keys.key(pool_id) == "first"
        await keys.keep(conn, pool_id, "second")
    assert await keys.key(pool_id) == "second"
    assert await keys.key(pool_id) == "second"
    assert cipher.num_opened == 2, "the second one is remembered"
