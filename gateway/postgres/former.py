"""The tables that a restore replaces: set aside in a schema of their own until what replaces them is known to be good.

Renaming a schema moves no row: a large database is set aside, and put back, at once. Knows nothing about its tables.

Extensions in `public` are not set aside but stay there: a dump's `CREATE EXTENSION IF NOT EXISTS` makes none where any
schema has one, and dropping that schema would drop the extension.
"""

from __future__ import annotations

import asyncpg

from gateway.db.pool import CONNECT_TIMEOUT_S

FORMER = "lorikeet_former"
"""The name of the schema with the tables that were there before the restore."""

_MOVE_EXTENSIONS = """
    FOR extension IN
        SELECT extname FROM pg_extension WHERE extnamespace = to_regnamespace('{source}') AND extrelocatable
    LOOP
        BEGIN
            EXECUTE format('ALTER EXTENSION %I SET SCHEMA {target}', extension);
        EXCEPTION WHEN insufficient_privilege THEN  -- whose functions may belong to another role than the extension
            RAISE 'the extension % in the schema public cannot be moved by %: create it in a schema of its own instead',
                extension, current_user;
        END;
    END LOOP;
"""
# What the role cannot move was made by the backup that is given up, and goes with its tables: all that was there before
# was moved by the role once.
_MOVE_EXTENSIONS_THAT_MAY_BE = """
    FOR extension IN
        SELECT extname FROM pg_extension WHERE extnamespace = to_regnamespace('{source}') AND extrelocatable
    LOOP
        BEGIN
            EXECUTE format('ALTER EXTENSION %I SET SCHEMA {target}', extension);
        EXCEPTION WHEN insufficient_privilege THEN
            RAISE NOTICE 'the extension % goes with the tables that are given up', extension;
        END;
    END LOOP;
"""

_REFUSE_FIXED_EXTENSIONS = """
    SELECT extname INTO extension FROM pg_extension
    WHERE extnamespace = to_regnamespace('public') AND NOT (extrelocatable AND pg_has_role(extowner, 'USAGE'))
    LIMIT 1;
    IF FOUND THEN
        RAISE 'the extension % in the schema public cannot be moved by %: create it in a schema of its own instead',
            extension, current_user;
    END IF;
"""
SET_ASIDE = f"""
DO $$
DECLARE
    extension name;
BEGIN
    IF to_regnamespace('{FORMER}') IS NULL THEN
        {_REFUSE_FIXED_EXTENSIONS}
        ALTER SCHEMA public RENAME TO {FORMER};
    ELSE  -- what an interrupted restore has set aside; `public` is what it has restored
        {_MOVE_EXTENSIONS_THAT_MAY_BE.format(source="public", target=FORMER)}
        DROP SCHEMA public CASCADE;
    END IF;
    CREATE SCHEMA public;
    {_MOVE_EXTENSIONS.format(source=FORMER, target="public")}
END
$$;
"""
"""The statement that sets the tables aside and leaves `public` without any, for the transaction that restores others.

It fails where an extension in `public` cannot be moved, by anybody or by the role.
"""

_PUT_BACK = f"""
DO $$
DECLARE
    extension name;
BEGIN
    IF to_regnamespace('{FORMER}') IS NOT NULL THEN
        {_MOVE_EXTENSIONS_THAT_MAY_BE.format(source="public", target=FORMER)}
        DROP SCHEMA IF EXISTS public CASCADE;
        ALTER SCHEMA {FORMER} RENAME TO public;
    END IF;
END
$$;
"""
_HAS_FORMER = f"SELECT to_regnamespace('{FORMER}') IS NOT NULL"
_DROP = f"DROP SCHEMA IF EXISTS {FORMER} CASCADE"


async def has_former(dsn: str) -> bool:
    """Tell whether a database has tables that were set aside.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    conn = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
    try:
        return bool(await conn.fetchval(_HAS_FORMER))
    finally:
        await conn.close()


async def put_back(dsn: str) -> None:
    """Replace the tables in `public` by those that were set aside. Do nothing where none were.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    await _execute(dsn, _PUT_BACK)


async def drop_former(dsn: str) -> None:
    """Drop the tables that were set aside, if there are any.

    Raises one of `gateway.db.pool.UNUSABLE` or `gateway.db.pool.UNAVAILABLE`: when the database cannot be used.
    """
    await _execute(dsn, _DROP)


async def _execute(dsn: str, statement: str) -> None:
    conn = await asyncpg.connect(dsn, timeout=CONNECT_TIMEOUT_S)
    try:
        await conn.execute(statement)
    finally:
        await conn.close()
