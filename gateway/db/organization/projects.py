"""Projects. A tenant is a project: keys, adapters, members and usage belong to one."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from typing import TYPE_CHECKING

import asyncpg
import msgspec

from gateway.db.ids import new_id
from gateway.db.organization.keys import revoke_keys
from gateway.domain.tenancy.principal import ServiceTier

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class ProjectRow(msgspec.Struct, frozen=True):
    """A project."""

    id: str
    organization_id: str
    name: str
    created_at: datetime.datetime
    suspended_at: datetime.datetime | None
    archived_at: datetime.datetime | None
    archived_name: str | None
    """The former name of an archived project, whose name is its id."""
    purge_after: datetime.datetime | None
    """The time after which the project's content is deleted."""
    keep_replies: bool
    """True if replies to requests with an Idempotency-Key are stored."""
    store_days: int
    """Days for which completions are stored; 0: not at all."""
    log_content_days: int
    """Days for which the content of requests and replies is kept to be looked at; 0: not at all."""
    service_tiers: list[ServiceTier]
    """The service tiers that requests may ask for, sorted."""


_INSERT = """
    INSERT INTO projects (id, organization_id, name) VALUES ($1, $2, $3)
    ON CONFLICT (organization_id, name) DO NOTHING
    RETURNING id, organization_id, name, created_at, suspended_at, archived_at, archived_name, purge_after,
           keep_replies, store_days, log_content_days, service_tiers
"""


async def create_project(conn: Connection, organization_id: str, name: str) -> ProjectRow | None:
    """Create a project. Return None if the organization has one of this name."""
    row = await conn.fetchrow(_INSERT, new_id("proj"), organization_id, name)
    return ProjectRow(**row) if row else None


_GET = """
    SELECT id, organization_id, name, created_at, suspended_at, archived_at, archived_name, purge_after,
           keep_replies, store_days, log_content_days, service_tiers
    FROM projects WHERE organization_id = $1 AND id = $2
"""


async def get_project(conn: Connection, organization_id: str, project_id: str) -> ProjectRow | None:
    """Return a project of an organization; None where there is none."""
    row = await conn.fetchrow(_GET, organization_id, project_id)
    return ProjectRow(**row) if row else None


_LOCK = """
    SELECT id, organization_id, name, created_at, suspended_at, archived_at, archived_name, purge_after,
           keep_replies, store_days, log_content_days, service_tiers
    FROM projects WHERE organization_id = $1 AND id = $2 FOR NO KEY UPDATE
"""


async def lock_project(conn: Connection, organization_id: str, project_id: str) -> ProjectRow | None:
    """Return the project, locked against changes by others until the transaction ends."""
    row = await conn.fetchrow(_LOCK, organization_id, project_id)
    return ProjectRow(**row) if row else None


_FIND = """
    SELECT id, organization_id, name, created_at, suspended_at, archived_at, archived_name, purge_after,
           keep_replies, store_days, log_content_days, service_tiers
    FROM projects WHERE organization_id = $1 AND name = $2 AND archived_at IS NULL
"""


async def find_project(conn: Connection, organization_id: str, name: str) -> ProjectRow | None:
    """Return an organization's project by its name; None where there is none."""
    row = await conn.fetchrow(_FIND, organization_id, name)
    return ProjectRow(**row) if row else None


_WAS_ARCHIVED = "SELECT EXISTS (SELECT FROM projects WHERE organization_id = $1 AND archived_name = $2)"


async def was_archived(conn: Connection, organization_id: str, name: str) -> bool:
    """Tell whether the organization has archived a project of this name."""
    return bool(await conn.fetchval(_WAS_ARCHIVED, organization_id, name))


_LIST = """
    SELECT id, organization_id, name, created_at, suspended_at, archived_at, archived_name, purge_after,
           keep_replies, store_days, log_content_days, service_tiers
    FROM projects
    WHERE organization_id = $1
      AND ($2::text IS NULL OR (created_at, id) >
           (SELECT created_at, id FROM projects WHERE organization_id = $1 AND id = $2))
      AND ($4 OR archived_at IS NULL)
      AND ($5::text[] IS NULL OR id = ANY ($5))
    ORDER BY created_at, id LIMIT $3
"""


async def list_projects(
    conn: Connection,
    organization_id: str,
    *,
    after: str | None = None,
    limit: int = 100,
    archived: bool = False,
    only: Collection[str] | None = None,
) -> list[ProjectRow]:
    """Return projects, oldest first, those that follow the project with id `after`; none if that one does not exist.

    archived: whether to return archived projects as well. only: ids to return projects of.
    """
    ids = None if only is None else list(only)
    return [ProjectRow(**row) for row in await conn.fetch(_LIST, organization_id, after, limit, archived, ids)]


_RENAME = "UPDATE projects SET name = $3 WHERE organization_id = $1 AND id = $2"


async def rename_project(conn: Connection, organization_id: str, project_id: str, name: str) -> bool:
    """Rename a project. Return False if another project has this name.

    The caller's transaction can then only be rolled back.
    """
    try:
        await conn.execute(_RENAME, organization_id, project_id, name)
    except asyncpg.UniqueViolationError:
        return False
    return True


# The time of day, not of the transaction: nothing that was stored before the lock is newer.
_SET_RETENTION = """
    UPDATE projects SET keep_replies = $3, store_days = $4, log_content_days = $5,
        replies_from = CASE WHEN keep_replies AND NOT $3 THEN clock_timestamp() ELSE replies_from END,
        contents_from = CASE WHEN log_content_days > 0 AND $5 = 0 THEN clock_timestamp() ELSE contents_from END
    WHERE organization_id = $1 AND id = $2
"""


async def set_retention(
    conn: Connection,
    organization_id: str,
    project_id: str,
    *,
    keep_replies: bool,
    store_days: int,
    log_content_days: int,
) -> None:
    """Set which content of a project may be kept from now on; the caller's transaction has locked the project.

    Content that may not be kept any more is not shown, and is deleted in the background: replies and logged content
    are not shown again when they are allowed again.
    """
    await conn.execute(_SET_RETENTION, organization_id, project_id, keep_replies, store_days, log_content_days)


_SET_TIERS = "UPDATE projects SET service_tiers = $3 WHERE organization_id = $1 AND id = $2"


async def set_service_tiers(
    conn: Connection, organization_id: str, project_id: str, service_tiers: Collection[ServiceTier]
) -> None:
    """Set the service tiers that a project's requests may ask for, `default` among them."""
    await conn.execute(_SET_TIERS, organization_id, project_id, sorted(service_tiers))


_SUSPEND = """
    UPDATE projects SET suspended_at = CASE WHEN $3 THEN now() END WHERE organization_id = $1 AND id = $2
"""


async def set_project_suspended(conn: Connection, organization_id: str, project_id: str, suspended: bool) -> None:
    """Suspend a project, or resume it."""
    await conn.execute(_SUSPEND, organization_id, project_id, suspended)


_ARCHIVE = """
    UPDATE projects SET archived_at = now(), archived_name = name, name = id, purge_after = now() + $3::interval
    WHERE organization_id = $1 AND id = $2 AND archived_at IS NULL
"""


async def archive_project(
    conn: Connection, organization_id: str, project_id: str, retention: datetime.timedelta
) -> list[str]:
    """End a project that the caller's transaction has locked; return the ids of its keys, which are revoked.

    The project's name is free, its keys are dead, and its content will be purged after `retention`. Keys are revoked
    one by one as well, for gateways that know nothing of archived projects.
    """
    revoked = await revoke_keys(conn, project_id=project_id)
    await conn.execute(_ARCHIVE, organization_id, project_id, retention)
    return revoked


_DUE = """
    SELECT organization_id, id FROM projects WHERE purge_after <= now() AND purged_at IS NULL
    ORDER BY purge_after, id LIMIT 1
"""


async def next_to_purge(conn: Connection) -> tuple[str, str] | None:
    """Return (organization, id) of an archived project whose retention is over."""
    row = await conn.fetchrow(_DUE)
    return (row["organization_id"], row["id"]) if row else None


_LOCK_DUE = """
    SELECT true FROM projects WHERE organization_id = $1 AND id = $2 AND purge_after <= now() AND purged_at IS NULL
    FOR NO KEY UPDATE
"""


async def lock_to_purge(conn: Connection, organization_id: str, project_id: str) -> bool:
    """Lock a project until the transaction ends.

    Return False if it is not due, for example purged by another gateway.
    """
    return bool(await conn.fetchval(_LOCK_DUE, organization_id, project_id))


_REMOVE_ADAPTERS = """
    UPDATE adapters SET removed_at = coalesce(removed_at, now()), defaults = '{}', pinned = false WHERE project_id = $1
"""
_REMOVE_MEMBERS = "DELETE FROM project_members WHERE project_id = $1"
_REMOVE_ACCOUNTS = """
    UPDATE service_accounts SET name = '', removed_at = coalesce(removed_at, now()) WHERE project_id = $1
"""
_FORGET_KEYS = """
    UPDATE api_keys SET name = '', models = NULL, ip_allow = NULL, owner_user_id = NULL WHERE project_id = $1
"""
_REMOVE_IMPORTS = "DELETE FROM adapter_imports WHERE project_id = $1"
_REMOVE_ALIASES = "DELETE FROM model_aliases WHERE project_id = $1"
_REMOVE_ROUTES = "DELETE FROM routes WHERE project_id = $1"
_REMOVE_SHARES = """
    DELETE FROM adapter_shares s USING adapters a
    WHERE a.id = s.adapter_id AND (s.project_id = $1 OR a.project_id = $1)
"""
_REMOVE_PROVIDER_KEYS = "DELETE FROM provider_keys WHERE project_id = $1"
_REMOVE_GRANTS = "DELETE FROM pool_grants WHERE project_id = $1"
# Requests, units, sums, looks and arms go with their experiment, by the foreign keys.
_REMOVE_FEEDBACK = "DELETE FROM feedback WHERE project_id = $1"
_REMOVE_EVENTS = """
    DELETE FROM experiment_events WHERE experiment_id IN (SELECT id FROM experiments WHERE project_id = $1)
"""
_REMOVE_EXPERIMENTS = "DELETE FROM experiments WHERE project_id = $1"
_REMOVE_METRICS = "DELETE FROM feedback_metrics WHERE project_id = $1"
_REMOVE_LAYERS = "DELETE FROM experiment_layers WHERE project_id = $1"
_REMOVE_HOLDOUTS = "DELETE FROM experiment_holdouts WHERE project_id = $1"
_REMOVE_UNIT_KEY = "DELETE FROM experiment_keys WHERE project_id = $1"
_REMOVE_LIMITS = "DELETE FROM limits WHERE project_id = $1"
_PURGED = "UPDATE projects SET purged_at = now() WHERE id = $1"


async def purge_project(conn: Connection, project_id: str) -> None:
    """Delete the rows that belong to an archived project, in the caller's transaction.

    Kept are the project's row, the ledger, the audit log, and of keys and adapters what the ledger refers to: their
    ids, the adapters' names, versions and digests. The content of requests and replies is not shown from then on. The
    caller deletes it before, and the worker that removes old content deletes what is left.
    """
    for statement in (
        _REMOVE_MEMBERS,
        _REMOVE_ACCOUNTS,
        _FORGET_KEYS,
        _REMOVE_ADAPTERS,
        _REMOVE_IMPORTS,
        _REMOVE_ALIASES,
        _REMOVE_ROUTES,
        _REMOVE_FEEDBACK,
        _REMOVE_EVENTS,
        _REMOVE_EXPERIMENTS,
        _REMOVE_METRICS,
        _REMOVE_LAYERS,
        _REMOVE_HOLDOUTS,
        _REMOVE_UNIT_KEY,
        _REMOVE_SHARES,
        _REMOVE_PROVIDER_KEYS,
        _REMOVE_GRANTS,
        _REMOVE_LIMITS,
        _PURGED,
    ):
        await conn.execute(statement, project_id)
