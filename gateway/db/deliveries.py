"""Deliveries of exports: what goes where, which periods are due, and Stripe's customers.

One session at a time delivers: it holds an advisory lock, and the state of a delivery is written on that very session,
so that one who lost the lock cannot say that it delivered.
"""

from __future__ import annotations

import datetime
import json
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec

from gateway.db.ids import new_id

if TYPE_CHECKING:
    from gateway.db.pool import Connection

FIRST_DELAY = datetime.timedelta(seconds=30)
LONGEST_DELAY = datetime.timedelta(hours=6)

_LOCK_KEY = 0x6C6F726964656C76  # "loridelv"
_TRY_LOCK = "SELECT pg_try_advisory_lock($1)"


async def try_become_deliverer(conn: Connection) -> bool:
    """Whether this session is the one that delivers, until it ends."""
    return bool(await conn.fetchval(_TRY_LOCK, _LOCK_KEY))


class DeliveryRow(msgspec.Struct, frozen=True):
    """destination: as it may be shown. secret: never shown."""

    id: str
    organization_id: str
    name: str
    kind: str
    format: str
    schedule: str
    destination: dict[str, Any]
    secret: str | None
    from_period: datetime.date
    created_at: datetime.datetime


class DueRun(msgspec.Struct, frozen=True):
    """One period to deliver now. attempts: that failed before."""

    delivery: DeliveryRow
    period: str
    attempts: int


class RunRow(msgspec.Struct, frozen=True):
    delivery_id: str
    period: str
    attempts: int
    due_at: datetime.datetime
    delivered_at: datetime.datetime | None
    last_error: str | None


_CREATE = """
    INSERT INTO deliveries (id, organization_id, name, kind, format, schedule, destination, secret, from_period)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
    ON CONFLICT (organization_id, name) DO UPDATE SET
        kind = excluded.kind, format = excluded.format, schedule = excluded.schedule,
        destination = excluded.destination, secret = excluded.secret
    RETURNING id, organization_id, name, kind, format, schedule, destination, secret, from_period, created_at
"""


async def set_delivery(
    conn: Connection,
    organization_id: str,
    *,
    name: str,
    kind: str,
    format: str,
    schedule: str,
    destination: dict[str, Any],
    secret: str | None,
    from_period: datetime.date,
) -> DeliveryRow:
    """Make a delivery, or change the one of this name; what was delivered stays delivered."""
    values = (name, kind, format, schedule, json.dumps(destination), secret, from_period)
    row = await conn.fetchrow(_CREATE, new_id("dlv"), organization_id, *values)
    assert row is not None
    return _delivery(row)


_LIST = """
    SELECT id, organization_id, name, kind, format, schedule, destination, secret, from_period, created_at
    FROM deliveries
    WHERE organization_id = $1
      AND ($2::text IS NULL OR (created_at, id) > (SELECT created_at, id FROM deliveries
                                                   WHERE organization_id = $1 AND id = $2))
    ORDER BY created_at, id LIMIT $3
"""


async def list_deliveries(
    conn: Connection, organization_id: str, *, after: str | None = None, limit: int = 100
) -> list[DeliveryRow]:
    """Oldest first, those that follow the delivery with id `after`."""
    return [_delivery(row) for row in await conn.fetch(_LIST, organization_id, after, limit)]


_REMOVE = """
    DELETE FROM deliveries WHERE organization_id = $1 AND id = $2
    RETURNING id, organization_id, name, kind, format, schedule, destination, secret, from_period, created_at
"""


async def remove_delivery(conn: Connection, organization_id: str, delivery_id: str) -> DeliveryRow | None:
    """What it was, None if there was none. What it delivered stays where it is."""
    row = await conn.fetchrow(_REMOVE, organization_id, delivery_id)
    return _delivery(row) if row else None


# A day is due once it is over and late rows have had an hour; a month once it is closed.
_QUEUE_DAYS = """
    INSERT INTO delivery_runs (delivery_id, period)
    SELECT d.id, to_char(day, 'YYYY-MM-DD')
    FROM deliveries d
        CROSS JOIN LATERAL generate_series(
            greatest(d.from_period, (now() AT TIME ZONE 'UTC')::date - 62)::timestamp,
            (now() AT TIME ZONE 'UTC') - interval '25 hours', interval '1 day') day
    WHERE d.schedule = 'daily'
    ON CONFLICT DO NOTHING
"""
_QUEUE_MONTHS = """
    INSERT INTO delivery_runs (delivery_id, period)
    SELECT d.id, to_char(p.start, 'YYYY-MM')
    FROM deliveries d JOIN billing_periods p ON p.organization_id = d.organization_id AND p.start >= d.from_period
    WHERE d.schedule = 'monthly'
    ON CONFLICT DO NOTHING
"""


async def queue_due_periods(conn: Connection) -> None:
    for statement in (_QUEUE_DAYS, _QUEUE_MONTHS):
        await conn.execute(statement)


_NEXT = """
    SELECT d.id, d.organization_id, d.name, d.kind, d.format, d.schedule, d.destination, d.secret, d.from_period,
           d.created_at, r.period, r.attempts
    FROM delivery_runs r JOIN deliveries d ON d.id = r.delivery_id
    WHERE r.delivered_at IS NULL AND r.due_at <= clock_timestamp()
    ORDER BY r.due_at, r.delivery_id, r.period LIMIT 1
"""


async def next_due_run(conn: Connection) -> DueRun | None:
    row = await conn.fetchrow(_NEXT)
    return DueRun(_delivery(row), row["period"], row["attempts"]) if row else None


_DELIVERED = """
    UPDATE delivery_runs SET delivered_at = clock_timestamp(), attempts = attempts + 1, last_error = NULL
    WHERE delivery_id = $1 AND period = $2
"""
_FAILED = """
    UPDATE delivery_runs
    SET attempts = attempts + 1, last_error = $3,
        due_at = clock_timestamp() + least($5::interval, $4::interval * 2 ^ least(attempts, 20))
    WHERE delivery_id = $1 AND period = $2
"""


async def note_delivered(conn: Connection, run: DueRun) -> None:
    await conn.execute(_DELIVERED, run.delivery.id, run.period)


async def note_failed(
    conn: Connection, run: DueRun, error: str, *, first_delay: datetime.timedelta = FIRST_DELAY
) -> None:
    """It is due again after a pause that doubles with each attempt, up to LONGEST_DELAY; it is never given up."""
    await conn.execute(_FAILED, run.delivery.id, run.period, error, first_delay, LONGEST_DELAY)


_RUNS = """
    SELECT r.delivery_id, r.period, r.attempts, r.due_at, r.delivered_at, r.last_error
    FROM delivery_runs r JOIN deliveries d ON d.id = r.delivery_id
    WHERE d.organization_id = $1 AND r.delivery_id = $2
    ORDER BY r.period COLLATE "C" DESC LIMIT $3
"""


async def list_runs(conn: Connection, organization_id: str, delivery_id: str, limit: int) -> list[RunRow]:
    """Of the latest periods, the last one first."""
    return [RunRow(**row) for row in await conn.fetch(_RUNS, organization_id, delivery_id, limit)]


_CUSTOMER = "SELECT customer_id FROM stripe_customers WHERE organization_id = $1 AND project_id = $2"


async def stripe_customer(conn: Connection, organization_id: str, project_id: str) -> str | None:
    customer_id: str | None = await conn.fetchval(_CUSTOMER, organization_id, project_id)
    return customer_id


_CUSTOMERS = "SELECT project_id, customer_id FROM stripe_customers WHERE organization_id = $1"


async def stripe_customers(conn: Connection, organization_id: str) -> dict[str, str]:
    """By project."""
    return {row["project_id"]: row["customer_id"] for row in await conn.fetch(_CUSTOMERS, organization_id)}


_SET_CUSTOMER = """
    INSERT INTO stripe_customers (organization_id, project_id, customer_id) VALUES ($1, $2, $3)
    ON CONFLICT (project_id) DO UPDATE SET customer_id = excluded.customer_id
"""
_REMOVE_CUSTOMER = "DELETE FROM stripe_customers WHERE organization_id = $1 AND project_id = $2"


async def set_stripe_customer(conn: Connection, organization_id: str, project_id: str, customer_id: str | None) -> None:
    """None: the project has none any more. The project must exist in the organization."""
    if customer_id is None:
        await conn.execute(_REMOVE_CUSTOMER, organization_id, project_id)
    else:
        await conn.execute(_SET_CUSTOMER, organization_id, project_id, customer_id)


def _delivery(row: asyncpg.Record) -> DeliveryRow:
    values = {name: row[name] for name in DeliveryRow.__struct_fields__}
    return DeliveryRow(**values | {"destination": json.loads(row["destination"])})
