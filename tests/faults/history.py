"""A month that was closed before a site's first fault and must look the same after the last one, and checks of all
sums."""

from __future__ import annotations

import hashlib

import msgspec

from gateway.db.billing.periods import close_period
from gateway.db.pool import Database
from gateway.exports.produce import open_export
from gateway.exports.request import make_request
from tests.gateway.billing.books import THIS_MONTH, Books, instant_in, month_before, open_books
from tests.gateway.billing.sums import assert_sums_equal_the_ledger

MONTH = month_before(THIS_MONTH, 2)
NUM_EVENTS = 20


class History(msgspec.Struct, frozen=True):
    """A tenant with a closed month."""

    organization_id: str
    project_id: str
    sha256: dict[str, str]
    """The hash of each of the month's exports, by kind."""


async def close_a_month(dsn: str) -> History:
    """Set prices that apply from long ago, and close a month in which a tenant of its own had usage."""
    async with await Database.connect(dsn) as database:
        books = await open_books(database, "historic")
        await books.set_prices()
        await books.backdate_prices(instant_in(month_before(MONTH)))
        await books.write(
            *(books.event(f"req_old_{number}", created_at=instant_in(MONTH)) for number in range(NUM_EVENTS))
        )
        async with database.transaction() as conn:
            await close_period(conn, books.organization_id, MONTH)
        return History(books.organization_id, books.project_id, await _export(database, books.organization_id))


async def check_history(dsn: str, history: History) -> None:
    """Check that the closed month is the same to the byte, and that every sum equals the ledger's to the nano."""
    async with await Database.connect(dsn) as database:
        assert await _export(database, history.organization_id) == history.sha256
        books = Books(database, history.organization_id, history.project_id)
        await books.roll_up()
        await assert_sums_equal_the_ledger(books)


async def _export(database: Database, organization_id: str) -> dict[str, str]:
    found = {}
    for kind in ("usage", "costs", "invoice"):
        async with open_export(database, make_request(organization_id, kind, "csv", f"{MONTH:%Y-%m}", None)) as made:
            digest = hashlib.sha256()
            async for chunk in made.chunks():
                digest.update(chunk)
        found[kind] = digest.hexdigest()
    return found
