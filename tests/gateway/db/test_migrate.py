"""The schema is built once, whichever process starts first, and never over contradictions."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import asyncpg
import pytest

from gateway.db.migrate import MigrationRefused, lock_wait_ms, migrate, read_migrations
from gateway.db.schema_files import (
    BASELINE,
    FUNCTIONS,
    MIGRATIONS,
    ROOM,
    TABLES,
    read_functions,
    read_tables,
    schema_names,
)
from tests.patience import PATIENCE_S


async def execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def fetch_value(dsn: str, query: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the migrations of this code, to which a test adds later ones."""
    shutil.copytree(MIGRATIONS, tmp_path / "migrations")
    return tmp_path / "migrations"


async def test_an_empty_database_gets_the_schema_and_the_second_time_nothing(empty_dsn: str) -> None:
    assert await migrate(empty_dsn) == list(schema_names())
    assert await migrate(empty_dsn) == []


async def test_concurrent_starts_build_the_schema_once(empty_dsn: str) -> None:
    applied = await asyncio.gather(*(migrate(empty_dsn) for _ in range(5)))
    assert sorted(name for names in applied for name in names) == list(schema_names())


async def test_a_connection_may_be_given(empty_dsn: str) -> None:
    connection = await asyncpg.connect(empty_dsn)
    try:
        assert await migrate(connection) != []
        assert await connection.fetchval("SELECT count(*) FROM projects") == 0
    finally:
        await connection.close()


def test_every_file_of_the_schema_is_applied() -> None:
    assert sorted(TABLES) == sorted(path.stem for path in (ROOM / "schema").glob("*"))
    assert sorted(FUNCTIONS) == sorted(path.stem for path in (ROOM / "functions").glob("*"))
    for folder, script in (("schema", read_tables()), ("functions", read_functions().sql)):
        assert all(path.read_text() in script for path in (ROOM / folder).glob("*.sql"))


async def test_functions_that_differ_are_applied_anew_and_others_are_left_alone(dsn: str) -> None:
    """A database has other functions than this code after another version has run, or after a restore."""
    definition = "SELECT prosrc FROM pg_proc WHERE proname = 'month_of'"
    ours = await fetch_value(dsn, definition)
    edit = "CREATE OR REPLACE FUNCTION month_of(instant timestamptz) RETURNS date LANGUAGE sql AS 'SELECT current_date'"
    await execute(dsn, edit, "DROP TRIGGER invoices_stay ON invoices")
    assert await migrate(dsn) == []
    assert await fetch_value(dsn, definition) == "SELECT current_date"
    await execute(dsn, "UPDATE schema_migrations SET sha256 = 'another' WHERE name = 'functions'")
    assert await migrate(dsn) == ["functions"]
    assert await fetch_value(dsn, definition) == ours
    assert await fetch_value(dsn, "SELECT count(*) FROM pg_trigger WHERE tgname = 'invoices_stay'") == 1
    assert await migrate(dsn) == []


async def test_a_schema_that_is_up_to_date_is_no_hindrance_to_gateways_nor_they_to_it(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction():
            await connection.execute("LOCK TABLE ledger, adapters, limits, installation IN ROW EXCLUSIVE MODE")
            async with asyncio.timeout(PATIENCE_S):
                assert await migrate(dsn) == []
    finally:
        await connection.close()


async def test_a_migration_is_applied_once_and_functions_after_it(dsn: str, folder: Path) -> None:
    await execute(dsn, "DROP TRIGGER invoices_stay ON invoices")
    (folder / "0101_column.sql").write_text("ALTER TABLE invoices ADD COLUMN remark text")
    assert await migrate(dsn, folder) == ["0101_column"]
    assert await migrate(dsn, folder) == []
    assert await fetch_value(dsn, "SELECT count(*) FROM pg_trigger WHERE tgname = 'invoices_stay'") == 1


async def test_an_edited_migration_is_refused_by_name(dsn: str, folder: Path) -> None:
    (folder / "0101_first.sql").write_text("SELECT 1")
    await migrate(dsn, folder)
    (folder / "0101_first.sql").write_text("SELECT 1 -- one more thought")
    with pytest.raises(MigrationRefused, match="0101_first was edited"):
        await migrate(dsn, folder)


async def test_a_baseline_of_another_conversion_is_refused(dsn: str) -> None:
    await execute(dsn, f"UPDATE schema_migrations SET sha256 = 'another' WHERE name = '{BASELINE}'")
    with pytest.raises(MigrationRefused, match=f"{BASELINE} was edited"):
        await migrate(dsn)


async def test_a_database_newer_than_the_code_is_refused(dsn: str, folder: Path) -> None:
    name = "9999_from_the_future"
    (folder / f"{name}.sql").write_text("CREATE TABLE future (id text)")
    assert await migrate(dsn, folder) == [name]
    with pytest.raises(MigrationRefused, match=f"{name}, which this version"):
        await migrate(dsn)


async def test_a_failing_migration_leaves_nothing_of_itself_nor_of_the_ones_before(dsn: str, folder: Path) -> None:
    (folder / "0101_good.sql").write_text("CREATE TABLE good (id text)")
    (folder / "0102_bad.sql").write_text("CREATE TABLE half (id text); SELECT nonsense")
    with pytest.raises(asyncpg.UndefinedColumnError):
        await migrate(dsn, folder)
    (folder / "0102_bad.sql").write_text("CREATE TABLE half (id text)")
    assert await migrate(dsn, folder) == ["0101_good", "0102_bad"]


@pytest.mark.parametrize("name", ["0003_too", "0000_again", "later"])
def test_numbers_that_repeat_and_other_names_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "0001_first.sql").write_text("")
    (tmp_path / "0003_third.sql").write_text("")
    (tmp_path / f"{name}.sql").write_text("")
    with pytest.raises(MigrationRefused, match=rf"{name}\.sql: (its number is that of 0003_third|expected a file)"):
        read_migrations(tmp_path)


async def test_a_migration_that_comes_late_is_refused(dsn: str, folder: Path) -> None:
    (folder / "0101_first.sql").write_text("SELECT 1")
    (folder / "0103_third.sql").write_text("SELECT 1")
    await migrate(dsn, folder)
    (folder / "0102_second.sql").write_text("SELECT 1")
    with pytest.raises(MigrationRefused, match="0102_second comes before one that is already applied"):
        await migrate(dsn, folder)


LATER = "ALTER TABLE organizations ADD COLUMN one integer; ALTER TABLE projects ADD COLUMN two integer;"
_IS_HELD_UP = """
    SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'projects'::regclass
                   AND mode = 'AccessExclusiveLock')
"""


async def test_a_migration_gives_way_to_transactions_that_use_its_tables(dsn: str, folder: Path) -> None:
    """Otherwise migration and transaction could wait for each other, and PostgreSQL might end the transaction."""
    (folder / "9998_later.sql").write_text(LATER)
    other = await asyncpg.connect(dsn)
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE projects IN ROW EXCLUSIVE MODE")
            migrating = asyncio.create_task(migrate(dsn, folder))
            async with asyncio.timeout(PATIENCE_S):
                while not await other.fetchval(_IS_HELD_UP):
                    assert not migrating.done()
            await other.execute("LOCK TABLE organizations IN ROW EXCLUSIVE MODE")  # which the migration has
    finally:
        await other.close()
    assert await migrating == ["9998_later"]


async def test_only_where_a_vacuum_is_at_work_does_a_migration_outlast_the_search_for_deadlocks(dsn: str) -> None:
    search_ms = await fetch_value(dsn, "SELECT setting::integer FROM pg_settings WHERE name = 'deadlock_timeout'")
    assert isinstance(search_ms, int)
    conn, other = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE projects IN SHARE UPDATE EXCLUSIVE MODE")  # as a vacuum does
            assert await lock_wait_ms(conn) > search_ms
        async with other.transaction():
            await other.execute("LOCK TABLE projects IN ROW EXCLUSIVE MODE")
            assert await lock_wait_ms(conn) < search_ms
    finally:
        await conn.close()
        await other.close()


async def test_a_migration_whose_tables_are_never_free_is_refused_and_changes_nothing(dsn: str, folder: Path) -> None:
    (folder / "9998_later.sql").write_text(LATER)
    other = await asyncpg.connect(dsn)
    try:
        async with other.transaction():
            await other.execute("LOCK TABLE projects IN ACCESS SHARE MODE")  # as a backup does
            with pytest.raises(MigrationRefused, match="others have held the tables for 1 s, such as a backup"):
                await migrate(dsn, folder, patience_s=1.0)
    finally:
        await other.close()
    assert await migrate(dsn) == [], "the schema is that of this code"
