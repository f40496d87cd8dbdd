"""Each attempt is billed once, whichever gateway writes it and however often; no row of the ledger ever changes."""

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


async def attempts(books: Books) -> list[UsageEvent]:
    async with books.database.acquire() as conn:
        return await list_usage_events(conn, books.project_id, 1000)


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
async def quick_deadlock_books(dsn: str) -> AsyncIterator[Books]:
    """Give books in a database that detects deadlocks without delay."""
    conn = await asyncpg.connect(dsn)
    await conn.execute(IMPATIENT)
    await conn.close()
    async with await Database.connect(dsn) as database:
        yield await open_books(database)


async def test_copies_of_an_event_written_at_once_count_once(quick_deadlock_books: Books) -> None:
    """Gateways write copies in any order; of several counts of one attempt, the most complete is billed once.

    If two gateways wait for each other, PostgreSQL ends one of the transactions, and its gateway tries again.
    """
    books, rng = quick_deadlock_books, random.Random(3)
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
                await books.write(*batch)
                written = {id(each) for each in batch}
                mine = [each for each in mine if id(each) not in written]

    await asyncio.gather(*(gateway(rng.randrange(2000)) for _ in range(6)))
    assert sorted((each.request_id, each.completion_tokens) for each in await attempts(books)) == sorted(
        (f"req_{number}", 8) for number in range(12)
    )
    assert await books.value("SELECT sum(completion_tokens)::bigint FROM ledger") == 12 * 8
    assert await books.value("SELECT count(*) FROM ledger WHERE revision = 0") == 12


async def test_no_row_of_the_ledger_is_changed_or_deleted(books: Books) -> None:
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
