"""A balance is the sum of the rows, nothing else; a prepaid tenant is held to it by a limit like any other."""

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
from gateway.domain.billing.credits import Grant, draw_credits, expired_rests
from tests.gateway.billing.books import NOW, THIS_MONTH, Books, month_before, open_books, within
from tests.installation.databases import NUM_WAITING

BEFORE = month_before(THIS_MONTH, 2)


def grant(number: int, amount: int, *, drawn: int = 0, lapsed: int | None = None, days: int | None = None) -> Grant:
    """Return a grant.

    days: the days until the grant expires; None for never. number: the number in the id. drawn, lapsed: the amounts
    that were drawn and that expired; lapsed is None before the end.
    """
    expires_at = None if days is None else NOW + datetime.timedelta(days=days)
    return Grant(f"credit_{number}", "proj", amount, "test", NOW, expires_at, drawn, lapsed)


def test_the_oldest_credit_is_drawn_first_and_what_expired_lapses() -> None:
    grants = [grant(1, 10, drawn=4), grant(2, 5, days=-1), grant(3, 20, days=-1), grant(4, 7, lapsed=7)]
    assert draw_credits(grants, 8) == {"credit_1": 6, "credit_2": 2}
    assert draw_credits(grants, 100) == {"credit_1": 6, "credit_2": 5, "credit_3": 20}
    assert draw_credits(grants, -3) == {}
    assert expired_rests(grants, 8, NOW) == {"credit_2": 3, "credit_3": 20}
    assert expired_rests(grants, 8, NOW - datetime.timedelta(days=2)) == {}


async def free(books: Books) -> int | None:
    """Return the amount that is left under the limit of a prepaid project; None if there is no such limit."""
    async with books.database.acquire() as conn:
        for each in await list_limits(conn, books.organization_id, books.project_id):
            if each.limit.is_balance:
                return each.limit.max - each.used - each.reserved
    return None


async def give(books: Books, amount: int, expires_at: datetime.datetime | None = None) -> None:
    async with books.database.transaction() as conn:
        await grant_credit(conn, books.organization_id, books.project_id, amount, reason="test", expires_at=expires_at)


async def balance_of(books: Books) -> int:
    await books.roll_up()
    async with books.database.acquire() as conn:
        return await current_balance(conn, books.organization_id, books.project_id)


@pytest.fixture
async def priced(books: Books) -> Books:
    await books.set_prices()
    await books.backdate_prices(within(month_before(THIS_MONTH, 6)))
    return books


async def test_the_limit_leaves_the_balance_whatever_happens_in_any_order(priced: Books) -> None:
    rng = random.Random(5)
    await give(priced, 1000)
    await priced.write(priced.event("req_first"), priced.event("req_earlier", created_at=within(BEFORE)))
    async with priced.database.transaction() as conn:
        assert await set_prepaid(conn, priced.organization_id, priced.project_id, True)
        assert not await set_prepaid(conn, priced.organization_id, priced.project_id, True)
    assert await free(priced) == await balance_of(priced) == 1000 - 2 * 57

    async def use(number: int) -> None:
        late = within(BEFORE) if number % 3 else NOW
        await priced.write(priced.event(f"req_{number}", finish_reason="error", completion_tokens=1, created_at=late))
        await priced.write(priced.event(f"req_{number}", created_at=late))

    async def adjust(number: int) -> None:
        async with priced.database.transaction() as conn:
            await write_adjustment(
                conn,
                priced.organization_id,
                priced.project_id,
                rng.randint(-30, 30),
                reason="test",
                corrects_period=None,
                corrects_request_id=None,
            )

    async def expire(number: int) -> None:
        await give(priced, 11, NOW - datetime.timedelta(seconds=1))
        async with priced.database.acquire() as conn:
            await lapse_due(conn)

    async def close(start: int) -> None:
        if start == 12:
            async with priced.database.transaction() as conn:
                await close_period(conn, priced.organization_id, BEFORE)

    for start in range(0, 24, 6):
        steps = [rng.choice((use, use, adjust, expire, lambda _: give(priced, 13))) for _ in range(5)]
        await asyncio.gather(use(start), close(start), *(step(start + place) for place, step in enumerate(steps, 1)))
        assert await free(priced) == await balance_of(priced)
    before = await free(priced)
    async with priced.database.transaction() as conn:
        await refresh_balances(conn, priced.organization_id, priced.project_id)
    assert await free(priced) == before, "to compute it anew changes nothing"
    async with priced.database.transaction() as conn:
        assert await set_prepaid(conn, priced.organization_id, priced.project_id, False)
    assert await free(priced) is None


async def test_closing_a_period_draws_credits_and_the_invoice_says_so(priced: Books) -> None:
    await give(priced, 30)
    await give(priced, 50)
    await priced.write(priced.event("req_1", created_at=within(BEFORE)))
    async with priced.database.transaction() as conn:
        await close_period(conn, priced.organization_id, BEFORE)
        grants = await list_grants(conn, priced.organization_id, priced.project_id)
        invoice = await draft_invoice(conn, priced.organization_id, priced.project_id, BEFORE)
    assert [each.drawn for each in grants] == [30, 27]
    assert (invoice.total_nanos, invoice.credit_nanos, invoice.due_nanos) == (57, 57, 0)
    assert await balance_of(priced) == 23


async def test_all_projects_draw_at_once_what_the_reference_does(priced: Books) -> None:
    """Closing also sends as few statements to the database for thirty projects as for one."""
    rng = random.Random(6)
    projects = [priced] + [await open_books(priced.database, f"tenant{number}") for number in range(29)]
    expected: dict[str, int] = {}
    for books in projects:
        for _ in range(rng.randint(0, 3)):
            await give(books, rng.randint(1, 60))
        events = [
            books.event(f"req_{books.project_id}_{n}", created_at=within(BEFORE)) for n in range(rng.randint(0, 2))
        ]
        await books.write(*events)
        async with priced.database.acquire() as conn:
            expected |= draw_credits(await list_grants(conn, books.organization_id, books.project_id), 57 * len(events))
    said = []
    async with priced.database.transaction() as conn:
        with conn.query_logger(lambda query: said.append(query.query)):
            await close_period(conn, priced.organization_id, BEFORE)
    assert dict(await priced.fetch("SELECT grant_id, amount_nanos FROM credit_draws")) == expected
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
        await conn.execute("SELECT ensure_ledger_day($1)", within(BEFORE).date())
        await conn.execute("ALTER TABLE ledger DISABLE TRIGGER USER")
        await conn.execute("UPDATE ledger SET period = $1, created_at = $2", BEFORE, within(BEFORE))
        await conn.execute("UPDATE rollup_queue SET period = $1, minute = $2", BEFORE, within(BEFORE))
        await conn.execute("ALTER TABLE ledger ENABLE TRIGGER USER")


@pytest.mark.parametrize("prepaid", [True, False])
async def test_what_a_month_below_zero_owes_becomes_credit(priced: Books, prepaid: bool) -> None:
    if prepaid:
        async with priced.database.transaction() as conn:
            await set_prepaid(conn, priced.organization_id, priced.project_id, True)
        await give(priced, 10)
    await refund(priced, 5)
    await end_month(priced)
    before = await balance_of(priced)
    async with priced.database.transaction() as conn:
        await close_period(conn, priced.organization_id, BEFORE)
        *_, carried = await list_grants(conn, priced.organization_id, priced.project_id)
        invoice = await draft_invoice(conn, priced.organization_id, priced.project_id, BEFORE)
    assert await balance_of(priced) == before == (15 if prepaid else 5)
    assert (carried.remaining, carried.reason) == (5, f"Carried over from {BEFORE:%Y-%m}")
    assert [line.amount_nanos for line in invoice.adjustments] == [-5, 5]
    assert (invoice.total_nanos, invoice.credit_nanos, invoice.due_nanos) == (0, 0, 0)
    if prepaid:
        assert await free(priced) == before


async def test_what_is_reserved_while_credit_lapses_stays_reserved(priced: Books) -> None:
    """A gateway reserves the rest of the balance between the grant's expiry and its lapse."""
    async with priced.database.transaction() as conn:
        await set_prepaid(conn, priced.organization_id, priced.project_id, True)
    await give(priced, 50, NOW - datetime.timedelta(seconds=1))
    leases = PostgresLeases(priced.database)
    await leases.claim("gateway", {})
    limit_id = str(await priced.value("SELECT id FROM limits"))

    async def lapse_now() -> None:
        async with priced.database.acquire() as conn:
            await lapse_due(conn)

    async with priced.database.transaction() as conn:  # an exchange, as `PostgresLeases` makes it
        await conn.execute("SELECT FROM limits FOR NO KEY UPDATE")
        lapsing = asyncio.create_task(lapse_now())
        while not await priced.value(NUM_WAITING):  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)
        await write_leases(conn, "gateway", {(limit_id, 0): 40})
    await lapsing
    assert await priced.value("SELECT lapsed_nanos FROM credit_grants") == 10
    assert await free(priced) == 0
