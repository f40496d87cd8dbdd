"""One query wakes the workers that have work, and no others."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, get_args

from gateway.db.due_work import _POLL, DueWork, Work
from gateway.db.limits.webhooks import MAX_ATTEMPTS
from gateway.db.pool import Database

if TYPE_CHECKING:
    from gateway.db.pool import Connection

# When this file was read: a test may run minutes later.
NOW = datetime.datetime.now(datetime.UTC)
BEFORE, LATER = NOW - datetime.timedelta(minutes=1), NOW + datetime.timedelta(hours=1)
DIGEST = "0" * 64

_NEEDED = """
    SELECT column_name, data_type FROM information_schema.columns
    WHERE table_schema = current_schema AND table_name = $1 AND is_nullable = 'NO' AND column_default IS NULL
      AND is_identity = 'NO'
"""
FILLERS = {
    "text": "x",
    "bigint": 1,
    "integer": 1,
    "smallint": 1,
    "numeric": 1,
    "boolean": False,
    "bytea": b"0123456789abcdef",
    "jsonb": "{}",
    "ARRAY": [],
    "date": NOW.date(),
    "timestamp with time zone": NOW,
}


async def insert_row(conn: Connection, table: str, **values: object) -> None:
    """Insert a row into a table, without checks of foreign keys.

    values: values of columns, by name; all other required columns get some value.
    """
    needed = {row["column_name"]: FILLERS[row["data_type"]] for row in await conn.fetch(_NEEDED, table)}
    row = needed | values
    numbers = ", ".join(f"${number}" for number in range(1, len(row) + 1))
    async with conn.transaction():
        await conn.execute("SET LOCAL session_replication_role = replica")
        await conn.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({numbers})", *row.values())


async def woken_workers(conn: Connection) -> set[str]:
    """Return the kinds of work whose workers the query would wake."""
    due = DueWork()
    wakes = {work: due.wake(work) for work in get_args(Work)}
    await due.poll(conn)
    return {work for work, wake in wakes.items() if wake.is_set()}


FETCHING = {"state": "fetching"}
PROBED = {"adapter_id": "a", "digest": DIGEST, "state": "inspected"}
QUEUED = {"status": "queued"}
WAITING: list[tuple[str, str, dict[str, object], set[str]]] = [
    ("usage to sum", "rollup_queue", {}, {"books"}),
    ("a grant that expired", "credit_grants", {"expires_at": BEFORE}, {"books"}),
    ("a grant that expires later", "credit_grants", {"expires_at": LATER}, set()),
    ("a grant that has lapsed", "credit_grants", {"expires_at": BEFORE, "lapsed_nanos": 0}, set()),
    ("an import", "adapter_imports", FETCHING, {"imports"}),
    ("an import put off", "adapter_imports", FETCHING | {"wait_until": LATER}, set()),
    ("an import at work", "adapter_imports", FETCHING | {"num_claims": 1}, set()),
    ("an import left", "adapter_imports", FETCHING | {"num_claims": 1, "updated_at": BEFORE}, {"imports"}),
    ("a version", "adapter_versions", PROBED, {"probes"}),
    ("a version that is probed", "adapter_versions", PROBED | {"claimed_at": LATER}, set()),
    ("a version left", "adapter_versions", PROBED | {"claimed_at": BEFORE}, {"probes"}),
    ("a ready version", "adapter_versions", PROBED | {"state": "ready"}, set()),
    ("a message", "webhook_deliveries", {}, {"deliveries"}),
    ("a message for later", "webhook_deliveries", {"due_at": LATER}, set()),
    ("a message that is tried once more", "webhook_deliveries", {"attempts": MAX_ATTEMPTS - 1}, {"deliveries"}),
    ("a message given up", "webhook_deliveries", {"attempts": MAX_ATTEMPTS}, set()),
    ("a response", "background_responses", QUEUED, {"responses"}),
    ("a response that runs", "background_responses", QUEUED | {"owner": "g", "lease_until": LATER}, set()),
    ("a response left", "background_responses", QUEUED | {"owner": "g", "lease_until": BEFORE}, {"responses"}),
    ("a response put back", "background_responses", QUEUED | {"lease_until": LATER}, set()),
    (
        "a response put back, to be cancelled",
        "background_responses",
        QUEUED | {"lease_until": LATER, "cancel_at": NOW},
        {"responses"},
    ),
    ("a batch", "batches", {}, {"batches"}),
    ("a batch at work", "batches", {"leased_until": LATER}, set()),
    ("a batch that is over", "batches", {"status": "completed", "ended_at": NOW}, set()),
    ("an event", "experiment_events", {"kind": "refusal"}, {"experiments"}),
    ("a window that ended", "experiment_units", {"state": b"", "closes_at": BEFORE}, {"experiments"}),
    ("a window that ends later", "experiment_units", {"state": b"", "closes_at": LATER}, set()),
    (
        "new weights",
        "experiments",
        {"state": "draft", "seed": bytes(32), "next_weights": [1], "closed_at": NOW},
        {"experiments", "awaited_notes"},
    ),
]


async def test_the_query_wakes_the_workers_that_have_work(database: Database) -> None:
    found = {}
    async with database.acquire() as conn:
        await insert_row(conn, "adapters", id="a", name="a")
        assert await woken_workers(conn) == set()
        for what, table, values, _ in WAITING:
            one = conn.transaction()
            await one.start()
            await insert_row(conn, table, **values)
            found[what] = await woken_workers(conn)
            await one.rollback()
    assert found == {what: meant for what, _, _, meant in WAITING}


async def test_the_query_returns_the_number_of_the_last_announced_change(database: Database) -> None:
    async with database.acquire() as conn:
        assert await DueWork().poll(conn) == await conn.fetchval("SELECT change_version FROM installation")


async def test_the_query_reads_no_message_that_was_given_up(database: Database) -> None:
    """Messages that were given up stay for a week, and a receiver that is gone for good leaves thousands of them."""
    async with database.acquire() as conn:
        one = conn.transaction()
        await one.start()
        for number in range(100):
            await insert_row(conn, "webhook_deliveries", id=f"given up {number}", attempts=MAX_ATTEMPTS, due_at=BEFORE)
        await conn.execute("SET LOCAL enable_seqscan = off")
        plan = "\n".join(row[0] for row in await conn.fetch(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {_POLL}"))
        await one.rollback()
    assert "webhook_deliveries_due" in plan
    assert "Rows Removed" not in plan, plan
