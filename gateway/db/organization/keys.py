"""API keys: their SHA-256 and public part, their owners, and their permissions. Never the secret itself."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from gateway.db.ids import new_id
from gateway.domain.tenancy.addresses import Network
from gateway.domain.tenancy.principal import Role, Scope, ServiceTier

if TYPE_CHECKING:
    from gateway.db.pool import Connection


class KeyRow(msgspec.Struct, frozen=True):
    """An API key."""

    id: str
    kind: Literal["project", "admin"]
    organization_id: str
    project_id: str | None
    """The project; None for an operator's key."""
    name: str
    public: str
    """The part of the key that may be shown."""
    scopes: list[Scope]
    models: list[str] | None
    """The models that the key may call; None: all."""
    ip_allow: list[Network] | None
    """The networks from which the key works; None: all."""
    created_at: datetime.datetime
    expires_at: datetime.datetime | None
    revoked_at: datetime.datetime | None
    suspended_at: datetime.datetime | None
    last_used_at: datetime.datetime | None
    previous_expires_at: datetime.datetime | None
    """The time until which the secret from before the last rotation is valid; None without a rotation."""
    owner_user_id: str | None
    owner_service_account_id: str | None
    owner_email: str | None
    owner_name: str | None
    """The name of the user or of the service account that owns the key."""


class FoundKey(msgspec.Struct, frozen=True):
    """The data of a key that authentication needs."""

    id: str
    kind: Literal["project", "admin"]
    organization_id: str
    project_id: str | None
    scopes: list[Scope]
    models: list[str] | None
    """The models that the key may call; None: all."""
    ip_allow: list[Network] | None
    """The networks from which the key works; None: all."""
    expires_at: datetime.datetime | None
    """The time at which the presented secret expires; None: it does not expire."""
    owned_by_user: bool
    """True if a user owns the key, and not a service account."""
    owner_role: Role | None
    """The role of the key's owner in the organization."""
    owner_project_role: Role | None
    """The role of the key's owner in the key's project."""
    suspended: Literal["API key", "project", "organization"] | None
    """The suspended thing on which the key depends: the key itself, its project or its organization; None: none is."""
    store_days: int
    """Days for which the project's stored chats and responses are kept."""
    log_content_days: int
    """Days for which the content of the project's requests is logged; 0: it is not logged."""
    service_tiers: list[ServiceTier]
    """The service tiers that the project's requests may ask for."""


_NUM_KEYS = "SELECT count(*) FROM api_keys WHERE project_id = $1 AND revoked_at IS NULL"


async def num_keys(conn: Connection, project_id: str) -> int:
    """Return how many keys a project has that are not revoked."""
    return int(await conn.fetchval(_NUM_KEYS, project_id))


_INSERT = """
    INSERT INTO api_keys (id, kind, organization_id, project_id, name, public, sha256, scopes, expires_at,
                          models, ip_allow, owner_user_id, owner_service_account_id)
    VALUES ($1, CASE WHEN $3::text IS NULL THEN 'admin' ELSE 'project' END, $2, $3, $4, $5, $6, $7, $8,
            $9, $10, $11, $12)
    ON CONFLICT (sha256) DO NOTHING
"""
_SHOW = "SELECT * FROM shown_api_keys WHERE id = $1"


async def create_key(
    conn: Connection,
    *,
    organization_id: str,
    project_id: str | None,
    name: str,
    public: str,
    sha256: bytes,
    scopes: Collection[Scope],
    expires_at: datetime.datetime | None = None,
    models: Sequence[str] | None = None,
    ip_allow: Sequence[Network] | None = None,
    owner_user_id: str | None = None,
    owner_service_account_id: str | None = None,
) -> KeyRow | None:
    """Store a key and return it; None if this very key is stored already.

    project_id: None for an operator's key. expires_at: None: the key does not expire. models: the models that the key
    may use; None: all. ip_allow: the networks that may use the key; None: all.

    Raises asyncpg.ForeignKeyViolationError: if the project is not the organization's, or the owner not the project's.
    """
    key_id = new_id("key")
    owners = (owner_user_id, owner_service_account_id)
    await conn.execute(
        _INSERT,
        *(key_id, organization_id, project_id, name, public, sha256, sorted(scopes), expires_at, models, ip_allow),
        *owners,
    )
    row = await conn.fetchrow(_SHOW, key_id)
    return KeyRow(**row) if row else None


_FIND_USABLE = """
    SELECT k.id, k.kind, k.organization_id, k.project_id, k.scopes, k.models, k.ip_allow,
           CASE WHEN k.sha256 = $1 THEN k.expires_at ELSE least(k.expires_at, k.previous_expires_at) END AS expires_at,
           k.owner_user_id IS NOT NULL AS owned_by_user, u.role AS owner_role, m.role AS owner_project_role,
           CASE WHEN k.suspended_at IS NOT NULL THEN 'API key'
                WHEN p.suspended_at IS NOT NULL THEN 'project'
                WHEN k.kind = 'project' AND o.suspended_at IS NOT NULL THEN 'organization' END AS suspended,
           coalesce(p.store_days, 0) AS store_days, coalesce(p.log_content_days, 0) AS log_content_days,
           coalesce(p.service_tiers, '{}') AS service_tiers
    FROM api_keys k JOIN organizations o ON o.id = k.organization_id
         LEFT JOIN projects p ON p.id = k.project_id
         LEFT JOIN users u ON u.id = k.owner_user_id
         LEFT JOIN project_members m ON m.project_id = k.project_id AND m.user_id = k.owner_user_id
    WHERE (k.sha256 = $1 OR (k.previous_sha256 = $1 AND k.previous_expires_at > now()))
      AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now()) AND p.archived_at IS NULL
"""


async def find_usable_key(conn: Connection, sha256: bytes) -> FoundKey | None:
    """Return the key with this digest unless it is revoked or has expired.

    The digest is the credential, so no tenant is known yet to look within.
    """
    row = await conn.fetchrow(_FIND_USABLE, sha256)
    return FoundKey(**row) if row else None


_FIND_USABLE_BY_ID = """
    SELECT k.id, k.kind, k.organization_id, k.project_id, k.scopes, k.models, k.ip_allow, k.expires_at,
           k.owner_user_id IS NOT NULL AS owned_by_user, u.role AS owner_role, m.role AS owner_project_role,
           CASE WHEN k.suspended_at IS NOT NULL THEN 'API key'
                WHEN p.suspended_at IS NOT NULL THEN 'project'
                WHEN o.suspended_at IS NOT NULL THEN 'organization' END AS suspended,
           p.store_days, p.log_content_days, p.service_tiers
    FROM api_keys k JOIN organizations o ON o.id = k.organization_id JOIN projects p ON p.id = k.project_id
         LEFT JOIN users u ON u.id = k.owner_user_id
         LEFT JOIN project_members m ON m.project_id = k.project_id AND m.user_id = k.owner_user_id
    WHERE k.project_id = $1 AND k.id = $2
      AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now()) AND p.archived_at IS NULL
"""


async def find_usable_key_by_id(conn: Connection, project_id: str, key_id: str) -> FoundKey | None:
    """Return a key of a project, for work that was begun with it, unless it is revoked or has expired."""
    row = await conn.fetchrow(_FIND_USABLE_BY_ID, project_id, key_id)
    return FoundKey(**row) if row else None


_GET = "SELECT * FROM shown_api_keys WHERE project_id = $1 AND id = $2"


async def get_key(conn: Connection, project_id: str, key_id: str) -> KeyRow | None:
    """Return a key of a project; None where there is none."""
    row = await conn.fetchrow(_GET, project_id, key_id)
    return KeyRow(**row) if row else None


_GET_ADMIN = "SELECT * FROM shown_api_keys WHERE organization_id = $1 AND id = $2 AND kind = 'admin'"


async def get_admin_key(conn: Connection, organization_id: str, key_id: str) -> KeyRow | None:
    """Return an admin key of an organization; None where there is none."""
    row = await conn.fetchrow(_GET_ADMIN, organization_id, key_id)
    return KeyRow(**row) if row else None


_FIND_BY_ID = "SELECT * FROM shown_api_keys WHERE organization_id = $1 AND id = $2 AND kind = 'project'"


async def find_project_key(conn: Connection, organization_id: str, key_id: str) -> KeyRow | None:
    """Return the key with this id of any project of the organization."""
    row = await conn.fetchrow(_FIND_BY_ID, organization_id, key_id)
    return KeyRow(**row) if row else None


_LIST = """
    SELECT * FROM shown_api_keys
    WHERE project_id = $1
      AND ($2::text IS NULL OR (created_at, id) >
           (SELECT created_at, id FROM api_keys WHERE project_id = $1 AND id = $2))
    ORDER BY created_at, id LIMIT $3
"""


async def list_keys(conn: Connection, project_id: str, *, after: str | None = None, limit: int = 100) -> list[KeyRow]:
    """Return keys, oldest first, revoked ones included; those that follow the key with id `after`."""
    return [KeyRow(**row) for row in await conn.fetch(_LIST, project_id, after, limit)]


_LIST_ADMIN = """
    SELECT * FROM shown_api_keys
    WHERE organization_id = $1 AND kind = 'admin'
      AND ($2::text IS NULL OR (created_at, id) >
           (SELECT created_at, id FROM api_keys WHERE organization_id = $1 AND id = $2 AND kind = 'admin'))
    ORDER BY created_at, id LIMIT $3
"""


async def list_admin_keys(
    conn: Connection, organization_id: str, *, after: str | None = None, limit: int = 100
) -> list[KeyRow]:
    """List operators' keys, as `list_keys` does.

    after: the id of the last key of the page before; None: the page is the first.
    """
    return [KeyRow(**row) for row in await conn.fetch(_LIST_ADMIN, organization_id, after, limit)]


_GET_OWNED = """
    SELECT * FROM shown_api_keys
    WHERE organization_id = $1 AND owner_user_id = $2 AND id = $3 AND ($4 OR kind = 'project')
"""


async def get_owned_key(
    conn: Connection, organization_id: str, owner_user_id: str, key_id: str, *, with_admin: bool
) -> KeyRow | None:
    """Return a key that a person owns; None where there is none. with_admin: whether admin keys count."""
    row = await conn.fetchrow(_GET_OWNED, organization_id, owner_user_id, key_id, with_admin)
    return KeyRow(**row) if row else None


_LIST_OWNED = """
    SELECT * FROM shown_api_keys
    WHERE organization_id = $1 AND owner_user_id = $2 AND ($3 OR kind = 'project')
      AND ($4::text IS NULL OR (created_at, id) >
           (SELECT created_at, id FROM api_keys WHERE organization_id = $1 AND owner_user_id = $2 AND id = $4))
    ORDER BY created_at, id LIMIT $5
"""


async def list_owned_keys(
    conn: Connection,
    organization_id: str,
    owner_user_id: str,
    *,
    with_admin: bool,
    after: str | None = None,
    limit: int = 100,
) -> list[KeyRow]:
    """List the keys that a person owns in all projects, as `list_keys` does.

    with_admin: adds the person's operators' keys.
    """
    rows = await conn.fetch(_LIST_OWNED, organization_id, owner_user_id, with_admin, after, limit)
    return [KeyRow(**row) for row in rows]


_MODIFY = """
    UPDATE api_keys SET name = $3, scopes = $4, expires_at = $5, models = $6, ip_allow = $7
    WHERE project_id = $1 AND id = $2
"""


async def modify_key(conn: Connection, key: KeyRow) -> None:
    """Write the fields of a project's key that may be changed."""
    await conn.execute(_MODIFY, key.project_id, key.id, key.name, key.scopes, key.expires_at, key.models, key.ip_allow)


_SUSPEND = "UPDATE api_keys SET suspended_at = CASE WHEN $3 THEN now() END WHERE project_id = $1 AND id = $2"


async def set_key_suspended(conn: Connection, project_id: str, key_id: str, suspended: bool) -> None:
    """Suspend a key of a project, or resume it."""
    await conn.execute(_SUSPEND, project_id, key_id, suspended)


_ROTATE = """
    UPDATE api_keys SET previous_sha256 = sha256, previous_expires_at = now() + $5::interval, public = $3, sha256 = $4
    WHERE project_id = $1 AND id = $2 AND revoked_at IS NULL
"""


async def rotate_key(
    conn: Connection, project_id: str, key_id: str, *, public: str, sha256: bytes, grace: datetime.timedelta
) -> bool:
    """Give the key a new secret; the former one is valid for the grace period.

    Return False if there is no key to rotate.

    A second rotation within the grace period ends the oldest secret at once.
    """
    return (await conn.execute(_ROTATE, project_id, key_id, public, sha256, grace)) == "UPDATE 1"


_REVOKE = "UPDATE api_keys SET revoked_at = now() WHERE project_id = $1 AND id = $2 AND revoked_at IS NULL"


async def revoke_key(conn: Connection, project_id: str, key_id: str) -> KeyRow | None:
    """Revoke a key if it is not revoked yet. Return the key as it is then, or None if the project has no such key."""
    await conn.execute(_REVOKE, project_id, key_id)
    return await get_key(conn, project_id, key_id)


_REVOKE_ADMIN = """
    UPDATE api_keys SET revoked_at = now()
    WHERE organization_id = $1 AND id = $2 AND kind = 'admin' AND revoked_at IS NULL
"""


async def revoke_admin_key(conn: Connection, organization_id: str, key_id: str) -> None:
    """Revoke an admin key of an organization."""
    await conn.execute(_REVOKE_ADMIN, organization_id, key_id)


# Each trigger that announces a change locks the one row of `installation`. A transaction that changes several rows
# therefore locks keys first, in the order of their ids, and users and projects, locked from the start, are written
# last.
_REVOKE_ALL = """
    WITH ending AS (
        SELECT id FROM api_keys
        WHERE revoked_at IS NULL AND ($1::text IS NULL OR project_id = $1) AND ($2::text IS NULL OR owner_user_id = $2)
          AND ($3::text IS NULL OR owner_service_account_id = $3)
        ORDER BY id FOR NO KEY UPDATE)
    UPDATE api_keys SET revoked_at = now() FROM ending WHERE api_keys.id = ending.id RETURNING api_keys.id
"""


async def revoke_keys(
    conn: Connection,
    *,
    project_id: str | None = None,
    owner_user_id: str | None = None,
    owner_service_account_id: str | None = None,
) -> list[str]:
    """Revoke the keys of a project, of an owner, or of an owner in a project; returns the ids of those that end now."""
    owners = (owner_user_id, owner_service_account_id)
    assert project_id or any(owners), "never all keys there are"
    return sorted(row["id"] for row in await conn.fetch(_REVOKE_ALL, project_id, *owners))


_ANNOUNCE = """
    WITH owned AS (
        SELECT id FROM api_keys WHERE project_id = $1 AND owner_user_id = $2 AND revoked_at IS NULL
        ORDER BY id FOR NO KEY UPDATE)
    UPDATE api_keys SET owner_user_id = owner_user_id FROM owned WHERE api_keys.id = owned.id
"""


async def announce_keys_of(conn: Connection, project_id: str, owner_user_id: str) -> None:
    """Make gateways look up a user's keys in a project again: their permissions depend on the user's role there."""
    await conn.execute(_ANNOUNCE, project_id, owner_user_id)


# Several gateways note the same key: the first one in a minute writes. In the order of ids, as when several are
# revoked.
_TOUCH = """
    WITH due AS (
        SELECT k.id, used.at FROM api_keys k JOIN unnest($1::text[], $2::timestamptz[]) AS used (id, at) USING (id)
        WHERE k.last_used_at IS NULL OR k.last_used_at <= used.at - interval '1 minute'
        ORDER BY k.id FOR NO KEY UPDATE OF k)
    UPDATE api_keys SET last_used_at = due.at FROM due WHERE api_keys.id = due.id
"""


async def touch_keys(conn: Connection, used_at: Mapping[str, datetime.datetime]) -> None:
    """Record when keys were last used, {key id: time}, to the minute."""
    await conn.execute(_TOUCH, list(used_at), list(used_at.values()))
