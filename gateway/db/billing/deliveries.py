"""Deliveries of exports: their destinations, the periods that are due, and Stripe's customers.

One session at a time delivers: it holds an advisory lock, and the state of a delivery is written on that very session,
so that one that lost the lock cannot say that it delivered.
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
WATCHED_DAYS = 62
"""The days for which a delivered day is delivered again if its sums change, as by a late journal or a correction.

Daily deliveries begin no earlier.
"""

_LOCK_KEY = 0x6C6F726964656C76  # "loridelv"
_TRY_LOCK = "SELECT pg_try_advisory_lock($1)"
_UNLOCK = "SELECT pg_advisory_unlock($1)"


async def try_become_deliverer(conn: Connection) -> bool:
    """Take the lock to deliver; return whether this session has it, until `stop_delivering` or the session's end."""
    return bool(await conn.fetchval(_TRY_LOCK, _LOCK_KEY))


async def stop_delivering(conn: Connection) -> None:
    """Release the lock to deliver.

    If the session cannot answer any more, it is ended, which gives the lock up as well.
    """
    try:
        await conn.execute(_UNLOCK, _LOCK_KEY)
    except BaseException:
        conn.terminate()
        raise


class DeliveryRow(msgspec.Struct, frozen=True):
    """A delivery of exports."""

    id: str
    organization_id: str
    name: str
    kind: str
    format: str
    schedule: str
    destination: dict[str, Any]
    """The destination in the form that may be shown."""
    content_key: str | None
    """The id of the content key that encrypted the secret; None: the secret is in clear."""
    secret: bytes | None
    """The secret for the destination, which is never shown."""
    from_period: datetime.date
    created_at: datetime.datetime


class DueRun(msgspec.Struct, frozen=True):
    """A period to deliver now."""

    delivery: DeliveryRow
    period: str
    attempts: int
    """The number of earlier attempts to deliver the period, which failed."""
    sums: str | None
    """The sums of the ledger's rows for a period that is a day, by which a later change is noticed; None for a month.
    """


class RunRow(msgspec.Struct, frozen=True):
    """A period of a delivery, and the attempts to deliver the export of that period."""

    delivery_id: str
    period: str
    attempts: int
    due_at: datetime.datetime
    delivered_at: datetime.datetime | None
    last_error: str | None


_CREATE = """
    INSERT INTO deliveries (id, organization_id, name, kind, format, schedule, destination, content_key, secret,
                            from_period)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $11, $8, $9)
    ON CONFLICT (organization_id, name) DO UPDATE SET
        kind = excluded.kind, format = excluded.format, schedule = excluded.schedule,
        destination = excluded.destination, content_key = excluded.content_key, secret = excluded.secret,
        from_period = CASE WHEN $10 OR deliveries.schedule <> excluded.schedule THEN excluded.from_period
            ELSE deliveries.from_period END
    RETURNING id, organization_id, name, kind, format, schedule, destination, content_key, secret, from_period,
              created_at
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
    content_key: str | None,
    secret: bytes | None,
    from_period: datetime.date,
    move: bool,
) -> DeliveryRow:
    """Make a delivery, or change the one of this name; what was delivered stays delivered.

    move: let it begin at from_period even if it began at another period of the same schedule. secret: the encrypted
    secret of the destination, and content_key: the id of the key that it is encrypted with; None for a destination
    without a secret.
    """
    values = (name, kind, format, schedule, json.dumps(destination), secret, from_period, move, content_key)
    row = await conn.fetchrow(_CREATE, new_id("dlv"), organization_id, *values)
    assert row is not None
    return _delivery(row)


_LIST = """
    SELECT id, organization_id, name, kind, format, schedule, destination, content_key, secret, from_period, created_at
    FROM deliveries
    WHERE organization_id = $1
      AND ($2::text IS NULL OR (created_at, id) > (SELECT created_at, id FROM deliveries
                                                   WHERE organization_id = $1 AND id = $2))
    ORDER BY created_at, id LIMIT $3
"""


async def list_deliveries(
    conn: Connection, organization_id: str, *, after: str | None = None, limit: int = 100
) -> list[DeliveryRow]:
    """Return deliveries, oldest first, those that follow the delivery with id `after`."""
    return [_delivery(row) for row in await conn.fetch(_LIST, organization_id, after, limit)]


_REMOVE = """
    DELETE FROM deliveries WHERE organization_id = $1 AND id = $2
    RETURNING id, organization_id, name, kind, format, schedule, destination, content_key, secret, from_period,
              created_at
"""


async def remove_delivery(conn: Connection, organization_id: str, delivery_id: str) -> DeliveryRow | None:
    """Delete a delivery and return it, None if there was none. Files that it delivered stay where they are."""
    row = await conn.fetchrow(_REMOVE, organization_id, delivery_id)
    return _delivery(row) if row else None


# A day is due once it is over and late rows have had an hour; a month once it is closed.
_QUEUE_DAYS = """
    INSERT INTO delivery_runs (delivery_id, period)
    SELECT d.id, to_char(day, 'YYYY-MM-DD')
    FROM deliveries d
        CROSS JOIN LATERAL generate_series(
            d.from_period::timestamp, (now() AT TIME ZONE 'UTC') - interval '25 hours', interval '1 day') day
    WHERE d.schedule = 'daily'
    ON CONFLICT DO NOTHING
"""
# The sums are by the time of usage, whatever month bills it. So a late row of a closed month has its day delivered
# again as well, with the same bytes as before: it is in the export of the month that bills it.
_QUEUE_DAYS_AGAIN = """
    WITH checked AS (
        SELECT r.delivery_id, r.period,
               r.sums IS DISTINCT FROM day_sums(d.organization_id, r.period::date) AS is_changed
        FROM delivery_runs r JOIN deliveries d ON d.id = r.delivery_id
        WHERE d.schedule = 'daily' AND length(r.period) = 10 AND r.delivered_at IS NOT NULL
            AND r.period >= to_char((now() AT TIME ZONE 'UTC')::date - $1::integer, 'YYYY-MM-DD') COLLATE "C"
            AND (r.checked_at IS NULL OR r.checked_at < now() - interval '1 hour')
    )
    UPDATE delivery_runs r
    SET checked_at = now(),
        delivered_at = CASE WHEN NOT c.is_changed THEN r.delivered_at END,
        due_at = CASE WHEN c.is_changed THEN now() ELSE r.due_at END,
        attempts = CASE WHEN c.is_changed THEN 0 ELSE r.attempts END
    FROM checked c WHERE r.delivery_id = c.delivery_id AND r.period = c.period
"""
_QUEUE_MONTHS = """
    INSERT INTO delivery_runs (delivery_id, period)
    SELECT d.id, to_char(p.start, 'YYYY-MM')
    FROM deliveries d JOIN billing_periods p ON p.organization_id = d.organization_id AND p.start >= d.from_period
    WHERE d.schedule = 'monthly'
    ON CONFLICT DO NOTHING
"""


async def queue_due_periods(conn: Connection) -> None:
    """Queue periods of deliveries that have ended, and delivered days whose sums in the ledger changed since."""
    await conn.execute(_QUEUE_DAYS)
    await conn.execute(_QUEUE_DAYS_AGAIN, WATCHED_DAYS)
    await conn.execute(_QUEUE_MONTHS)


# The sums are read before the export is made: rows that come in between cause one delivery more, and none is missed.
_NEXT = """
    SELECT d.id, d.organization_id, d.name, d.kind, d.format, d.schedule, d.destination, d.content_key, d.secret,
           d.from_period, d.created_at, r.period, r.attempts,
           CASE WHEN length(r.period) = 10 THEN day_sums(d.organization_id, r.period::date) END AS sums
    FROM delivery_runs r JOIN deliveries d ON d.id = r.delivery_id
    WHERE r.delivered_at IS NULL AND r.due_at <= clock_timestamp()
    ORDER BY r.due_at, r.delivery_id, r.period LIMIT 1
"""


async def next_due_run(conn: Connection) -> DueRun | None:
    """Return the delivery of a period that is due; None where nothing is."""
    row = await conn.fetchrow(_NEXT)
    return DueRun(_delivery(row), row["period"], row["attempts"], row["sums"]) if row else None


_DELIVERED = """
    UPDATE delivery_runs
    SET delivered_at = clock_timestamp(), checked_at = clock_timestamp(), attempts = attempts + 1, last_error = NULL,
        sums = $3
    WHERE delivery_id = $1 AND period = $2
"""
_FAILED = """
    UPDATE delivery_runs
    SET attempts = attempts + 1, last_error = $3,
        due_at = clock_timestamp() + least($5::interval, $4::interval * 2 ^ least(attempts, 20))
    WHERE delivery_id = $1 AND period = $2
"""


async def note_delivered(conn: Connection, run: DueRun) -> None:
    """Record that the export of a period was delivered."""
    await conn.execute(_DELIVERED, run.delivery.id, run.period, run.sums)


async def note_failed(
    conn: Connection, run: DueRun, error: str, *, first_delay: datetime.timedelta = FIRST_DELAY
) -> None:
    """Record a failed attempt to deliver the export of a period.

    The export is due again after first_delay, which doubles with each attempt up to LONGEST_DELAY, and never given up.
    """
    await conn.execute(_FAILED, run.delivery.id, run.period, error, first_delay, LONGEST_DELAY)


_RUNS = """
    SELECT r.delivery_id, r.period, r.attempts, r.due_at, r.delivered_at, r.last_error
    FROM delivery_runs r JOIN deliveries d ON d.id = r.delivery_id
    WHERE d.organization_id = $1 AND r.delivery_id = $2
    ORDER BY r.period COLLATE "C" DESC LIMIT $3
"""


async def list_runs(conn: Connection, organization_id: str, delivery_id: str, limit: int) -> list[RunRow]:
    """Return the runs of the latest periods, the last one first."""
    return [RunRow(**row) for row in await conn.fetch(_RUNS, organization_id, delivery_id, limit)]


_CUSTOMER = "SELECT customer_id FROM stripe_customers WHERE organization_id = $1 AND project_id = $2"


async def stripe_customer(conn: Connection, organization_id: str, project_id: str) -> str | None:
    """Return the Stripe customer of a project; None where there is none."""
    customer_id: str | None = await conn.fetchval(_CUSTOMER, organization_id, project_id)
    return customer_id


_CUSTOMERS = """
    SELECT project_id, customer_id FROM period_stripe_customers WHERE organization_id = $1 AND period = $2
    UNION ALL
    SELECT project_id, customer_id FROM stripe_customers WHERE organization_id = $1 AND $2 >= open_from($1)
"""


async def stripe_customers(conn: Connection, organization_id: str, month: datetime.date) -> dict[str, str]:
    """Return the ids of Stripe customers by project.

    Return those as of the month's close, or those of now while the month is open.
    """
    return {row["project_id"]: row["customer_id"] for row in await conn.fetch(_CUSTOMERS, organization_id, month)}


_WITHOUT_CUSTOMER = """
    WITH customers AS (
        SELECT project_id FROM period_stripe_customers WHERE organization_id = $1 AND period = $2
        UNION ALL
        SELECT project_id FROM stripe_customers WHERE organization_id = $1 AND $2 >= open_from($1)
    )
    SELECT p.id, coalesce(p.archived_name, p.name) AS name FROM projects p
    WHERE p.organization_id = $1
        AND EXISTS (SELECT FROM stripe_customers c WHERE c.organization_id = $1)
        AND EXISTS (SELECT FROM period_sums s WHERE s.organization_id = $1 AND s.project_id = p.id AND s.period = $2
                    AND s.kind = 'usage')
        AND p.id NOT IN (SELECT project_id FROM customers)
    ORDER BY name, p.id
"""


async def projects_without_customer(
    conn: Connection, organization_id: str, month: datetime.date
) -> list[tuple[str, str]]:
    """Return (id, name) of the projects with usage in the month for which its meter events name no customer.

    None are returned where no project has a customer, since Stripe is then not what bills them.
    """
    return [(row["id"], row["name"]) for row in await conn.fetch(_WITHOUT_CUSTOMER, organization_id, month)]


_SET_CUSTOMER = """
    INSERT INTO stripe_customers (organization_id, project_id, customer_id) VALUES ($1, $2, $3)
    ON CONFLICT (project_id) DO UPDATE SET customer_id = excluded.customer_id
"""
_REMOVE_CUSTOMER = "DELETE FROM stripe_customers WHERE organization_id = $1 AND project_id = $2"


async def set_stripe_customer(conn: Connection, organization_id: str, project_id: str, customer_id: str | None) -> None:
    """Set the project's customer of Stripe; None: it has none any more. The project must exist in the organization."""
    if customer_id is None:
        await conn.execute(_REMOVE_CUSTOMER, organization_id, project_id)
    else:
        await conn.execute(_SET_CUSTOMER, organization_id, project_id, customer_id)


def _delivery(row: asyncpg.Record) -> DeliveryRow:
    values = {name: row[name] for name in DeliveryRow.__struct_fields__}
    return DeliveryRow(**values | {"destination": json.loads(row["destination"])})
