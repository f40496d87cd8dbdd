"""The two roles of a database: one owns the tables, the other is what gateways and agents use.

The owner is for migrations, backups and restores. The other role cannot change the audit log, the ledger or prices
(`functions/roles.sql`). If an operator has made one role only, it is used for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import msgspec

from gateway.db.pool import CONNECT_TIMEOUT_S
from gateway.db.schema_files import MigrationRefused

if TYPE_CHECKING:
    from gateway.db.pool import Connection

RUNTIME_ROLE = "lorikeet_runtime"
"""The name of the role that gateways use in an embedded database."""


class Dsns(msgspec.Struct, frozen=True):
    """The connection strings of one database: the owner's and the gateways'."""

    owner: str
    runtime: str


_CURRENT = "SELECT current_user"


async def runtime_role(dsns: Dsns) -> str | None:
    """Return the name of the role that gateways use; None where gateways use the owner's connection string.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    if dsns.runtime == dsns.owner:
        return None
    conn = await asyncpg.connect(dsns.runtime, timeout=CONNECT_TIMEOUT_S)
    try:
        return str(await conn.fetchval(_CURRENT))
    finally:
        await conn.close()


_IS_OWNER = """
    SELECT r.rolsuper OR pg_has_role(r.rolname, c.relowner, 'MEMBER')
    FROM pg_roles r, pg_class c WHERE r.rolname = $1 AND c.oid = 'public.ledger'::regclass
"""
_GRANT = "SELECT grant_to_runtime($1)"


async def grant_to_runtime(conn: Connection, role: str) -> None:
    """Give a role the rights of gateways on all tables, and revoke all its other rights.

    Raises MigrationRefused: when the role is a superuser, or has the rights of the tables' owner anyhow.
    """
    if await conn.fetchval(_IS_OWNER, role):
        raise MigrationRefused(
            f"role {role} of DATABASE_URL is a superuser or has the rights of the role that owns the tables: name "
            "another one there, or leave LORIKEET_DATABASE_OWNER_URL out"
        )
    await conn.execute(_GRANT, role)


# The name is RUNTIME_ROLE. DO takes no parameters, and CREATE ROLE none either.
_SET_PASSWORD = "SELECT set_config('lorikeet.password', $1, true)"  # noqa: S105 - no password
_ENSURE_ROLE = """
    DO $$
    BEGIN
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'lorikeet_runtime') THEN
            CREATE ROLE lorikeet_runtime;
        END IF;
        EXECUTE format(
            'ALTER ROLE lorikeet_runtime LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION PASSWORD %L',
            current_setting('lorikeet.password'));
    END
    $$
"""


async def ensure_runtime_role(owner_dsn: str, password: str) -> None:
    """Create RUNTIME_ROLE in an embedded database if it does not exist, and set its password.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    conn = await asyncpg.connect(owner_dsn, timeout=CONNECT_TIMEOUT_S)
    try:
        async with conn.transaction():
            await conn.execute(_SET_PASSWORD, password)
            await conn.execute(_ENSURE_ROLE)
    finally:
        await conn.close()
