"""The ledger has a partition for each day, and work on some days locks no others, since a server's locks are few."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.db.billing.adjustments import list_adjustments, period_of_request, write_adjustment
from gateway.db.billing.charges import charges
from gateway.db.billing.exports import Scope
from gateway.db.billing.invoices import draft_invoice
from gateway.db.billing.periods import close_period
from gateway.db.billing.prices import add_version
from gateway.db.ledger.journals import corrected_in_transaction
from gateway.db.ledger.usage import write_usage_events
from gateway.db.pool import Database, lock_table_warning
from tests.gateway.billing.books import THIS_MONTH, Books, instant_in, month_before

if TYPE_CHECKING:
    from gateway.db.pool import Connection

BEFORE, FIRST = month_before(THIS_MONTH, 2), month_before(THIS_MONTH, 3)
NUM_DAYS = 120
_DAYS = "SELECT ensure_ledger_day($1::date - day) FROM generate_series(0, $2::integer) AS day"
_LOCKED = """
    SELECT count(DISTINCT relation) FROM pg_locks
    WHERE pid = pg_backend_pid() AND relation::regclass::text ~ '^ledger_[0-9]{8}$'
"""


async def num_locked(conn: Connection) -> int:
    locked: int = await conn.fetchval(_LOCKED)
    return locked


async def test_work_on_some_days_locks_only_the_partitions_of_these_days(books: Books) -> None:
    await books.fetch(_DAYS, THIS_MONTH, NUM_DAYS)
    await books.set_prices()
    seen = books.event("req_1", finish_reason="error", completion_tokens=2, created_at=instant_in(BEFORE))
    await books.write(seen, books.event("req_2", created_at=instant_in(FIRST)))
    await books.roll_up()
    for work in (write_final_count, list_all, close_and_report, set_prices):
        async with books.database.transaction() as conn:
            await work(conn, books)


async def write_final_count(conn: Connection, books: Books) -> None:
    final = books.event("req_1", created_at=instant_in(BEFORE))
    for _ in range(8):  # as often as makes a server plan for any days, if it may
        await write_usage_events(conn, [final])
        assert await corrected_in_transaction(conn, [("req_1", 0, final.created_at)]) == {("req_1", 0)}
    assert await num_locked(conn) == 1


async def list_all(conn: Connection, books: Books) -> None:
    own = (books.organization_id, books.project_id)
    await write_adjustment(conn, *own, 5, reason="x", corrects_period=None, corrects_request_id=None)
    assert await num_locked(conn) == 1
    for _ in range(8):
        assert len(await list_adjustments(conn, *own)) == 1
    assert await num_locked(conn) <= 2 * 31 + 8


async def close_and_report(conn: Connection, books: Books) -> None:
    own = (books.organization_id, books.project_id)
    await close_period(conn, books.organization_id, FIRST)
    await draft_invoice(conn, *own, FIRST)
    assert await num_locked(conn) == 0
    scope = Scope(books.organization_id, None, FIRST, None, None, "usd")
    assert [row.project_id async for batch in charges(conn, scope, by_day=True) for row in batch]
    assert await period_of_request(conn, *own, "req_2") == FIRST
    assert await num_locked(conn) <= 2 * 31


async def set_prices(conn: Connection, books: Books) -> None:
    await add_version(conn, books.organization_id, currency="usd", entries=[], discounts={}, effective_at=None)
    assert await num_locked(conn) == 0


async def test_a_server_with_few_locks_is_warned_about(database: Database) -> None:
    async with database.acquire() as conn:
        assert await lock_table_warning(conn) is None, "the embedded one has enough"

    class ServerWithDefaultLocks:
        """A server with PostgreSQL's default of `max_locks_per_transaction`, which is too low."""

        async def fetchval(self, query: str) -> int:
            return 64

    assert "set it to 1024 or more" in str(await lock_table_warning(ServerWithDefaultLocks()))  # type: ignore[arg-type]
