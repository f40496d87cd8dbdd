"""The sums equal the ledger, to the token and the nano, however many workers write, sum and fail at once."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import random

from gateway.billing.bookkeeper import Bookkeeper
from gateway.db.billing.adjustments import write_adjustment
from gateway.db.billing.credits import current_balance
from gateway.db.billing.invoices import draft_invoice
from gateway.db.billing.periods import list_periods
from gateway.db.ledger.rollups import roll_up
from gateway.db.ledger.usage import write_usage_events
from gateway.db.ledger.usage_sums import SumQuery, cost_sums
from gateway.db.limits.limits import list_limits, set_limit
from gateway.domain.limits.limit import Limit
from tests.gateway.billing.books import NOW, Books
from tests.gateway.billing.sums import assert_sums_equal_the_ledger


async def test_two_consumers_beside_three_writers_lose_nothing_and_count_nothing_twice(books: Books) -> None:
    await books.set_prices()
    await books.backdate_prices(NOW - datetime.timedelta(days=2))
    rng = random.Random(4)
    done = asyncio.Event()

    async def write(writer: int) -> None:
        for number in range(25):
            events = [
                books.event(
                    f"req_{writer}_{number}" + (f".{part}" if part else ""),
                    finish_reason=rng.choice(("stop", "error")),
                    model=rng.choice(("tiny", "tiny:pirate")),
                    endpoint=rng.choice(("/v1/completions", "/v1/embeddings")),
                    service_tier=rng.choice(("default", "flex")),
                    completion_tokens=rng.randrange(50),
                    created_at=NOW - datetime.timedelta(minutes=rng.randrange(2000)),
                )
                for part in range(rng.randint(1, 3))
            ]
            with contextlib.suppress(ZeroDivisionError):
                async with books.database.transaction() as conn:
                    await write_usage_events(conn, events)
                    await asyncio.sleep(rng.random() / 200)  # older transactions commit after younger ones
                    if rng.random() < 0.2:
                        raise ZeroDivisionError  # written, and gone with the transaction
            late = [books.event(each.request_id, created_at=each.created_at, completion_tokens=60) for each in events]
            await books.write(*late)

    async def consume() -> None:
        while not done.is_set():
            with contextlib.suppress(ZeroDivisionError):
                async with books.database.transaction() as conn:
                    if await roll_up(conn, rng.randint(1, 7)) and rng.random() < 0.2:
                        raise ZeroDivisionError  # taken, and given back with the transaction

    consumers = [asyncio.create_task(consume()) for _ in range(2)]
    await asyncio.gather(*(write(writer) for writer in range(3)))
    done.set()
    await asyncio.gather(*consumers)
    await books.roll_up()
    await assert_sums_equal_the_ledger(books)


async def test_parallel_bookkeepers_together_do_all_due_work_once(books: Books) -> None:
    await books.write(*(books.event(f"req_{number}") for number in range(10)))
    await asyncio.gather(*(Bookkeeper(books.database).work() for _ in range(3)))
    await assert_sums_equal_the_ledger(books)
    tomorrow = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=7)).strftime("ledger_%Y%m%d")
    assert await books.value("SELECT to_regclass($1) IS NOT NULL", tomorrow)


async def test_sums_grow_beyond_what_one_row_can_hold(books: Books) -> None:
    """A month's sum may exceed the largest integer of a column; the usage shown for a limit stops at that integer."""
    most, month = 9 * 10**18, NOW.date().replace(day=1)
    limit = Limit("", books.organization_id, books.project_id, None, None, "cost_nanos", "month", 10, True)
    async with books.database.transaction() as conn:
        await set_limit(conn, limit)
        for _ in range(3):
            charge = {"reason": "test", "corrects_period": None, "corrects_request_id": None}
            await write_adjustment(conn, books.organization_id, books.project_id, most, **charge)
    await books.roll_up()
    query = SumQuery(
        organization_id=books.organization_id,
        width="day",
        start=NOW - datetime.timedelta(days=1),
        end=NOW + datetime.timedelta(days=1),
        project_ids=None,
    )
    async with books.database.acquire() as conn:
        assert sum(each.cost_nanos for each in await cost_sums(conn, query)) == 3 * most
        assert [each.cost_nanos for each in await list_periods(conn, books.organization_id)] == [3 * most]
        invoice = await draft_invoice(conn, books.organization_id, books.project_id, month)
        (standing,) = await list_limits(conn, books.organization_id, books.project_id)
        assert await current_balance(conn, books.organization_id, books.project_id) == -3 * most
    assert invoice.due_nanos == 3 * most
    assert (standing.used, standing.free) == (2**63 - 1, 0)
    assert await books.write(books.event("req_1")) == {("req_1", 0)}
