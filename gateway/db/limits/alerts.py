"""Finds states in the database that need an operator's attention now."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MOST = 100
"""The most alerts of each kind that are returned: the worst or the latest ones."""

EXPIRES_WITHIN = datetime.timedelta(days=7)
REJECTED_WITHIN = datetime.timedelta(days=1)
DEFAULT_PERCENT = 80
"""The percentage at which a limit without thresholds of its own shows as an alert."""


class FullLimit(msgspec.Struct, frozen=True):
    """A limit whose first threshold is reached by the used and reserved amount."""

    id: str
    project_id: str | None
    """The project; None for a limit of the organization."""
    project_name: str | None
    model: str | None
    unit: str
    window: str
    max: int
    """The amount of the limit, in its unit."""
    hard: bool
    """True if the limit refuses requests; False if it only alerts."""
    taken: int
    """The used and reserved amount."""


# Each table is read once for all limits. `stored` is the result of stored_bytes(), for all projects at a time.
_LIMITS = """
    WITH windows AS MATERIALIZED (
        SELECT period, limit_window(period, now()) AS start FROM unnest('{day,month,none}'::text[]) AS period
    ), chosen AS MATERIALIZED (
        SELECT l.*, w.start FROM limits l JOIN windows w USING (period)
        WHERE l.organization_id = $1 AND ($2::text[] IS NULL OR l.project_id = ANY ($2))
          AND l.unit <> 'concurrency' AND l.max > 0
    ), leased AS (
        SELECT s.limit_id, s.window_start, sum(s.amount)::bigint AS amount FROM limit_leases s
        WHERE s.limit_id IN (SELECT id FROM chosen) GROUP BY s.limit_id, s.window_start
    ), stored AS (
        SELECT d.project_id, sum(d.size_bytes)::bigint AS bytes FROM (
            SELECT DISTINCT a.project_id, v.digest, v.size_bytes
            FROM adapters a JOIN adapter_versions v ON v.adapter_id = a.id AND v.state NOT IN ('rejected', 'deleted')
            WHERE a.project_id IN (SELECT project_id FROM chosen WHERE unit = 'storage_bytes') AND a.removed_at IS NULL
        ) d GROUP BY d.project_id
    ), filled AS (
        SELECT c.*, CASE WHEN c.unit <> 'storage_bytes' THEN coalesce(a.settled, 0) + coalesce(s.amount, 0)
                          WHEN c.project_id IS NULL THEN stored_bytes(c.organization_id, NULL)
                          ELSE coalesce(k.bytes, 0) END AS taken
        FROM chosen c LEFT JOIN limit_accounts a ON a.limit_id = c.id AND a.window_start = c.start
            LEFT JOIN leased s ON s.limit_id = c.id AND s.window_start = c.start
            LEFT JOIN stored k ON k.project_id = c.project_id
    )
    SELECT f.id, f.project_id, p.name AS project_name, f.model, f.unit, f.period AS window, f.max, f.hard, f.taken
    FROM filled f LEFT JOIN projects p ON p.id = f.project_id
    WHERE p.archived_at IS NULL AND f.taken > 0 AND least(div(f.taken * 100::numeric, f.max), 100)::integer
          >= ANY (CASE f.alert_percents WHEN '{}' THEN ARRAY[$3::integer] ELSE f.alert_percents END)
    ORDER BY f.taken::numeric / f.max DESC, f.id LIMIT $4
"""


async def full_limits(conn: Connection, organization_id: str, project_ids: Sequence[str] | None) -> list[FullLimit]:
    """Return the limits that are nearly used up, the fullest first.

    Limits per minute and of running requests are left out: they are full all the time, and free again soon.
    project_ids None: of all projects, and the organization's own.
    """
    only = None if project_ids is None else list(project_ids)
    return [FullLimit(**row) for row in await conn.fetch(_LIMITS, organization_id, only, DEFAULT_PERCENT, MOST)]


class EndingKey(msgspec.Struct, frozen=True):
    """A key that expires soon."""

    id: str
    name: str
    project_id: str
    project_name: str
    expires_at: datetime.datetime


_KEYS = """
    SELECT k.id, k.name, k.project_id, p.name AS project_name, k.expires_at
    FROM api_keys k JOIN projects p ON p.id = k.project_id
    WHERE k.organization_id = $1 AND ($2::text[] IS NULL OR k.project_id = ANY ($2)) AND k.revoked_at IS NULL
      AND p.archived_at IS NULL AND k.expires_at BETWEEN now() AND now() + $3::interval
      AND k.expires_at - k.created_at >= $3
    ORDER BY k.expires_at, k.id LIMIT $4
"""


async def ending_keys(conn: Connection, organization_id: str, project_ids: Sequence[str] | None) -> list[EndingKey]:
    """Return projects' keys that expire soon, the next one first, without keys made for less than EXPIRES_WITHIN."""
    only = None if project_ids is None else list(project_ids)
    return [EndingKey(**row) for row in await conn.fetch(_KEYS, organization_id, only, EXPIRES_WITHIN, MOST)]


class RejectedVersion(msgspec.Struct, frozen=True):
    """A version of an adapter that was rejected."""

    project_id: str
    project_name: str
    name: str
    version: int | None
    """The number of the version; None: it was rejected before it got one."""
    reason: str | None
    rejected_at: datetime.datetime


_REJECTED = """
    SELECT r.project_id, p.name AS project_name, r.name, r.version, r.reason, r.rejected_at
    FROM (
        SELECT a.project_id, a.name, v.version, v.reason, v.changed_at AS rejected_at
        FROM adapter_versions v JOIN adapters a ON a.id = v.adapter_id
        WHERE v.state = 'rejected' AND v.changed_at > now() - $3::interval AND a.removed_at IS NULL
        UNION ALL
        SELECT i.project_id, i.name, NULL, i.reason, i.updated_at
        FROM adapter_imports i WHERE i.state IN ('rejected', 'failed') AND i.updated_at > now() - $3::interval
    ) r JOIN projects p ON p.id = r.project_id
    WHERE p.organization_id = $1 AND ($2::text[] IS NULL OR p.id = ANY ($2)) AND p.archived_at IS NULL
    ORDER BY r.rejected_at DESC LIMIT $4
"""


async def rejected_versions(
    conn: Connection, organization_id: str, project_ids: Sequence[str] | None
) -> list[RejectedVersion]:
    """Return the versions that were rejected within the last day, the latest first.

    project_ids: the projects to look in; None: all of the organization.
    """
    only = None if project_ids is None else list(project_ids)
    return [RejectedVersion(**row) for row in await conn.fetch(_REJECTED, organization_id, only, REJECTED_WITHIN, MOST)]


class PausedExperiment(msgspec.Struct, frozen=True):
    """An experiment that a guardrail paused."""

    id: str
    name: str
    project_id: str
    project_name: str
    why: str | None
    """The guardrail's finding, in words."""
    paused_at: datetime.datetime


_PAUSED = """
    SELECT e.id, e.name, e.project_id, p.name AS project_name, e.why ->> 'text' AS why, e.changed_at AS paused_at
    FROM experiments e JOIN projects p ON p.id = e.project_id
    WHERE p.organization_id = $1 AND ($2::text[] IS NULL OR p.id = ANY ($2)) AND p.archived_at IS NULL
      AND e.state = 'paused' AND e.why IS NOT NULL
    ORDER BY e.changed_at DESC LIMIT $3
"""


async def paused_experiments(
    conn: Connection, organization_id: str, project_ids: Sequence[str] | None
) -> list[PausedExperiment]:
    """Return the experiments that paused themselves and were not started again, the latest first.

    project_ids: the projects to look in; None: all of the organization.
    """
    only = None if project_ids is None else list(project_ids)
    return [PausedExperiment(**row) for row in await conn.fetch(_PAUSED, organization_id, only, MOST)]


class FailingTarget(msgspec.Struct, frozen=True):
    """A webhook or a delivery whose last attempt failed."""

    id: str
    name: str
    """The webhook's URL, or the delivery's name."""
    error: str | None
    failed_at: datetime.datetime | None
    """The time of the failure; None where only the next attempt is known."""


_WEBHOOKS = """
    SELECT id, url AS name, last_error AS error, last_failed_at AS failed_at FROM webhooks
    WHERE organization_id = $1 AND last_failed_at > coalesce(last_delivered_at, '-infinity')
    ORDER BY last_failed_at DESC LIMIT $2
"""


async def failing_webhooks(conn: Connection, organization_id: str) -> list[FailingTarget]:
    """Return the webhooks whose latest attempt failed."""
    return [FailingTarget(**row) for row in await conn.fetch(_WEBHOOKS, organization_id, MOST)]


_DELIVERIES = """
    SELECT DISTINCT ON (d.id) d.id, d.name, r.last_error AS error, NULL::timestamptz AS failed_at
    FROM deliveries d JOIN delivery_runs r ON r.delivery_id = d.id
    WHERE d.organization_id = $1 AND r.delivered_at IS NULL AND r.attempts > 0 AND r.last_error IS NOT NULL
    ORDER BY d.id, r.period LIMIT $2
"""


async def failing_deliveries(conn: Connection, organization_id: str) -> list[FailingTarget]:
    """Return the deliveries with a period that could not be delivered so far."""
    return [FailingTarget(**row) for row in await conn.fetch(_DELIVERIES, organization_id, MOST)]
