"""Tables that a restore sets aside come back for an owner of the database who is no superuser, too."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from gateway.db.roles import RUNTIME_ROLE
from gateway.postgres.former import SET_ASIDE, has_former, put_back
from tests.installation.databases import execute

IS_THERE = "SELECT to_regclass('public.kept') IS NOT NULL, EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_trgm')"


@pytest.fixture
async def owners_dsn(empty_dsn: str) -> str:
    """Return the connection string of a database's owner, who is no superuser; the database has a table `kept`."""
    parts = urlsplit(empty_dsn)
    await execute(empty_dsn, f'ALTER DATABASE "{parts.path[1:]}" OWNER TO {RUNTIME_ROLE}')
    dsn = urlunsplit(parts._replace(netloc=f"{RUNTIME_ROLE}:{parts.password}@{parts.hostname or ''}"))
    await execute(dsn, "CREATE TABLE kept (number integer)")
    return dsn


async def are_in_public(dsn: str) -> tuple[bool, bool]:
    """Return whether the schema `public` has the table `kept`, and whether it has the extension."""
    conn = await asyncpg.connect(dsn)
    try:
        row = await conn.fetchrow(IS_THERE)
    finally:
        await conn.close()
    assert row is not None
    return row[0], row[1]


async def test_tables_come_back_beside_an_extension_that_only_the_backup_has(owners_dsn: str) -> None:
    """The functions of a trusted extension belong to the superuser, so the extension's owner cannot move it."""
    await execute(owners_dsn, SET_ASIDE)
    await execute(owners_dsn, "CREATE EXTENSION pg_trgm")
    assert await are_in_public(owners_dsn) == (False, True)
    await execute(owners_dsn, SET_ASIDE)  # a restore that begins again
    await execute(owners_dsn, "CREATE EXTENSION pg_trgm")
    await put_back(owners_dsn)
    assert not await has_former(owners_dsn)
    assert await are_in_public(owners_dsn) == (True, False)


async def test_an_extension_that_the_owner_cannot_move_is_named_and_nothing_is_changed(owners_dsn: str) -> None:
    await execute(owners_dsn, "CREATE EXTENSION pg_trgm")
    with pytest.raises(asyncpg.RaiseError, match="the extension pg_trgm in the schema public cannot be moved by"):
        await execute(owners_dsn, SET_ASIDE)
    assert not await has_former(owners_dsn)
    assert await are_in_public(owners_dsn) == (True, True)
