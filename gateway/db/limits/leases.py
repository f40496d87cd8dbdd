"""Leases of limits: the part of each limit that each gateway holds. All times are this database's.

A lease counts for as long as its row is there. A gateway without signs of life is suspected first, and forgotten some
time after that, so no lease ends because the database itself was away.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

import asyncpg

from gateway.db.pool import FAILURES, Database
from gateway.domain.limits.exchange import Account, Snapshot
from gateway.domain.limits.slices import Key
from gateway.domain.limits.store import Beat, SessionLost

if TYPE_CHECKING:
    from gateway.db.pool import Connection

SUSPECT_AFTER = datetime.timedelta(seconds=5)
FORGET_AFTER = datetime.timedelta(seconds=15)
"""The time after which a suspected gateway is forgotten: longer than an engine takes to end the requests of a
gateway that died."""

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)

_KNOWN = "SELECT id FROM limit_gateways WHERE id = $1 FOR KEY SHARE"

# In the order of ids, so that no two exchanges wait for each other.
_LOCK = "SELECT id FROM limits WHERE id = ANY($1::text[]) ORDER BY id FOR NO KEY UPDATE"

# After the locks are held, and in a statement of its own: its snapshot has to be younger than they are.
_READ = """
    WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now)
    SELECT l.id, l.max, clock.now, w.start,
           coalesce((SELECT settled FROM limit_accounts a WHERE a.limit_id = l.id AND a.window_start = w.start), 0)
               AS settled,
           coalesce((SELECT sum(amount) FROM limit_leases s
                     WHERE s.limit_id = l.id AND s.window_start = w.start AND s.gateway_id <> $2), 0)::bigint AS leased,
           (SELECT count(*) FROM limit_gateways WHERE suspected_at IS NULL) AS num_gateways
    FROM limits l CROSS JOIN clock CROSS JOIN LATERAL (SELECT limit_window(l.period, clock.now) AS start) w
    WHERE l.id = ANY($1::text[])
"""

_WRITE = """
    INSERT INTO limit_leases (limit_id, window_start, gateway_id, amount)
    SELECT l.id, new.window_start, g.id, new.amount
    FROM unnest($2::text[], $3::timestamptz[], $4::bigint[]) AS new (limit_id, window_start, amount)
        JOIN limits l ON l.id = new.limit_id JOIN limit_gateways g ON g.id = $1
    ON CONFLICT (limit_id, window_start, gateway_id) DO UPDATE SET amount = excluded.amount
"""
_DELETE = """
    DELETE FROM limit_leases s USING unnest($2::text[], $3::timestamptz[]) AS old (limit_id, window_start)
    WHERE s.gateway_id = $1 AND s.limit_id = old.limit_id AND s.window_start = old.window_start
"""


async def write_leases(conn: Connection, gateway_id: str, amounts: Mapping[Key, int]) -> None:
    """Set the amounts that this gateway has leased, by limit; 0 ends the lease.

    Leases of limits that are gone, or of a gateway that was forgotten, are left out.
    """
    some = [(limit_id, utc_time(start), amount) for (limit_id, start), amount in amounts.items() if amount > 0]
    none = [(limit_id, utc_time(start)) for (limit_id, start), amount in amounts.items() if amount <= 0]
    if some:
        await conn.execute(_WRITE, gateway_id, *map(list, zip(*some, strict=True)))
    if none:
        await conn.execute(_DELETE, gateway_id, *map(list, zip(*none, strict=True)))


# No gateway has written for long: this server was away, or its clock has jumped, so that a silence has to be seen anew.
_SUSPECT_ANEW = """
    UPDATE limit_gateways SET suspected_at = clock_timestamp()
    WHERE suspected_at IS NOT NULL AND (SELECT max(heard_at) FROM limit_gateways) < clock_timestamp() - $1::interval
"""
_RENEW = """
    UPDATE limit_gateways SET heard_at = clock_timestamp(), suspected_at = NULL WHERE id = $1
    RETURNING heard_at, (SELECT count(*) FROM limit_gateways WHERE suspected_at IS NULL) AS num_gateways
"""
# A gateway's own row comes first and the others' rows are not waited for, so that no two gateways wait for each other.
# After a long silence no gateway is forgotten: a gateway that was suspected before is suspected anew.
_BEAT = """
    WITH silence AS MATERIALIZED (
        SELECT max(heard_at) < clock_timestamp() - $2::interval AS is_long FROM limit_gateways
    ), heard AS (
        UPDATE limit_gateways SET heard_at = clock_timestamp(), suspected_at = NULL WHERE id = $1
        RETURNING heard_at, (SELECT count(*) FROM limit_gateways WHERE suspected_at IS NULL) AS num_gateways
    ), late AS MATERIALIZED (
        SELECT g.id, NOT s.is_long AND g.suspected_at < clock_timestamp() - $3::interval AS is_gone
        FROM heard CROSS JOIN silence s CROSS JOIN limit_gateways g
        WHERE g.id <> $1 AND ((g.suspected_at IS NULL AND g.heard_at < clock_timestamp() - $2::interval)
                              OR (g.suspected_at IS NOT NULL AND s.is_long)
                              OR g.suspected_at < clock_timestamp() - $3::interval)
        FOR NO KEY UPDATE OF g SKIP LOCKED
    ), suspected AS (
        UPDATE limit_gateways SET suspected_at = clock_timestamp()
        WHERE id IN (SELECT id FROM late WHERE is_gone IS NOT TRUE)
    ), forgotten AS (
        DELETE FROM limit_gateways WHERE id IN (SELECT id FROM late WHERE is_gone)
    )
    SELECT heard_at, num_gateways FROM heard
"""
_CLEAN_UP = """
    DELETE FROM limit_accounts a USING limits l
    WHERE l.id = a.limit_id AND l.period <> 'none' AND a.window_start < clock_timestamp() -
        CASE l.period WHEN 'minute' THEN interval '1 hour' WHEN 'day' THEN interval '3 days' ELSE interval '70 days' END
"""
_CLAIM = "INSERT INTO limit_gateways (id) VALUES ($1)"
_LEAVE = "DELETE FROM limit_gateways WHERE id = $1"


class PostgresLeases:
    """The `LeaseStore` of gateways, as tables of PostgreSQL."""

    failures = FAILURES

    def __init__(self, database: Database) -> None:
        self._database = database

    async def exchange(
        self, gateway_id: str, limit_ids: Collection[str], decide: Callable[[Snapshot | None], Mapping[Key, int]]
    ) -> None:
        """Lock limits, let a function decide which leases the gateway has of them, and store the leases."""
        async with self._database.transaction() as conn:
            if not limit_ids:
                await write_leases(conn, gateway_id, decide(None))
                return
            if await conn.fetchval(_KNOWN, gateway_id) is None:
                raise SessionLost
            await conn.execute(_LOCK, limit_ids)
            await write_leases(conn, gateway_id, decide(_snapshot(await conn.fetch(_READ, limit_ids, gateway_id))))

    async def beat(self, gateway_id: str) -> Beat:
        """Record that the gateway lives, and return the store's answer."""
        async with self._database.acquire() as conn:
            row = await conn.fetchrow(_BEAT, gateway_id, SUSPECT_AFTER, FORGET_AFTER)
            if row is None:
                raise SessionLost
            return Beat(unix_ns(row["heard_at"]), row["num_gateways"])

    async def claim(self, gateway_id: str, amounts: Mapping[Key, int]) -> Beat:
        """Begin a gateway's session again, with the amounts that the gateway still holds."""
        async with self._database.transaction() as conn:
            await conn.execute(_SUSPECT_ANEW, SUSPECT_AFTER)
            await conn.execute(_CLAIM, gateway_id)
            await write_leases(conn, gateway_id, amounts)
            row = await conn.fetchrow(_RENEW, gateway_id)
            assert row is not None
            return Beat(unix_ns(row["heard_at"]), row["num_gateways"])

    async def clean_up(self) -> None:
        """Delete the accounts of windows that are long over."""
        async with self._database.acquire() as conn:
            await conn.execute(_CLEAN_UP)

    async def leave(self, gateway_id: str) -> None:
        """End a gateway's session."""
        async with self._database.acquire() as conn:
            await conn.execute(_LEAVE, gateway_id)


def _snapshot(rows: list[asyncpg.Record]) -> Snapshot:
    if not rows:
        return Snapshot(0, 1, {})
    accounts = {
        row["id"]: Account(int(row["start"].timestamp()), row["max"], row["settled"], row["leased"]) for row in rows
    }
    return Snapshot(unix_ns(rows[0]["now"]), max(1, rows[0]["num_gateways"]), accounts)


def utc_time(unix_s: int) -> datetime.datetime:
    """Return Unix seconds as a time in UTC."""
    return EPOCH + datetime.timedelta(seconds=unix_s)


def unix_ns(time: datetime.datetime) -> int:
    """Return a time in nanoseconds since 1970, exactly: PostgreSQL's times are whole microseconds."""
    return (time - EPOCH) // datetime.timedelta(microseconds=1) * 1000
