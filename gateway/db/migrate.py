"""Brings the schema up to date, in one transaction: all of it, or nothing.

An empty database is built from the files of tables, which are the schema as it is now. Any other gets the numbered
migrations that it lacks, each once; a database of the last schema before numbering began anew is converted. Functions,
triggers and views are applied whole whenever their files or the tables have changed, and left alone otherwise:
replacing a trigger locks its table, and gateways of the same schema may be running.

Everything that was applied is remembered with its SHA-256. A database that is newer than this code, and a file that was
edited after it was applied, are refused before anything is changed. Concurrent runs wait for each other.

Gateways may be at work meanwhile. A change of a table waits until nobody uses the table, and others who want it wait
behind the change. So a change waits for a moment only; then the whole transaction gives way, before a deadlock ends one
of a gateway's, and begins again. Only PostgreSQL's search for deadlocks ends an autovacuum that is in the way: where
there may be one, the change waits until after the search.

If gateways have a role of their own, the role gets its rights in the same transaction, each time: a restored database
has none.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from gateway.db.conversion import convert
from gateway.db.pool import CONFLICTS
from gateway.db.roles import grant_to_runtime
from gateway.db.schema_files import (
    BASELINE,
    MIGRATIONS,
    MigrationRefused,
    NewerDatabase,
    Script,
    read_conversion,
    read_functions,
    read_migrations,
    read_tables,
)

if TYPE_CHECKING:
    from gateway.db.pool import Connection

__all__ = ["MIGRATIONS", "MigrationRefused", "NewerDatabase", "migrate", "missing_scripts", "read_migrations"]

PATIENCE_S = 120.0
"""Seconds for which a migration gives way to transactions that hold its tables, and is tried again."""

REST_S = (0.1, 0.6)
"""The least and the most seconds between two tries."""

_LOCK_KEY = 0x6C6F72696B656574  # "lorikeet"
_GIVE_WAY = "SELECT set_config('lock_timeout', $1, true)"
# VACUUM and ANALYZE take locks of this mode, and no statement of a gateway does. Everybody may read pg_locks.
_LOCK_WAIT_MS = """
    SELECT CASE WHEN EXISTS (
        SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
        WHERE d.datname = current_database() AND l.locktype = 'relation' AND l.granted
              AND l.mode = 'ShareUpdateExclusiveLock' AND l.pid <> pg_backend_pid())
        THEN s.setting::integer + 500 ELSE least(400, s.setting::integer / 2) END
    FROM pg_settings s WHERE s.name = 'deadlock_timeout'
"""
_CREATE_LEDGER = """
    CREATE TABLE IF NOT EXISTS schema_migrations (
        name        text PRIMARY KEY,
        sha256      text NOT NULL,
        applied_at  timestamptz NOT NULL DEFAULT now()
    )
"""
_SELECT_APPLIED = "SELECT name, sha256 FROM schema_migrations WHERE name <> 'functions' ORDER BY name"
_SELECT_FUNCTIONS = "SELECT sha256 FROM schema_migrations WHERE name = 'functions'"
_REMEMBER = """
    INSERT INTO schema_migrations (name, sha256) VALUES ($1, $2)
    ON CONFLICT (name) DO UPDATE SET sha256 = excluded.sha256, applied_at = excluded.applied_at
"""


async def migrate(
    dsn_or_conn: str | Connection,
    folder: Path = MIGRATIONS,
    *,
    runtime: str | None = None,
    also: Callable[[Connection], Awaitable[object]] | None = None,
    patience_s: float = PATIENCE_S,
) -> list[str]:
    """Apply the missing scripts; return the names of those that were applied, oldest first.

    dsn_or_conn: the connection of the role that owns the tables.
    runtime: the name of the role of gateways, where they have their own.
    also: called in the same transaction, so that nobody sees the new schema without what it makes; called again where
    the transaction began again.
    patience_s: the seconds after which the tables must be free of other transactions.

    Raises MigrationRefused: when the database is newer than this code, contradicts its files, or is too old; when the
    role of gateways has the rights of the owner; and when other transactions hold the tables all the time.
    """

    async def run(conn: Connection) -> list[str]:
        await conn.execute("SELECT pg_advisory_lock($1)", _LOCK_KEY)
        try:
            return await _migrate(conn, read_migrations(folder), runtime, also, patience_s)
        finally:
            await conn.execute("SELECT pg_advisory_unlock($1)", _LOCK_KEY)

    if not isinstance(dsn_or_conn, str):
        return await run(dsn_or_conn)
    connection = await asyncpg.connect(dsn_or_conn)
    try:
        return await run(connection)
    finally:
        await connection.close()


_HAS_SCHEMA = "SELECT to_regclass('public.schema_migrations') IS NOT NULL"


async def missing_scripts(conn: Connection, folder: Path = MIGRATIONS) -> list[Script]:
    """Return the scripts that `migrate` would apply to a database that it built before, oldest first.

    For an empty database, and for one that has to be converted first, return all scripts.

    Raises MigrationRefused: when the database is newer than this code, or contradicts its files.
    """
    steps, functions = [read_conversion(), *read_migrations(folder)], read_functions()
    rows = await conn.fetch(_SELECT_APPLIED) if await conn.fetchval(_HAS_SCHEMA) else []
    applied = {row["name"]: row["sha256"] for row in rows}
    if BASELINE not in applied:
        return [*steps, functions]
    _check(applied, steps)
    is_current = await conn.fetchval(_SELECT_FUNCTIONS) == functions.sha256
    return [*steps[len(applied) :], *([] if is_current else [functions])]


async def _migrate(
    conn: Connection,
    migrations: list[Script],
    runtime: str | None,
    also: Callable[[Connection], Awaitable[object]] | None,
    patience_s: float,
) -> list[str]:
    """Apply the missing scripts in one transaction, and begin again wherever it has to give way."""
    loop = asyncio.get_running_loop()
    given_up_s = loop.time() + patience_s
    while True:
        wait_ms = await lock_wait_ms(conn)
        try:
            async with conn.transaction():
                await conn.execute(_GIVE_WAY, f"{wait_ms}ms")
                applied = await _apply(conn, migrations, runtime)
                if also is not None:
                    await also(conn)
                return applied
        except CONFLICTS as error:
            if loop.time() >= given_up_s:
                raise MigrationRefused(
                    f"others have held the tables for {patience_s:.0f} s, such as a backup, a report or an autovacuum "
                    f"against wraparound: nothing was changed, try again when they have ended ({error})"
                ) from error
            await asyncio.sleep(random.uniform(*REST_S))  # noqa: S311 - no secret


async def lock_wait_ms(conn: Connection) -> int:
    """Return the milliseconds for which a migration waits for each lock.

    The wait ends before PostgreSQL searches for deadlocks; while a vacuum is at work in the database, after the search.
    """
    return int(await conn.fetchval(_LOCK_WAIT_MS))


async def _apply(conn: Connection, migrations: list[Script], runtime: str | None) -> list[str]:
    applied = await _apply_tables(conn, migrations)
    functions = read_functions()
    if applied or await conn.fetchval(_SELECT_FUNCTIONS) != functions.sha256:
        await conn.execute(functions.sql)
        await _record_migration(conn, functions)
        applied = applied or [functions.name]
    if runtime is not None:
        await grant_to_runtime(conn, runtime)
    return applied


async def _apply_tables(conn: Connection, migrations: list[Script]) -> list[str]:
    """Bring the tables up to date; return the names of the applied scripts."""
    await conn.execute(_CREATE_LEDGER)
    applied = {row["name"]: row["sha256"] for row in await conn.fetch(_SELECT_APPLIED)}
    steps = [read_conversion(), *migrations]
    if not applied:
        await conn.execute(read_tables())
        for step in steps:
            await _record_migration(conn, step)
        return [step.name for step in steps]
    if BASELINE not in applied:
        await convert(conn, applied)
        await _record_migration(conn, steps[0])
        num_applied = 1
        missing = steps
    else:
        _check(applied, steps)
        num_applied = len(applied)
        missing = steps[num_applied:]
    for step in steps[num_applied:]:
        await conn.execute(step.sql)
        await _record_migration(conn, step)
    return [step.name for step in missing]


async def _record_migration(conn: Connection, script: Script) -> None:
    await conn.execute(_REMEMBER, script.name, script.sha256)


def _check(applied: dict[str, str], steps: list[Script]) -> None:
    """Check that the applied steps are the first ones of the code, unchanged.

    Raises MigrationRefused: when a step differs or is missing.
    Raises NewerDatabase: when the database has further steps that the code does not have.
    """
    known = {step.name: step for step in steps}
    for name, sha256 in applied.items():
        if name not in known:
            reason = f"the database has migration {name}, which this version of Lorikeet does not know"
            is_newer = name > steps[-1].name and applied.items() >= {step.name: step.sha256 for step in steps}.items()
            raise NewerDatabase(reason) if is_newer else MigrationRefused(reason)
        if sha256 != known[name].sha256:
            raise MigrationRefused(f"migration {name} was edited after it was applied to this database")
    for step in steps[: len(applied)]:
        if step.name not in applied:
            raise MigrationRefused(f"migration {step.name} comes before one that is already applied")
