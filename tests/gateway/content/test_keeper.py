"""The keeper warns when gateways encrypt with different keys or a key is gone, and finds expired content by an
index."""

from __future__ import annotations

from structlog.testing import capture_logs
from structlog.typing import EventDict

from gateway.content.keeper import COUNT_INTERVAL_S, Keeper
from gateway.db.content import conversations, idempotency, request_contents, stored_chats, stored_responses
from gateway.db.pool import Database
from gateway.domain.content.keys import ContentKey
from gateway.support.cipher import Cipher
from tests.gateway.limits.fleet import make_key

OLD, NEW, OTHER = (ContentKey(letter * 32) for letter in (b"o", b"n", b"x"))


def about_keys(logs: list[EventDict]) -> list[EventDict]:
    """Return the log lines about content keys; gateways of other tests may log other lines in this process."""
    return [line for line in logs if line["event"].startswith("content_key")]


async def test_gateways_with_different_keys_are_told_in_one_line(database: Database) -> None:
    with capture_logs() as logs:
        await Keeper(database, Cipher([OLD])).work()
        await Keeper(database, Cipher([NEW, OLD])).work()  # a rotation
    assert about_keys(logs) == []
    with capture_logs() as logs:
        stranger = Keeper(database, Cipher([OTHER]))
        for _ in range(2):  # once is enough
            await stranger.work()
    (line,) = about_keys(logs)
    assert line["event"] == "content_keys_differ"
    for text in (OLD.id, NEW.id, OTHER.id, "LORIKEET_CONTENT_KEY"):
        assert text in line["error"]


async def test_content_whose_key_is_missing_is_logged_at_the_start_and_each_day(database: Database, dsn: str) -> None:
    project_id, now_s = (await make_key(dsn, "acme")).project_id, 0.0
    await Keeper(database, Cipher([OLD])).work()
    async with database.acquire() as conn:
        await conn.execute(
            "INSERT INTO stored_chats VALUES ($1, 'a', now(), 'tiny', '{}', $2, '', '', ''), "
            "($1, 'b', now(), 'tiny', '{}', $2, '', '', '')",
            project_id,
            OLD.id,
        )
        await conn.execute(
            "INSERT INTO request_contents VALUES ($1, 'a', now(), now() + interval '1 day', $2, '')", project_id, OLD.id
        )
        await conn.execute(
            "INSERT INTO stored_responses VALUES ($1, 'resp_a', now(), 'tiny', NULL, $2, '', '', '')",
            project_id,
            OLD.id,
        )
        await conn.execute(
            "INSERT INTO conversations VALUES ($1, 'conv_a', now(), now(), '{}', 0, 0, $2, '')", project_id, OLD.id
        )
        await conn.execute("INSERT INTO experiment_keys VALUES ($1, $2, '')", project_id, OLD.id)
        await conn.execute("UPDATE projects SET store_days = 1, log_content_days = 1")
        await conn.execute("UPDATE content_keys SET used_at = now() - interval '1 month'")
    with capture_logs() as logs:
        keeper = Keeper(database, Cipher([NEW]), clock=lambda: now_s)
        for later_s in (0.0, 60.0, COUNT_INTERVAL_S, 60.0):
            now_s += later_s
            await keeper.work()
        await Keeper(database, Cipher([NEW, OLD])).work()
    counts = ("num_chats", "num_responses", "num_items", "num_replies", "num_contents", "num_unit_keys", "num_comments")
    told = [(line["event"], line["key"], *(line[name] for name in counts)) for line in about_keys(logs)]
    assert told == [("content_key_missing", OLD.id, 2, 1, 1, 0, 1, 1, 0)] * 2


async def test_expired_content_is_found_by_an_index(database: Database) -> None:
    async with database.acquire() as conn:
        await conn.execute("SET enable_seqscan = off")
        for statement, index in (
            (idempotency._EXPIRE, "idempotency_keys_by_expiry"),
            (idempotency._DROP_FORBIDDEN, "kept_replies_by_time"),
            (idempotency._DROP_PURGED, "idempotency_keys_pkey"),
            (stored_chats._DROP_OLD, "stored_chats_by_time"),
            (stored_responses._DROP_OLD, "stored_responses_by_time"),
            (conversations._DROP_OLD, "conversations_by_time"),
            (request_contents._DROP_EXPIRED, "request_contents_by_expiry"),
            (request_contents._DROP_FORBIDDEN, "request_contents_by_time"),
        ):
            plan = await conn.fetch("EXPLAIN " + statement, 1000)
            assert index in "\n".join(row[0] for row in plan)
