"""Tenants and keys, written into a database as the admin API writes them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg
import msgspec

from gateway.db.limits.limits import set_limit
from gateway.db.organization.keys import create_key
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project, set_service_tiers
from gateway.domain.limits.limit import Limit, Unit, Window
from gateway.domain.tenancy.keys import new_key
from gateway.domain.tenancy.principal import Scope
from tests.gateway.bases import put_adapter


class Tenant(msgspec.Struct, frozen=True):
    """A project with one key and one adapter."""

    project_id: str
    key: str
    adapter: str
    digest: str


class Key(msgspec.Struct, frozen=True):
    """A key, and the project that it belongs to."""

    organization_id: str
    project_id: str
    id: str
    secret: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret}"}

    def limit(self, unit: Unit, window: Window, most: int, *, hard: bool = True, model: str | None = None) -> Limit:
        """Return a limit of the key's project, without writing it to the database.

        most: the amount. hard: False: the limit raises alerts alone. model: the model that it bounds; None: all.
        """
        return Limit("", self.organization_id, self.project_id, None, model, unit, window, most, hard, (80, 100))


@asynccontextmanager
async def _connect(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    conn = await asyncpg.connect(dsn)
    try:
        yield conn
    finally:
        await conn.close()


async def _new_project(conn: asyncpg.Connection, name: str) -> Key:
    organization = await ensure_organization(conn, "default")
    project = await create_project(conn, organization.id, name)
    assert project is not None
    await set_service_tiers(conn, organization.id, project.id, ("default", "flex", "priority"))
    made = new_key()
    row = await create_key(
        conn,
        organization_id=organization.id,
        project_id=project.id,
        name="test",
        public=made.public,
        sha256=made.sha256,
        scopes=["inference"],
    )
    assert row is not None
    return Key(organization.id, project.id, row.id, made.secret)


async def make_key(dsn: str, tenant: str) -> Key:
    """Make a project of this name, and return a key that may use models."""
    async with _connect(dsn) as conn:
        return await _new_project(conn, tenant)


async def make_tenant(dsn: str, name: str, adapter: str, digest_start: str) -> Tenant:
    """Create a project with a key and one adapter; return the three.

    The fake engine rotates its answers by the digest's first 32 bits.
    """
    async with _connect(dsn) as conn:
        key = await _new_project(conn, name)
        digest = digest_start.rjust(8, "0").ljust(64, "a")
        await put_adapter(conn, key.project_id, adapter, digest=digest, rank=8, size_bytes=1)
        return Tenant(key.project_id, key.secret, adapter, digest)


async def make_operator_key(dsn: str) -> str:
    """Make a key that opens all of the admin API, and return its secret."""
    async with _connect(dsn) as conn:
        return await store_operator_key(conn, "default", ("admin_read", "admin_write"))


async def store_operator_key(conn: asyncpg.Connection, organization_name: str, scopes: Sequence[Scope]) -> str:
    """Make an operator's key with these scopes, and return its secret."""
    organization = await ensure_organization(conn, organization_name)
    made = new_key("admin")
    await create_key(
        conn,
        organization_id=organization.id,
        project_id=None,
        name="operator",
        public=made.public,
        sha256=made.sha256,
        scopes=scopes,
    )
    return made.secret


async def put_limit(dsn: str, limit: Limit) -> str:
    """Set a limit, and return its id."""
    async with _connect(dsn) as conn:
        limit_id, _ = await set_limit(conn, limit)
        return limit_id
