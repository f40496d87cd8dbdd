"""A closed month never changes: late usage is billed in the open month, and says what it corrects."""

from __future__ import annotations

import asyncio
import datetime

import asyncpg
import msgspec
import pytest

from gateway.db.billing.adjustments import write_adjustment
from gateway.db.billing.invoices import find_invoice, issue_invoices
from gateway.db.billing.periods import CannotClose, PeriodRow, close_period, list_periods
from gateway.db.ledger.usage import write_usage_events
from gateway.domain.billing.closing import LostJournals, objection
from tests.gateway.billing.books import THIS_MONTH, Books, instant_in, month_before
from tests.installation.databases import NUM_WAITING

LAST = month_before(THIS_MONTH)
BEFORE = month_before(THIS_MONTH, 2)
OF_PERIOD = "SELECT request_id, revision, completion_tokens, cost_nanos, corrects_period FROM ledger WHERE period = $1"


def utc(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(f"{text}+00:00")


async def close_month(books: Books, start: datetime.date) -> PeriodRow:
    async with books.database.transaction() as conn:
        return await close_period(conn, books.organization_id, start)


@pytest.fixture
async def priced_books(books: Books) -> Books:
    await books.set_prices()
    await books.backdate_prices(instant_in(month_before(THIS_MONTH, 6)))
    return books


async def test_periods_close_in_order_and_when_they_are_over(priced_books: Books) -> None:
    await priced_books.write(
        priced_books.event("req_1", created_at=instant_in(BEFORE)),
        priced_books.event("req_2", created_at=instant_in(LAST)),
    )
    with pytest.raises(CannotClose, match=f"{BEFORE:%Y-%m} is next"):
        await close_month(priced_books, LAST)
    assert (await close_month(priced_books, BEFORE)).state == "closed"
    with pytest.raises(CannotClose, match="the first open month"):
        await close_month(priced_books, BEFORE)
    with pytest.raises(CannotClose, match=f"{LAST:%Y-%m} is next"):
        await close_month(priced_books, THIS_MONTH)
    now = datetime.datetime.now(datetime.UTC)
    if now >= datetime.datetime.combine(THIS_MONTH, datetime.time(1), datetime.UTC):
        await close_month(priced_books, LAST)
        with pytest.raises(CannotClose, match="usage of the month may still arrive until"):
            await close_month(priced_books, THIS_MONTH)
    async with priced_books.database.acquire() as conn:
        listed = await list_periods(conn, priced_books.organization_id)
    assert [(each.start, each.state, each.cost_nanos) for each in listed] == [
        (THIS_MONTH, "open", 0),
        (LAST, "closed", 57),
        (BEFORE, "closed", 57),
    ]


@pytest.mark.parametrize(
    ("start", "now", "lost_at", "words"),
    [
        ("2026-10-01", "2026-11-01 01:00", None, None),
        ("2026-10-01", "2026-11-01 00:59", None, "usage of the month may still arrive until 2026-11-01 01:00 UTC"),
        ("2026-11-01", "2026-12-02 00:00", None, "2026-10 is next"),
        ("2026-09-01", "2026-12-02 00:00", None, "before 2026-10, the first open month"),
        ("2026-10-01", "2026-11-04 00:59", "2026-10-01 00:00", "7 requests in its journal"),
        ("2026-10-01", "2026-11-04 01:00", "2026-10-31 23:59", None),
        ("2026-10-01", "2026-11-02 00:00", "2026-09-30 23:59", None),
    ],
)
def test_a_month_that_cannot_be_closed_yet_says_why(
    start: str, now: str, lost_at: str | None, words: str | None
) -> None:
    lost = LostJournals(utc(lost_at), 7) if lost_at else None
    reason = objection(datetime.date.fromisoformat(start), datetime.date(2026, 10, 1), utc(now), lost)
    assert (reason is None) == (words is None)
    assert words is None or words in str(reason)


async def test_late_usage_is_billed_in_the_open_month_and_names_the_request_it_corrects(priced_books: Books) -> None:
    seen = priced_books.event("req_1", created_at=instant_in(BEFORE), finish_reason="error", completion_tokens=2)
    await priced_books.write(seen)
    await close_month(priced_books, BEFORE)
    closed = await priced_books.fetch(OF_PERIOD, BEFORE)
    final = msgspec.structs.replace(seen, finish_reason="stop", completion_tokens=5)
    late = priced_books.event("req_late", created_at=instant_in(BEFORE))
    for _ in range(2):
        await priced_books.write(final, late)
    assert await priced_books.fetch(OF_PERIOD, BEFORE) == closed
    assert await priced_books.fetch(OF_PERIOD + " ORDER BY request_id", LAST) == [
        ("req_1", 1, 3, 21, BEFORE),
        ("req_late", 0, 5, 57, BEFORE),
    ]
    with pytest.raises(asyncpg.RaiseError, match="is closed"):
        await priced_books.fetch(
            "INSERT INTO ledger (request_id, attempt, revision, kind, organization_id, project_id, api_key_id, "
            "endpoint, model, adapter_class, service_tier, stream, prompt_tokens, cached_tokens, completion_tokens, "
            "discarded_tokens, finish_reason, queue_ms, prefill_ms, decode_ms, adapter_load_bytes, created_at, "
            "finished_at, period, input_cost_nanos, cached_cost_nanos, output_cost_nanos, cost_nanos, list_cost_nanos)"
            " SELECT 'req_forged', 0, 0, kind, organization_id, project_id, api_key_id, endpoint, model, adapter_class,"
            " service_tier, stream, 0, 0, 0, 0, 'stop', 0, 0, 0, 0, created_at, finished_at, period, 0, 0, 0, 0, 0 "
            "FROM ledger WHERE period = $1",
            BEFORE,
        )


async def test_closing_beside_writers_counts_every_request_in_one_month(priced_books: Books) -> None:
    """Each request is counted in the closed month's sums, or in the open month as a correction."""
    await priced_books.write(priced_books.event("req_0", created_at=instant_in(BEFORE)))

    async def write(writer: int) -> None:
        for number in range(30):
            await priced_books.write(priced_books.event(f"req_{writer}_{number}", created_at=instant_in(BEFORE)))

    writers = [asyncio.create_task(write(writer)) for writer in range(3)]
    await asyncio.sleep(0.05)
    closed = await close_month(priced_books, BEFORE)
    await asyncio.gather(*writers)
    await priced_books.roll_up()
    counts = dict(await priced_books.fetch("SELECT period, count(*) FROM ledger GROUP BY 1"))
    assert sum(int(str(count)) for count in counts.values()) == 91
    assert counts[BEFORE] == closed.num_requests
    sums = dict(await priced_books.fetch("SELECT period, sum(num_requests)::bigint FROM period_sums GROUP BY 1"))
    assert sums == counts


async def test_closing_gives_way_to_a_slow_writer_and_to_writers_that_queue_behind_the_closing(
    priced_books: Books,
) -> None:
    await priced_books.write(priced_books.event("req_1", created_at=instant_in(BEFORE)))
    async with priced_books.database.transaction() as conn:
        await write_usage_events(conn, [priced_books.event("req_slow", created_at=instant_in(BEFORE))])
        closing = asyncio.create_task(close_month(priced_books, BEFORE))
        while not await priced_books.value(NUM_WAITING):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)
        async with asyncio.timeout(20):  # below what copiers give a statement
            await priced_books.write(priced_books.event("req_2", created_at=instant_in(BEFORE)))
        with pytest.raises(asyncpg.LockNotAvailableError):
            await closing
    assert (await close_month(priced_books, BEFORE)).num_requests == 3


async def test_an_invoice_comes_to_what_the_ledger_has_and_stays_as_it_was_issued(priced_books: Books) -> None:
    await priced_books.write(
        priced_books.event("req_1", created_at=instant_in(BEFORE)),
        priced_books.event(
            "req_2", created_at=instant_in(BEFORE), model="tiny:pirate", adapter_id="a", service_tier="flex"
        ),
        priced_books.event("req_3", created_at=instant_in(LAST)),
    )
    await close_month(priced_books, BEFORE)
    await priced_books.write(priced_books.event("req_late", created_at=instant_in(BEFORE)))
    await priced_books.roll_up()
    async with priced_books.database.transaction() as conn:
        (issued,) = await issue_invoices(conn, priced_books.organization_id, BEFORE)
        await write_adjustment(
            conn,
            priced_books.organization_id,
            priced_books.project_id,
            -20,
            reason="an outage",
            corrects_period=BEFORE,
            corrects_request_id="req_1",
        )
        await conn.execute("UPDATE projects SET name = 'renamed' WHERE id = $1", priced_books.project_id)
        kept = await find_invoice(conn, priced_books.organization_id, priced_books.project_id, BEFORE)
        draft = await find_invoice(conn, priced_books.organization_id, priced_books.project_id, LAST)
    assert kept == issued
    assert (issued.number, issued.project.name, issued.num_requests) == (f"{BEFORE:%Y-%m}-0001", "acme", 2)
    assert [(line.model, line.kind, line.num_tokens, line.amount_nanos) for line in issued.lines] == [
        ("tiny", "input", 6, 18),
        ("tiny", "cached_input", 4, 4),
        ("tiny", "output", 5, 35),
        ("tiny:pirate", "input", 6, 18),
        ("tiny:pirate", "cached_input", 4, 4),
        ("tiny:pirate", "output", 5, 35),
    ]
    assert issued.usage_nanos == issued.total_nanos == issued.due_nanos == 2 * 57
    assert await priced_books.value("SELECT sum(cost_nanos)::bigint FROM ledger WHERE period = $1", BEFORE) == 2 * 57
    assert (draft.number, draft.project.name, draft.usage_nanos) == (None, "renamed", 2 * 57)
    assert {line.corrects_period for line in draft.lines} == {None, f"{BEFORE:%Y-%m}"}
    for statement in (
        "UPDATE invoices SET document = '{}'",
        "DELETE FROM invoices",
        "UPDATE price_versions SET currency = 'eur'",
        "DELETE FROM prices",
    ):
        with pytest.raises(asyncpg.RaiseError, match="never changed"):
            await priced_books.fetch(statement)
