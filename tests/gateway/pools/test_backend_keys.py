"""The keys of pools' servers, the operator's and projects' own, are cached until they change."""

from __future__ import annotations

from gateway.content.backend_keys import BackendKeys
from gateway.content.provider_keys import ProviderKeys
from gateway.db.changes import Change
from gateway.db.content.content_keys import note_content_keys, unreadable_content
from gateway.db.pool import Database
from gateway.support.cipher import Cipher, ContentKey, Place, Sealed
from tests.gateway.experiments.making import make_pool_row
from tests.gateway.live import make_tenant


class _ChangedMeanwhile(Cipher):
    """A cipher during whose use a key changes in the database."""

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


async def test_a_projects_key_is_sealed_anew_by_a_new_content_key_and_counted_where_none_fits(
    database: Database, dsn: str
) -> None:
    project_id = (await make_tenant(dsn, "acme", "pirate", "1")).project_id
    old, new = ContentKey(b"k" * 32), ContentKey(b"n" * 32)
    async with database.acquire() as conn:
        async with conn.transaction():
            await make_pool_row(conn, "theirs", "f" * 64)
        pool_id = await conn.fetchval("SELECT id FROM pools WHERE name = 'theirs'")
        keys = ProviderKeys(database, Cipher([old]))
        assert await keys.find(project_id, pool_id) is None
        await keys.keep(conn, project_id, pool_id, "sk-0123456789abcdef-AAAA")
        assert await keys.find(project_id, pool_id) is None, "until the change is told"
        keys.changed(Change(1, "provider_keys", "pkey_x", project_id))
        found = await keys.find(project_id, pool_id)
        assert found is not None and (found.hint, found.secret) == ("AAAA", "sk-0123456789abcdef-AAAA")
        assert "0123" not in repr(found)
        await note_content_keys(conn, [old.id], old.id)
        (unreadable,) = await unreadable_content(conn, [new.id])
        assert (unreadable.id, unreadable.num_secrets) == (old.id, 1)
        again = await ProviderKeys(database, Cipher([new, old])).find(project_id, pool_id)
        assert again == found
        assert await conn.fetchval("SELECT content_key FROM provider_keys") == new.id
        assert await unreadable_content(conn, [new.id]) == []
