"""A balance is the sum of a tenant's rows, and a limit like any other keeps a prepaid tenant within its balance."""

from __future__ import annotations

import asyncio
import datetime
import random

import pytest

from gateway.db.billing.adjustments import write_adjustment
from gateway.db.billing.credits import (
    current_balance,
    grant_credit,
    lapse_due,
    list_grants,
    refresh_balances,
    set_prepaid,
)
from gateway.db.billing.invoices import draft_invoice
from gateway.db.billing.periods import close_period
from gateway.db.limits.leases import PostgresLeases, write_leases
from gateway.db.limits.limits import list_limits
from gateway.domain.billing.credits import Grant, draw_credits, expired_remainders
from tests.gateway.billing.books import NOW, THIS_MONTH, Books, instant_in, month_before, open_books
from tests.installation.databases import NUM_WAITING

BEFORE = month_before(THIS_MONTH, 2)


def grant(number: int, amount: int, *, drawn: int = 0, lapsed: int | None = None, days: int | None = None) -> Grant:
    """Return a grant of credit.

    number: the number in the grant's id. amount, drawn, lapsed: the amounts in nanos that were granted, drawn, and left
    when the grant expired; lapsed is None before then. days: the days until the grant expires; None: never.
    """
    expires_at = None if days is None else NOW + datetime.timedelta(days=days)
    return Grant(f"credit_{number}", "proj", amount, "test", NOW, expires_at, drawn, lapsed)


def test_the_oldest_credit_is_drawn_first_and_what_expired_lapses() -> None:
    grants = [grant(1, 10, drawn=4), grant(2, 5, days=-1), grant(3, 20, days=-1), grant(4, 7, lapsed=7)]
    assert draw_credits(grants, 8) == {"credit_1": 6, "credit_2": 2}
    assert draw_credits(grants, 100) == {"credit_1": 6, "credit_2": 5, "credit_3": 20}
    assert draw_credits(grants, -3) == {}
    assert expired_remainders(grants, 8, NOW) == {"credit_2": 3, "credit_3": 20}
    assert expired_remainders(grants, 8, NOW - datetime.timedelta(days=2)) == {}


async def left_under_limit(books: Books) -> int | None:
    """Return the amount that is left under the limit of a prepaid project; None if there is no such limit."""
    async with books.database.acquire() as conn:
        for each in await list_limits(conn, books.organization_id, books.project_id):
            if each.limit.is_balance:
                return each.limit.max - each.used - each.reserved
    return None


async def grant_amount(books: Books, amount: int, expires_at: datetime.datetime | None = None) -> None:
    async with books.database.transaction() as conn:
        await grant_credit(conn, books.organization_id, books.project_id, amount, reason="test", expires_at=expires_at)


async def balance_of(books: Books) -> int:
    await books.roll_up()
    async with books.database.acquire() as conn:
        return await current_balance(conn, books.organization_id, books.project_id)


@pytest.fixture
async def priced_books(books: Books) -> Books:
    await books.set_prices()
    await books.backdate_prices(instant_in(month_before(THIS_MONTH, 6)))
    return books


async def test_the_limit_of_a_prepaid_project_always_leaves_exactly_its_balance(priced_books: Books) -> None:
    rng = random.Random(5)
    await grant_amount(priced_books, 1000)
    await priced_books.write(
        priced_books.event("req_first"), priced_books.event("req_earlier", created_at=instant_in(BEFORE))
    )
    async with priced_books.database.transaction() as conn:
        assert await set_prepaid(conn, priced_books.organization_id, priced_books.project_id, True)
        assert not await set_prepaid(conn, priced_books.organization_id, priced_books.project_id, True)
    assert await left_under_limit(priced_books) == await balance_of(priced_books) == 1000 - 2 * 57

    async def use(number: int) -> None:
        late = instant_in(BEFORE) if number % 3 else NOW
        await priced_books.write(
            priced_books.event(f"req_{number}", finish_reason="error", completion_tokens=1, created_at=late)
        )
        await priced_books.write(priced_books.event(f"req_{number}", created_at=late))

    async def adjust(number: int) -> None:
        async with priced_books.database.transaction() as conn:
            await write_adjustment(
                conn,
                priced_books.organization_id,
                priced_books.project_id,
                rng.randint(-30, 30),
                reason="test",
                corrects_period=None,
                corrects_request_id=None,
            )

    async def expire(number: int) -> None:
        await grant_amount(priced_books, 11, NOW - datetime.timedelta(seconds=1))
        async with priced_books.database.acquire() as conn:
            await lapse_due(conn)

    async def close(start: int) -> None:
        if start == 12:
            async with priced_books.database.transaction() as conn:
                await close_period(conn, priced_books.organization_id, BEFORE)

    for start in range(0, 24, 6):
        steps = [rng.choice((use, use, adjust, expire, lambda _: grant_amount(priced_books, 13))) for _ in range(5)]
        await asyncio.gather(use(start), close(start), *(step(start + place) for place, step in enumerate(steps, 1)))
        assert await left_under_limit(priced_books) == await balance_of(priced_books)
    before = await left_under_limit(priced_books)
    async with priced_books.database.transaction() as conn:
        await refresh_balances(conn, priced_books.organization_id, priced_books.project_id)
    assert await left_under_limit(priced_books) == before, "to compute it anew changes nothing"
    async with priced_books.database.transaction() as conn:
        assert await set_prepaid(conn, priced_books.organization_id, priced_books.project_id, False)
    assert await left_under_limit(priced_books) is None


async def test_closing_a_period_draws_credits_and_the_invoice_says_so(priced_books: Books) -> None:
    await grant_amount(priced_books, 30)
    await grant_amount(priced_books, 50)
    await priced_books.write(priced_books.event("req_1", created_at=instant_in(BEFORE)))
    async with priced_books.database.transaction() as conn:
        await close_period(conn, priced_books.organization_id, BEFORE)
        grants = await list_grants(conn, priced_books.organization_id, priced_books.project_id)
        invoice = await draft_invoice(conn, priced_books.organization_id, priced_books.project_id, BEFORE)
    assert [each.drawn for each in grants] == [30, 27]
    assert (invoice.total_nanos, invoice.credit_nanos, invoice.due_nanos) == (57, 57, 0)
    assert await balance_of(priced_books) == 23


async def test_closing_draws_credits_of_all_projects_as_the_reference_does(priced_books: Books) -> None:
    """Closing a month sends no more statements to the database for thirty projects than for one."""
    rng = random.Random(6)
    projects = [priced_books] + [await open_books(priced_books.database, f"tenant{number}") for number in range(29)]
    expected: dict[str, int] = {}
    for books in projects:
        for _ in range(rng.randint(0, 3)):
            await grant_amount(books, rng.randint(1, 60))
        events = [
            books.event(f"req_{books.project_id}_{n}", created_at=instant_in(BEFORE)) for n in range(rng.randint(0, 2))
        ]
        await books.write(*events)
        async with priced_books.database.acquire() as conn:
            expected |= draw_credits(await list_grants(conn, books.organization_id, books.project_id), 57 * len(events))
    said = []
    async with priced_books.database.transaction() as conn:
        with conn.query_logger(lambda query: said.append(query.query)):
            await close_period(conn, priced_books.organization_id, BEFORE)
    assert dict(await priced_books.fetch("SELECT grant_id, amount_nanos FROM credit_draws")) == expected
    assert len(said) < 20


async def refund(books: Books, amount: int) -> None:
    async with books.database.transaction() as conn:
        await write_adjustment(
            conn,
            books.organization_id,
            books.project_id,
            -amount,
            reason="test",
            corrects_period=None,
            corrects_request_id=None,
        )


async def end_month(books: Books) -> None:
    """Move all rows to the month before last, which the schema prevents outside of tests."""
    async with books.database.transaction() as conn:
        await conn.execute("SELECT ensure_ledger_day($1)", instant_in(BEFORE).date())
        await conn.execute("ALTER TABLE ledger DISABLE TRIGGER USER")
        await conn.execute("UPDATE ledger SET period = $1, created_at = $2", BEFORE, instant_in(BEFORE))
        await conn.execute("UPDATE rollup_queue SET period = $1, minute = $2", BEFORE, instant_in(BEFORE))
        await conn.execute("ALTER TABLE ledger ENABLE TRIGGER USER")


@pytest.mark.parametrize("prepaid", [True, False])
async def test_a_month_with_a_negative_total_becomes_credit(priced_books: Books, prepaid: bool) -> None:
    if prepaid:
        async with priced_books.database.transaction() as conn:
            await set_prepaid(conn, priced_books.organization_id, priced_books.project_id, True)
        await grant_amount(priced_books, 10)
    await refund(priced_books, 5)
    await end_month(priced_books)
    before = await balance_of(priced_books)
    async with priced_books.database.transaction() as conn:
        await close_period(conn, priced_books.organization_id, BEFORE)
        *_, carried = await list_grants(conn, priced_books.organization_id, priced_books.project_id)
        invoice = await draft_invoice(conn, priced_books.organization_id, priced_books.project_id, BEFORE)
    assert await balance_of(priced_books) == before == (15 if prepaid else 5)
    assert (carried.remaining, carried.reason) == (5, f"Carried over from {BEFORE:%Y-%m}")
    assert [line.amount_nanos for line in invoice.adjustments] == [-5, 5]
    assert (invoice.total_nanos, invoice.credit_nanos, invoice.due_nanos) == (0, 0, 0)
    if prepaid:
        assert await left_under_limit(priced_books) == before


async def test_an_amount_reserved_while_its_credit_lapses_stays_reserved(priced_books: Books) -> None:
    """A gateway reserves 40 of 50 nanos after the grant expired and before the rest lapses."""
    async with priced_books.database.transaction() as conn:
        await set_prepaid(conn, priced_books.organization_id, priced_books.project_id, True)
    await grant_amount(priced_books, 50, NOW - datetime.timedelta(seconds=1))
    leases = PostgresLeases(priced_books.database)
    await leases.claim("gateway", {})
    limit_id = str(await priced_books.value("SELECT id FROM limits"))

    async def lapse_now() -> None:
        async with priced_books.database.acquire() as conn:
            await lapse_due(conn)

    async with priced_books.database.transaction() as conn:  # an exchange, as `PostgresLeases` makes it
        await conn.execute("SELECT FROM limits FOR NO KEY UPDATE")
        lapsing = asyncio.create_task(lapse_now())
        while not await priced_books.value(NUM_WAITING):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)
        await write_leases(conn, "gateway", {(limit_id, 0): 40})
    await lapsing
    assert await priced_books.value("SELECT lapsed_nanos FROM credit_grants") == 10
    assert await left_under_limit(priced_books) == 0
