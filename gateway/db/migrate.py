"""Brings the schema up to date: numbered SQL files, applied forward only, each once and in its own transaction.

Every applied file is remembered with its SHA-256. A database that is newer than this code, and a file that was edited
after it was applied, are refused before anything is changed. Concurrent runs wait for each other.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import msgspec

if TYPE_CHECKING:
    from gateway.db.pool import Connection

MIGRATIONS = Path(__file__).parent / "migrations"

_LOCK_KEY = 0x6C6F72696B656574  # "lorikeet"
_CREATE_LEDGER = """
    CREATE TABLE IF NOT EXISTS schema_migrations (
        name        text PRIMARY KEY,
        sha256      text NOT NULL,
        applied_at  timestamptz NOT NULL DEFAULT now()
    )
"""
_SELECT_APPLIED = "SELECT name, sha256 FROM schema_migrations ORDER BY name"
_INSERT_APPLIED = "INSERT INTO schema_migrations (name, sha256) VALUES ($1, $2)"


class MigrationRefused(RuntimeError):
    """The database and the migrations of this code contradict each other; nothing was changed."""


class Migration(msgspec.Struct, frozen=True):
    name: str
    sql: str
    sha256: str


async def migrate(dsn_or_conn: str | Connection, folder: Path = MIGRATIONS) -> list[str]:
    """Apply what is missing; returns the names applied now, oldest first. Raises MigrationRefused."""
    if not isinstance(dsn_or_conn, str):
        return await _migrate(dsn_or_conn, read_migrations(folder))
    connection = await asyncpg.connect(dsn_or_conn)
    try:
        return await _migrate(connection, read_migrations(folder))
    finally:
        await connection.close()


def read_migrations(folder: Path = MIGRATIONS) -> list[Migration]:
    """The files `NNNN_name.sql` of a folder in order; a number may be left out, for it can't be filled once a later one
    was applied. Raises MigrationRefused for other names and for numbers that repeat."""
    migrations: list[Migration] = []
    for path in sorted(folder.glob("*.sql")):
        if not re.fullmatch(r"\d{4}_[a-z0-9_]+", path.stem):
            raise MigrationRefused(f"{path.name}: expected a file named NNNN_<name>.sql")
        if migrations and migrations[-1].name[:4] == path.stem[:4]:
            raise MigrationRefused(f"{path.name}: its number is that of {migrations[-1].name}.sql")
        content = path.read_bytes()
        migrations.append(Migration(path.stem, content.decode(), hashlib.sha256(content).hexdigest()))
    return migrations


async def _migrate(conn: Connection, migrations: list[Migration]) -> list[str]:
    await conn.execute("SELECT pg_advisory_lock($1)", _LOCK_KEY)
    try:
        await conn.execute(_CREATE_LEDGER)
        applied = {row["name"]: row["sha256"] for row in await conn.fetch(_SELECT_APPLIED)}
        _check(applied, migrations)
        missing = migrations[len(applied) :]
        for migration in missing:
            async with conn.transaction():
                await conn.execute(migration.sql)
                await conn.execute(_INSERT_APPLIED, migration.name, migration.sha256)
        return [migration.name for migration in missing]
    finally:
        await conn.execute("SELECT pg_advisory_unlock($1)", _LOCK_KEY)


def _check(applied: dict[str, str], migrations: list[Migration]) -> None:
    """The applied ones must be exactly the first ones of the code, unchanged."""
    known = {migration.name: migration for migration in migrations}
    for name, sha256 in applied.items():
        if name not in known:
            raise MigrationRefused(f"the database has migration {name}, which this version of Lorikeet does not know")
        if sha256 != known[name].sha256:
            raise MigrationRefused(f"migration {name} was edited after it was applied to this database")
    for migration in migrations[: len(applied)]:
        if migration.name not in applied:
            raise MigrationRefused(f"migration {migration.name} comes before one that is already applied")
