"""Billing periods: months that are open until they are closed, in their order, and then never change."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.db.billing.adjustments import carry_over
from gateway.db.billing.credits import draw_credits, grant_carried, refresh_balances
from gateway.db.ledger.journals import lost_journals
from gateway.db.ledger.rollups import roll_up_all
from gateway.db.ledger.standstill import hold_ledger
from gateway.db.organization.organizations import lock_organization
from gateway.domain.billing.closing import LostJournals, objection

if TYPE_CHECKING:
    from gateway.db.pool import Connection

State = Literal["open", "closed", "invoiced"]


class PeriodRow(msgspec.Struct, frozen=True):
    """A month, by its first day, with the number and the cost of its requests."""

    start: datetime.date
    closed_at: datetime.datetime | None
    invoiced_at: datetime.datetime | None
    num_requests: int
    cost_nanos: int

    @property
    def state(self) -> State:
        """The state of the period: open, closed or invoiced."""
        if self.invoiced_at is not None:
            return "invoiced"
        return "open" if self.closed_at is None else "closed"


class CannotClose(Exception):
    """The error for a month that has to stay open for now; the message says why."""


_LIST = """
    SELECT m.start, b.closed_at, b.invoiced_at, coalesce(s.num_requests, 0) AS num_requests,
           coalesce(s.cost_nanos, 0) AS cost_nanos
    FROM (
        SELECT start FROM billing_periods WHERE organization_id = $1
        UNION SELECT period FROM period_sums WHERE organization_id = $1
        UNION SELECT greatest(month_of(now()), open_from($1))
    ) m
    LEFT JOIN billing_periods b ON b.organization_id = $1 AND b.start = m.start
    LEFT JOIN (
        SELECT period, sum(num_requests)::bigint AS num_requests, sum(cost_nanos) AS cost_nanos
        FROM period_sums WHERE organization_id = $1 GROUP BY period
    ) s ON s.period = m.start
    WHERE $2::date IS NULL OR m.start = $2
    ORDER BY m.start DESC
"""


async def list_periods(conn: Connection, organization_id: str) -> list[PeriodRow]:
    """Return periods, newest first: those with usage, those that were closed, and the present one."""
    return [PeriodRow(*row) for row in await conn.fetch(_LIST, organization_id, None)]


async def get_period(conn: Connection, organization_id: str, start: datetime.date) -> PeriodRow | None:
    """Return a period of an organization; None where there is none."""
    row = await conn.fetchrow(_LIST, organization_id, start)
    return PeriodRow(*row) if row else None


_FIRST_AND_LAST = """
    SELECT least((SELECT min(start) FROM billing_periods WHERE organization_id = $1),
                 (SELECT min(period) FROM period_sums WHERE organization_id = $1), month_of(now())) AS first,
           greatest((SELECT max(period) FROM period_sums WHERE organization_id = $1), month_of(now()),
                    open_from($1)) AS last
"""


async def first_and_last(conn: Connection, organization_id: str) -> tuple[datetime.date, datetime.date]:
    """Return the first days of the first month with usage and of the present month."""
    row = await conn.fetchrow(_FIRST_AND_LAST, organization_id)
    assert row is not None
    return row["first"], row["last"]


_SITUATION = """
    SELECT clock_timestamp() AS now,
           coalesce((SELECT (max(start) + interval '1 month')::date FROM billing_periods WHERE organization_id = $1),
                    (SELECT min(period) FROM period_sums WHERE organization_id = $1), month_of(now())) AS next
"""
_CLOSE = "INSERT INTO billing_periods (organization_id, start) VALUES ($1, $2)"


async def close_period(conn: Connection, organization_id: str, start: datetime.date) -> PeriodRow:
    """Close a month that is open, in the caller's transaction: its credits are drawn, and its rows change no more.

    The usage of every organization waits until the transaction ends: call `catch_up` first, and end it soon.

    Raises CannotClose: when the month may not be closed yet; the error has the reason.
    Raises one of `CONFLICTS`: when another transaction is in the way; try again.
    """
    await lock_organization(conn, organization_id)
    await hold_ledger(conn)
    await roll_up_all(conn)
    situation = await conn.fetchrow(_SITUATION, organization_id)
    assert situation is not None
    lost = [LostJournals(each.heard_at, each.open_requests) for each in await lost_journals(conn)]
    reason = objection(start, situation["next"], situation["now"], lost[-1] if lost else None)
    if reason is not None:
        raise CannotClose(reason)
    if refunds := await carry_over(conn, organization_id, start):
        await roll_up_all(conn)
        await grant_carried(conn, organization_id, start, refunds)
    await conn.execute(_CLOSE, organization_id, start)
    await draw_credits(conn, organization_id, start)
    await refresh_balances(conn, organization_id)
    closed = await get_period(conn, organization_id, start)
    assert closed is not None
    return closed


_INVOICED = """
    UPDATE billing_periods SET invoiced_at = clock_timestamp()
    WHERE organization_id = $1 AND start = $2 AND invoiced_at IS NULL
"""


async def mark_invoiced(conn: Connection, organization_id: str, start: datetime.date) -> None:
    """Record that the invoices of a period were issued."""
    await conn.execute(_INVOICED, organization_id, start)
