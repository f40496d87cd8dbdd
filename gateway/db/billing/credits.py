"""Credits of projects, and the prepaid balance that they make: a hard limit of a project's cost without a window.

Every change of credits computes the balance anew from the rows, in one statement. For each row of usage that statement
sees both its cost and its place in the limit's account, or neither. Writers of usage need not wait for it.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gateway.db.billing.adjustments import CarriedAmount
from gateway.db.ids import new_id
from gateway.db.ledger.standstill import hold_ledger
from gateway.db.limits.limits import remove_limit, set_limit
from gateway.db.organization.organizations import lock_organization
from gateway.domain.billing.credits import Grant, expired_remainders
from gateway.domain.limits.limit import Limit

if TYPE_CHECKING:
    import asyncpg

    from gateway.db.pool import Connection

_LIST = """
    SELECT g.id, g.project_id, g.amount_nanos, g.reason, g.created_at, g.expires_at, g.lapsed_nanos,
           coalesce((SELECT sum(d.amount_nanos) FROM credit_draws d WHERE d.grant_id = g.id), 0)::bigint AS drawn
    FROM credit_grants g WHERE g.organization_id = $1 AND g.project_id = $2 ORDER BY g.created_at, g.id
"""


async def list_grants(conn: Connection, organization_id: str, project_id: str) -> list[Grant]:
    """Return the project's grants, oldest first."""
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
    """Grant a credit to a project, in the caller's transaction.

    expires_at: the end of the credit; None: it does not expire.
    """
    grant_id = new_id("credit")
    await conn.execute(_GRANT, grant_id, organization_id, project_id, amount_nanos, reason, expires_at)
    await refresh_balances(conn, organization_id, project_id)
    (grant,) = [each for each in await list_grants(conn, organization_id, project_id) if each.id == grant_id]
    return grant


_BALANCE = "SELECT nanos FROM balances($1, $2)"
_FIND_LIMIT = """
    SELECT id FROM limits
    WHERE organization_id = $1 AND project_id = $2 AND unit = 'cost_nanos' AND period = 'none' AND hard
"""

# In the order of ids, as gateways lock them to exchange leases.
_LOCK_LIMITS = """
    SELECT id FROM limits
    WHERE organization_id = $1 AND ($2::text IS NULL OR project_id = $2) AND project_id IS NOT NULL
        AND unit = 'cost_nanos' AND period = 'none' AND hard
    ORDER BY id FOR NO KEY UPDATE
"""
# A bigint holds an account and its max for as long as the account begins anew in time.
_BEGIN_ANEW = """
    UPDATE limit_accounts SET settled = 0
    WHERE limit_id = ANY ($1::text[]) AND window_start = 'epoch' AND abs(settled) > 4000000000000000000
"""
_SET_MAX = """
    UPDATE limits l SET max = n.max
    FROM (
        SELECT p.id, saturated(greatest(0, coalesce(b.nanos, 0) + coalesce(a.settled, 0))) AS max
        FROM limits p LEFT JOIN balances($2, $3) b ON b.project_id = p.project_id
            LEFT JOIN limit_accounts a ON a.limit_id = p.id AND a.window_start = 'epoch'
        WHERE p.id = ANY ($1::text[])
    ) n WHERE n.id = l.id AND l.max <> n.max
"""
# Thresholds that more credit has put out of reach are announced when they are crossed again.
_REARM = """
    DELETE FROM limit_alerts a USING limits l, limit_accounts s
    WHERE l.id = ANY ($1::text[]) AND a.limit_id = l.id AND s.limit_id = l.id AND s.window_start = a.window_start
        AND s.settled::numeric * 100 < l.max::numeric * a.percent
"""


async def current_balance(conn: Connection, organization_id: str, project_id: str) -> int:
    """Return the project's credits less the cost of open periods; negative where the project owes."""
    nanos: int | None = await conn.fetchval(_BALANCE, organization_id, project_id)
    return nanos or 0


async def find_balance_limit(conn: Connection, organization_id: str, project_id: str) -> str | None:
    """Return the id of the limit that holds a prepaid project to its balance, or None for one that pays by invoice."""
    limit_id: str | None = await conn.fetchval(_FIND_LIMIT, organization_id, project_id)
    return limit_id


async def refresh_balances(conn: Connection, organization_id: str, project_id: str | None = None) -> None:
    """Recompute the balances of the organization's prepaid projects, or of one, and set these as limits."""
    limit_ids = [row["id"] for row in await conn.fetch(_LOCK_LIMITS, organization_id, project_id)]
    if limit_ids:
        await conn.execute(_BEGIN_ANEW, limit_ids)
        await conn.execute(_SET_MAX, limit_ids, organization_id, project_id)
        await conn.execute(_REARM, limit_ids)


async def set_prepaid(conn: Connection, organization_id: str, project_id: str, prepaid: bool) -> bool:
    """Set whether a project pays in advance, and return whether that changed anything.

    Runs in the caller's transaction.

    prepaid: True: in advance; False: by invoice.

    Raises one of `CONFLICTS`: when another transaction is in the way; try again.
    """
    limit_id = await find_balance_limit(conn, organization_id, project_id)
    if prepaid == (limit_id is not None):
        return False
    if limit_id is not None:
        return await remove_limit(conn, organization_id, project_id, limit_id)
    await hold_ledger(conn)  # before the limit, as for every other limit: its account has all that is written later
    limit = Limit("", organization_id, project_id, None, None, "cost_nanos", "none", 0, True, (80, 100))
    await set_limit(conn, limit)
    await refresh_balances(conn, organization_id, project_id)
    return True


# Oldest first: `before` is the amount that older credits have left.
_DRAW = """
    INSERT INTO credit_draws (grant_id, period, amount_nanos)
    SELECT g.id, $2, least(g.remaining, g.cost_nanos - g.before)
    FROM (
        SELECT r.id, r.cost_nanos, r.remaining,
               sum(r.remaining) OVER (PARTITION BY r.project_id ORDER BY r.created_at, r.id) - r.remaining AS before
        FROM (
            SELECT g.id, g.project_id, g.created_at, c.cost_nanos, g.amount_nanos - coalesce(g.lapsed_nanos, 0)
                   - coalesce((SELECT sum(d.amount_nanos) FROM credit_draws d WHERE d.grant_id = g.id), 0) AS remaining
            FROM (SELECT project_id, sum(cost_nanos) AS cost_nanos FROM period_sums
                  WHERE organization_id = $1 AND period = $2 GROUP BY project_id) c
                JOIN credit_grants g ON g.organization_id = $1 AND g.project_id = c.project_id
        ) r
    ) g WHERE g.remaining > 0 AND g.cost_nanos > g.before
"""


async def draw_credits(conn: Connection, organization_id: str, period: datetime.date) -> None:
    """Draw the cost of a period that is being closed from every project's credits (`billing.credits.draw_credits`)."""
    await conn.execute(_DRAW, organization_id, period)


_GRANT_CARRIED = """
    INSERT INTO credit_grants (id, organization_id, project_id, amount_nanos, reason)
    SELECT c.id, $1, c.project_id, c.nanos, 'Carried over from ' || to_char($2::date, 'YYYY-MM')
    FROM unnest($3::text[], $4::text[], $5::bigint[]) AS c (id, project_id, nanos)
"""


async def grant_carried(
    conn: Connection, organization_id: str, period: datetime.date, carried: Sequence[CarriedAmount]
) -> None:
    """Turn the amounts that a period which is being closed owes projects into credit that never expires."""
    ids = [new_id("credit") for _ in carried]
    columns = [each.project_id for each in carried], [each.nanos for each in carried]
    await conn.execute(_GRANT_CARRIED, organization_id, period, ids, *columns)


_DUE = """
    SELECT g.organization_id, g.project_id FROM credit_grants g
    WHERE g.lapsed_nanos IS NULL AND g.expires_at <= clock_timestamp() ORDER BY g.expires_at LIMIT 1
"""
_LOCK_LIMIT = "SELECT id FROM limits WHERE id = $1 FOR NO KEY UPDATE"

# In one statement: usage that is written moves from the reserved amount to the spent one.
_PENDING = """
    SELECT coalesce((SELECT cost_nanos FROM open_costs($1, $2)), 0)
         + coalesce((SELECT sum(amount) FROM limit_leases WHERE limit_id = $3 AND window_start = 'epoch'), 0)
"""
_NOW = "SELECT clock_timestamp()"
_LAPSE = "UPDATE credit_grants SET lapsed_nanos = $2 WHERE id = $1 AND lapsed_nanos IS NULL"


async def lapse_due(conn: Connection) -> bool:
    """Let the grants of one project that have expired lapse, in a transaction of its own. Return whether there was one.

    The amounts that running requests have reserved by then stay reserved; nobody reserves more meanwhile.
    """
    if await conn.fetchrow(_DUE) is None:
        return False
    async with conn.transaction():
        due = await conn.fetchrow(_DUE)
        if due is None:
            return False
        owner = (due["organization_id"], due["project_id"])
        await lock_organization(conn, owner[0])  # the same lock as for closing a period, which draws credits
        limit_id = await find_balance_limit(conn, *owner)
        if limit_id is not None:
            await conn.execute(_LOCK_LIMIT, limit_id)
        pending: int = await conn.fetchval(_PENDING, *owner, limit_id)
        now: datetime.datetime = await conn.fetchval(_NOW)
        for grant_id, left in expired_remainders(await list_grants(conn, *owner), pending, now).items():
            await conn.execute(_LAPSE, grant_id, left)
        await refresh_balances(conn, *owner)
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
