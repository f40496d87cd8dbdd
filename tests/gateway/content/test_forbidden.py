"""Content that a project may no longer store, or that a purged project left, is hidden at once and deleted in short
transactions, found by fitting indexes."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from gateway.content.keeper import Keeper
from gateway.content.purge import Purger
from gateway.db.content import idempotency, stored_chats
from gateway.db.content.idempotency import Slot
from gateway.db.organization import projects
from gateway.db.pool import Database
from gateway.support.cipher import Cipher
from tests.gateway.limits.fleet import Key, make_key

DAY = datetime.timedelta(days=1)
FILL = """
    INSERT INTO stored_chats
        (project_id, id, created_at, model, tags, content_key, sealed_metadata, sealed_messages, sealed_reply)
    SELECT $1, $2 || n, now() - n * interval '1 second', 'tiny', ARRAY['all', 'n' || n]::bytea[], 'k', 'a', 'b', 'c'
    FROM generate_series(1, $3::integer) n
"""


@pytest.fixture
async def project(database: Database, dsn: str) -> Key:
    key = await make_key(dsn, "acme")
    async with database.acquire() as conn:
        await conn.execute("UPDATE projects SET store_days = 30 WHERE id = $1", key.project_id)
    return key


async def store_reply(conn: Any, slot: Slot) -> None:
    assert await idempotency.claim_slot(conn, slot, fingerprint=b"f", request_id="req_1", alive=DAY, lasts=DAY)
    await idempotency.finish_slot(conn, slot, "req_1", content_key="k", sealed=b"reply")


async def stored_counts(conn: Any) -> tuple[int, int, int]:
    row = await conn.fetchrow(
        "SELECT (SELECT count(*) FROM idempotency_keys), (SELECT count(*) FROM kept_replies), "
        "(SELECT count(*) FROM stored_chats)"
    )
    return tuple(row)


async def test_a_purge_deletes_a_little_in_each_transaction(database: Database, project: Key) -> None:
    async with database.acquire() as conn:
        await conn.execute(FILL, project.project_id, "c", 2100)
        await store_reply(conn, Slot(project.project_id, b"one"))
        assert await stored_chats.drop_chats_of(conn, project.project_id) == stored_chats.DROP_AT_ONCE
        organization_id = await conn.fetchval("SELECT organization_id FROM projects")
        await projects.archive_project(conn, organization_id, project.project_id, datetime.timedelta(0))
    assert await Purger(database).purge_all() == 1
    async with database.acquire() as conn:
        assert await stored_counts(conn) == (0, 0, 0)
        assert await conn.fetchval("SELECT purged_at IS NOT NULL FROM projects")
        assert not await projects.lock_to_purge(conn, organization_id, project.project_id)


async def test_content_that_a_purge_has_left_is_hidden_and_then_deleted(
    database: Database, project: Key, cipher: Cipher
) -> None:
    """Content is left where the purging gateway knows nothing of stored content, or where a request ends after the
    purge."""
    slot = Slot(project.project_id, b"one")
    async with database.acquire() as conn:
        await conn.execute(FILL, project.project_id, "c", 3)
        await store_reply(conn, slot)
        await conn.execute("UPDATE projects SET purged_at = now()")
        found = await idempotency.find_slot(conn, slot)
        assert found is not None and found.state == "not_allowed"
        assert await idempotency.load_reply(conn, slot, "req_1") is None
        assert await stored_chats.get_chat(conn, project.project_id, "c1") is None
        assert await stored_chats.get_messages(conn, project.project_id, "c1") is None
        late = Slot(project.project_id, b"late")
        await store_reply(conn, late)
        assert await stored_counts(conn) == (2, 1, 3), "nothing more is kept"
    for tags, num_tags in (([], 0), ([b"all"], 1)):
        assert await list_ids(database, project, tags, num_tags) == []
    await Keeper(database, cipher).work()
    async with database.acquire() as conn:
        assert await stored_counts(conn) == (0, 0, 0)


async def test_replies_that_were_forbidden_once_never_come_back(
    database: Database, project: Key, cipher: Cipher
) -> None:
    before, after = Slot(project.project_id, b"before"), Slot(project.project_id, b"after")

    async def allow(keep_replies: bool) -> None:
        async with database.transaction() as conn:
            organization_id = await conn.fetchval("SELECT organization_id FROM projects FOR NO KEY UPDATE")
            await projects.set_retention(
                conn, organization_id, project.project_id, keep_replies=keep_replies, store_days=30, log_content_days=0
            )

    async def states() -> list[tuple[str, bool]]:
        """Return the state of each slot that exists, and whether its reply can be loaded."""
        async with database.acquire() as conn:
            return [
                (row.state, await idempotency.load_reply(conn, slot, "req_1") is not None)
                for slot in (before, after)
                if (row := await idempotency.find_slot(conn, slot)) is not None
            ]

    async with database.acquire() as conn:
        await store_reply(conn, before)
    assert await states() == [("kept", True)]
    await allow(False)
    assert await states() == [("not_allowed", False)]
    await allow(True)
    async with database.acquire() as conn:
        await store_reply(conn, after)
    for _ in range(2):
        assert await states() == [("not_allowed", False), ("kept", True)]
        await Keeper(database, cipher).work()
    async with database.acquire() as conn:
        assert await stored_counts(conn) == (2, 1, 0)


async def list_ids(database: Database, project: Key, tags: list[bytes], num_tags: int, **query: Any) -> list[str]:
    wanted: dict[str, Any] = {"content_keys": ["k"], "after": None, "model": None, "order": "asc", "limit": 2} | query
    async with database.transaction() as conn:
        rows, _ = await stored_chats.list_chats(conn, project.project_id, tags=tags, num_tags=num_tags, **wanted)
    return [row.id for row in rows]


async def test_lists_by_tags_hold_the_chats_that_have_all_tags_under_one_key(database: Database, project: Key) -> None:
    async with database.acquire() as conn:
        await conn.execute(FILL, project.project_id, "c", 5)
    assert await list_ids(database, project, [b"all", b"n3"], 2) == ["c3"]
    assert await list_ids(database, project, [b"all", b"none"], 2) == []
    two_keys = {"content_keys": ["other", "k"]}
    assert await list_ids(database, project, [b"none", b"none", b"all", b"n3"], 2, **two_keys) == ["c3"]
    assert await list_ids(database, project, [b"all", b"n3", b"none", b"none"], 2, **two_keys) == []
    assert await list_ids(database, project, [b"all"], 1, order="desc", after="c2") == ["c3", "c4"]
    assert await list_ids(database, project, [b"all"], 1, after="c4") == ["c3", "c2"]


async def test_lists_are_found_by_the_index_that_fits(database: Database, project: Key) -> None:
    values = (project.project_id, "c500", None, ["k", "old"], 21)
    async with database.acquire() as conn:
        await conn.execute(FILL, project.project_id, "c", 5000)
        await conn.execute("ANALYZE stored_chats")
        for statement, more, index in (
            (stored_chats._LIST_ASC, (None,), "stored_chats_by_time"),
            (stored_chats._LIST_DESC, (None,), "stored_chats_by_time"),
            (stored_chats._LIST_TAGGED_ASC, ([b"n7", b"n8"], 1, None), "stored_chats_by_tag"),
            (stored_chats._LIST_TAGGED_DESC, ([b"n7", b"n8"], 1, None), "stored_chats_by_tag"),
        ):
            plan = "\n".join(row[0] for row in await conn.fetch("EXPLAIN " + statement, *values, *more))
            assert index in plan and "Seq Scan on stored_chats" not in plan, plan
            assert more or "Sort" not in plan, plan
            assert more or "AND (ROW(created_at, id)" in plan, "it begins where the page before has ended"
