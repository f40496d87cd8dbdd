"""Credits of projects, and the prepaid balance that they make: a hard limit of a project's cost without a window.

Whatever changes credits computes the balance anew from the rows, while nobody writes usage.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from gateway.billing.credits import Grant, balance, draw, lapse
from gateway.db.ids import new_id
from gateway.db.limits import remove_limit, set_limit
from gateway.db.rollups import roll_up_all
from gateway.limits.limit import Limit

if TYPE_CHECKING:
    import asyncpg

    from gateway.db.pool import Connection

_LOCK_LEDGER = "LOCK TABLE ONLY ledger IN SHARE MODE"

_LIST = """
    SELECT g.id, g.project_id, g.amount_nanos, g.reason, g.created_at, g.expires_at, g.lapsed_nanos,
           coalesce((SELECT sum(d.amount_nanos) FROM credit_draws d WHERE d.grant_id = g.id), 0)::bigint AS drawn
    FROM credit_grants g WHERE g.organization_id = $1 AND g.project_id = $2 ORDER BY g.created_at, g.id
"""


async def list_grants(conn: Connection, organization_id: str, project_id: str) -> list[Grant]:
    """Oldest first."""
    return [_grant(row) for row in await conn.fetch(_LIST, organization_id, project_id)]


_GRANT = """
    INSERT INTO credit_grants (id, organization_id, project_id, amount_nanos, reason, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6)
"""


async def grant_credit(
    conn: Connection,
    organization_id: str,
    project_id: str,
    amount_nanos: int,
    *,
    reason: str,
    expires_at: datetime.datetime | None,
) -> Grant:
    """In the caller's transaction, as everything that follows."""
    grant_id = new_id("credit")
    await conn.execute(_GRANT, grant_id, organization_id, project_id, amount_nanos, reason, expires_at)
    await refresh_balance(conn, organization_id, project_id)
    (grant,) = [each for each in await list_grants(conn, organization_id, project_id) if each.id == grant_id]
    return grant


_OPEN_COST = """
    SELECT coalesce(sum(cost_nanos), 0)::bigint FROM period_sums
    WHERE organization_id = $1 AND project_id = $2 AND period >= open_from($1)
"""
_FIND_LIMIT = """
    SELECT id FROM limits
    WHERE organization_id = $1 AND project_id = $2 AND unit = 'cost_nanos' AND period = 'none' AND hard
"""
_SET_MAX = """
    UPDATE limits SET max = greatest(0, $2 + coalesce(
        (SELECT settled FROM limit_accounts a WHERE a.limit_id = limits.id AND a.window_start = 'epoch'), 0))
    WHERE id = $1
"""
# Thresholds that more credit has put out of reach are announced when they are crossed again.
_REARM = """
    DELETE FROM limit_alerts a USING limits l, limit_accounts s
    WHERE l.id = $1 AND a.limit_id = l.id AND s.limit_id = l.id AND s.window_start = a.window_start
        AND s.settled::numeric * 100 < l.max::numeric * a.percent
"""


async def current_balance(conn: Connection, organization_id: str, project_id: str) -> int:
    """What the project's credits come to, less what the sums have of its cost; negative where it owes."""
    open_cost: int = await conn.fetchval(_OPEN_COST, organization_id, project_id)
    return balance(await list_grants(conn, organization_id, project_id), open_cost)


async def find_balance_limit(conn: Connection, organization_id: str, project_id: str) -> str | None:
    """Id of the limit that holds a prepaid project to its balance; None for one that pays by invoice."""
    limit_id: str | None = await conn.fetchval(_FIND_LIMIT, organization_id, project_id)
    return limit_id


async def refresh_balance(conn: Connection, organization_id: str, project_id: str) -> int:
    """Compute the balance, up to the last row, and hold a prepaid project to it."""
    await conn.execute(_LOCK_LEDGER)
    await roll_up_all(conn)
    now = await current_balance(conn, organization_id, project_id)
    if (limit_id := await find_balance_limit(conn, organization_id, project_id)) is not None:
        await conn.execute(_SET_MAX, limit_id, now)
        await conn.execute(_REARM, limit_id)
    return now


async def set_prepaid(conn: Connection, organization_id: str, project_id: str, prepaid: bool) -> bool:
    """Whether that changed anything."""
    limit_id = await find_balance_limit(conn, organization_id, project_id)
    if prepaid == (limit_id is not None):
        return False
    if limit_id is not None:
        return await remove_limit(conn, organization_id, project_id, limit_id)
    await conn.execute(_LOCK_LEDGER)  # before the limit, as who makes any other does
    limit = Limit("", organization_id, project_id, None, None, "cost_nanos", "none", 0, True, (80, 100))
    await set_limit(conn, limit)
    await refresh_balance(conn, organization_id, project_id)
    return True


_DRAW = "INSERT INTO credit_draws (grant_id, period, amount_nanos) VALUES ($1, $2, $3)"


async def draw_credits(
    conn: Connection, organization_id: str, project_id: str, period: datetime.date, cost_nanos: int
) -> int:
    """What a period that is being closed takes of the project's credits."""
    taken = draw(await list_grants(conn, organization_id, project_id), cost_nanos)
    for grant_id, amount in taken.items():
        await conn.execute(_DRAW, grant_id, period, amount)
    return sum(taken.values())


_DUE = """
    SELECT g.organization_id, g.project_id FROM credit_grants g
    WHERE g.lapsed_nanos IS NULL AND g.expires_at <= clock_timestamp() ORDER BY g.expires_at LIMIT 1
"""
_LOCK_GRANTS = """
    SELECT clock_timestamp() AS now FROM credit_grants WHERE organization_id = $1 AND project_id = $2
    ORDER BY id FOR UPDATE
"""
_RESERVED = """
    SELECT coalesce(sum(s.amount), 0)::bigint FROM limit_leases s WHERE s.limit_id = $1 AND s.window_start = 'epoch'
"""
_LAPSE = "UPDATE credit_grants SET lapsed_nanos = $2 WHERE id = $1 AND lapsed_nanos IS NULL"


async def lapse_due(conn: Connection) -> bool:
    """Let the grants of one project lapse that have expired, in a transaction of its own; whether there was one. What
    running requests have reserved by then stays theirs."""
    async with conn.transaction():
        due = await conn.fetchrow(_DUE)
        if due is None:
            return False
        owner = (due["organization_id"], due["project_id"])
        await conn.execute(_LOCK_LEDGER)
        await roll_up_all(conn)
        locked = await conn.fetch(_LOCK_GRANTS, *owner)
        limit_id = await find_balance_limit(conn, *owner)
        pending: int = await conn.fetchval(_OPEN_COST, *owner)
        if limit_id is not None:
            pending += await conn.fetchval(_RESERVED, limit_id)
        for grant_id, left in lapse(await list_grants(conn, *owner), pending, locked[0]["now"]).items():
            await conn.execute(_LAPSE, grant_id, left)
        await refresh_balance(conn, *owner)
        return True


def _grant(row: asyncpg.Record) -> Grant:
    return Grant(
        row["id"],
        row["project_id"],
        row["amount_nanos"],
        row["reason"],
        row["created_at"],
        row["expires_at"],
        row["drawn"],
        row["lapsed_nanos"],
    )
