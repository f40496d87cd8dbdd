"""Each attempt lands once, whoever brings it and however often; nothing that stands in the ledger ever changes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import random
from collections.abc import AsyncIterator

import asyncpg
import msgspec
import pytest

from gateway.db.ledger.usage import UsageEvent, list_usage_events
from gateway.db.pool import Database
from tests.gateway.billing.books import NOW, Books, open_books

# As gateways of version 0003 send it, to the letter.
OLD_STATEMENT = """
    INSERT INTO usage_events AS known (
        request_id, attempt, organization_id, project_id, api_key_id, endpoint, model,
        adapter_id, adapter_version, adapter_digest, stream,
        prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason,
        queue_ms, prefill_ms, decode_ms, ttft_ms, latency_ms, adapter_load_bytes, created_at, finished_at)
    SELECT * FROM unnest(
        $1::text[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
        $8::text[], $9::integer[], $10::text[], $11::boolean[],
        $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::text[],
        $17::float8[], $18::float8[], $19::float8[], $20::float8[], $21::float8[], $22::bigint[],
        $23::timestamptz[], $24::timestamptz[])
    ON CONFLICT (request_id, attempt) DO UPDATE SET
        prompt_tokens = greatest(known.prompt_tokens, excluded.prompt_tokens),
        cached_tokens = excluded.cached_tokens,
        completion_tokens = greatest(known.completion_tokens, excluded.completion_tokens),
        discarded_tokens = excluded.discarded_tokens,
        finish_reason = excluded.finish_reason,
        queue_ms = excluded.queue_ms,
        prefill_ms = excluded.prefill_ms,
        decode_ms = excluded.decode_ms,
        adapter_load_bytes = excluded.adapter_load_bytes
    WHERE known.finish_reason = 'error' AND (
        excluded.finish_reason <> 'error'
        OR excluded.prompt_tokens > known.prompt_tokens
        OR excluded.completion_tokens > known.completion_tokens)
    RETURNING request_id, attempt, xmax = 0 AS is_new  -- xmax is the transaction that replaced the row before it
"""


async def write_as_before(books: Books, *events: UsageEvent) -> None:
    fields = [field for field in UsageEvent.__struct_fields__ if field != "service_tier"]
    columns = [[getattr(event, field) for event in events] for field in fields]
    async with books.database.acquire() as conn:
        await conn.fetch(OLD_STATEMENT, *columns)


async def attempts(books: Books) -> list[UsageEvent]:
    async with books.database.acquire() as conn:
        return await list_usage_events(conn, books.project_id, 1000)


async def test_gateways_of_the_version_before_write_to_the_same_ledger(books: Books) -> None:
    await books.set_prices()
    await books.backdate_prices(NOW - datetime.timedelta(days=1))
    mine, theirs = books.event("req_1"), books.event("req_2")
    await write_as_before(books, theirs, mine)
    assert await books.write(mine, theirs, books.event("req_3")) == {("req_3", 0)}
    await write_as_before(books, books.event("req_3"), books.event("req_1", completion_tokens=9))
    assert {event.request_id for event in await attempts(books)} == {"req_1", "req_2", "req_3"}
    assert await books.value("SELECT sum(cost_nanos)::bigint FROM ledger") == 3 * 57
    assert await books.value("SELECT count(*) FROM usage_events") == 0


async def test_a_better_count_adds_what_it_has_beyond_the_one_before(books: Books) -> None:
    await books.set_prices()
    await books.backdate_prices(NOW - datetime.timedelta(days=1))
    seen = books.event("req_1", finish_reason="error", cached_tokens=0, completion_tokens=2, ttft_ms=9.0)
    more = msgspec.structs.replace(seen, completion_tokens=3, latency_ms=None)
    final = books.event("req_1", completion_tokens=5, discarded_tokens=2)
    assert await books.write(seen) == {("req_1", 0)}
    for late in (seen, more, seen, final, more, final, msgspec.structs.replace(final, completion_tokens=9)):
        assert await books.write(late) == set()
    rows = await books.fetch(
        "SELECT revision, prompt_tokens, cached_tokens, completion_tokens, discarded_tokens, finish_reason, cost_nanos "
        "FROM ledger ORDER BY revision"
    )
    assert rows == [(0, 10, 0, 2, 0, "error", 44), (1, 0, 0, 1, 0, "error", 7), (2, 0, 4, 2, 2, "stop", 6)]
    (attempt,) = await attempts(books)
    assert attempt == msgspec.structs.replace(final, ttft_ms=9.0)


IMPATIENT = """
    DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''5ms''', current_database()); END $$
"""


@pytest.fixture
async def impatient(dsn: str) -> AsyncIterator[Books]:
    """Books in a database that sees at once when two transactions wait for each other."""
    conn = await asyncpg.connect(dsn)
    await conn.execute(IMPATIENT)
    await conn.close()
    async with await Database.connect(dsn) as database:
        yield await open_books(database)


async def test_copies_that_come_at_once_count_once(impatient: Books) -> None:
    """Gateways of both versions, in any order; of better counts the best, each once. Where two of them wait for each
    other, PostgreSQL ends one of the transactions, and the gateway tries again."""
    books, rng = impatient, random.Random(3)
    copies = []
    for number in range(12):
        seen = books.event(f"req_{number}", finish_reason="error")
        copies += [msgspec.structs.replace(seen, completion_tokens=tokens) for tokens in range(4)]
        copies += [books.event(f"req_{number}", completion_tokens=8)] * 2

    async def gateway(seed: int) -> None:
        mine = random.Random(seed).sample(copies, len(copies))
        while mine:
            batch = list({each.request_id: each for each in mine[-5:]}.values())
            with contextlib.suppress(asyncpg.DeadlockDetectedError):
                if seed % 2:
                    await books.write(*batch)
                else:
                    await write_as_before(books, *batch)
                written = {id(each) for each in batch}
                mine = [each for each in mine if id(each) not in written]

    await asyncio.gather(*(gateway(rng.randrange(1000) * 2 + place % 2) for place in range(6)))
    assert sorted((each.request_id, each.completion_tokens) for each in await attempts(books)) == sorted(
        (f"req_{number}", 8) for number in range(12)
    )
    assert await books.value("SELECT sum(completion_tokens)::bigint FROM ledger") == 12 * 8
    assert await books.value("SELECT count(*) FROM ledger WHERE revision = 0") == 12


async def test_no_row_changes_or_goes(books: Books) -> None:
    await books.write(books.event("req_1"))
    partition = await books.value("SELECT tableoid::regclass::text FROM ledger")
    for table in ("ledger", partition):
        for statement in (f"UPDATE {table} SET completion_tokens = 0", f"DELETE FROM {table}", f"TRUNCATE {table}"):
            with pytest.raises(asyncpg.RaiseError, match=r"append-only|never changed"):
                await books.fetch(statement)
    assert await books.value("SELECT completion_tokens FROM ledger") == 5


async def test_a_day_without_a_partition_gets_one_with_its_first_row(books: Books) -> None:
    days = [datetime.datetime(2031, 5, day, 23, 59, 59, 999999, tzinfo=datetime.UTC) for day in (1, 2, 2, 3)]
    # Also when they come at once.
    await asyncio.gather(
        *(books.write(books.event(f"req_{number}", created_at=day)) for number, day in enumerate(days))
    )
    found = await books.fetch("SELECT tableoid::regclass::text, count(*) FROM ledger GROUP BY 1 ORDER BY 1")
    assert found == [("ledger_20310501", 1), ("ledger_20310502", 2), ("ledger_20310503", 1)]
