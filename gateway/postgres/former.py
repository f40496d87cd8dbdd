"""The tables that a restore replaces: set aside in a schema of their own until what replaces them is known to be good.

Renaming a schema moves no row: a large database is set aside, and put back, at once. Knows nothing about its tables.

Extensions in `public` are not set aside but stay there: a dump's `CREATE EXTENSION IF NOT EXISTS` makes none where any
schema has one, and dropping that schema would drop the extension.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import asyncpg

from gateway.db.pool import CONNECT_TIMEOUT_S

if TYPE_CHECKING:
    from gateway.db.pool import Connection

FORMER = "lorikeet_former"
"""The name of the schema with the tables that were there before the restore."""

# An owner who is no superuser cannot move each extension: functions of a trusted one belong to the superuser. Where the
# former tables come back, such an extension goes with the tables that are given up: the role once moved all that were
# there before.
SET_ASIDE = """
DO $$
DECLARE
    extension name;
BEGIN
    IF to_regnamespace('lorikeet_former') IS NULL THEN
        SELECT extname INTO extension FROM pg_extension
        WHERE extnamespace = to_regnamespace('public') AND NOT (extrelocatable AND pg_has_role(extowner, 'USAGE'))
        LIMIT 1;
        IF FOUND THEN
            RAISE 'the extension % in the schema public cannot be moved by %: create it in a schema of its own instead',
                extension, current_user;
        END IF;
        ALTER SCHEMA public RENAME TO lorikeet_former;
    ELSE  -- what an interrupted restore has set aside; `public` is what it has restored
        FOR extension IN
            SELECT extname FROM pg_extension WHERE extnamespace = to_regnamespace('public') AND extrelocatable
        LOOP
            BEGIN
                EXECUTE format('ALTER EXTENSION %I SET SCHEMA lorikeet_former', extension);
            EXCEPTION WHEN insufficient_privilege THEN
                RAISE NOTICE 'the extension % goes with the tables that are given up', extension;
            END;
        END LOOP;
        DROP SCHEMA public CASCADE;
    END IF;
    CREATE SCHEMA public;
    FOR extension IN
        SELECT extname FROM pg_extension WHERE extnamespace = to_regnamespace('lorikeet_former') AND extrelocatable
    LOOP
        BEGIN
            EXECUTE format('ALTER EXTENSION %I SET SCHEMA public', extension);
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE 'the extension % in the schema public cannot be moved by %: create it in a schema of its own instead',
                extension, current_user;
        END;
    END LOOP;
END
$$;
"""
"""The statement that sets the tables aside and leaves `public` without any, for the transaction that restores others.

It fails where an extension in `public` cannot be moved, by anybody or by the role.
"""

_PUT_BACK = """
DO $$
DECLARE
    extension name;
BEGIN
    IF to_regnamespace('lorikeet_former') IS NOT NULL THEN
        FOR extension IN
            SELECT extname FROM pg_extension WHERE extnamespace = to_regnamespace('public') AND extrelocatable
        LOOP
            BEGIN
                EXECUTE format('ALTER EXTENSION %I SET SCHEMA lorikeet_former', extension);
            EXCEPTION WHEN insufficient_privilege THEN
                RAISE NOTICE 'the extension % goes with the tables that are given up', extension;
            END;
        END LOOP;
        DROP SCHEMA IF EXISTS public CASCADE;
        ALTER SCHEMA lorikeet_former RENAME TO public;
    END IF;
END
$$;
"""
_HAS_FORMER = "SELECT to_regnamespace('lorikeet_former') IS NOT NULL"
_DROP = "DROP SCHEMA IF EXISTS lorikeet_former CASCADE"


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Connection]:
    conn = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
    try:
        yield conn
    finally:
        await conn.close()


async def has_former(dsn: str) -> bool:
    """Tell whether a database has tables that were set aside.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    async with _connected(dsn) as conn:
        return bool(await conn.fetchval(_HAS_FORMER))


async def put_back(dsn: str) -> None:
    """Replace the tables in `public` by those that were set aside. Do nothing where none were.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    async with _connected(dsn) as conn:
        await conn.execute(_PUT_BACK)


async def drop_former(dsn: str) -> None:
    """Drop the tables that were set aside, if there are any.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    async with _connected(dsn) as conn:
        await conn.execute(_DROP)
