"""The schema is built once, in order, whoever starts first, and never over contradictions."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import asyncpg
import pytest

from gateway.db.migrate import MIGRATIONS, MigrationRefused, migrate, read_migrations


async def test_an_empty_database_gets_every_migration_and_the_second_time_none(empty_dsn: str) -> None:
    assert await migrate(empty_dsn) == [migration.name for migration in read_migrations()]
    assert await migrate(empty_dsn) == []


async def test_concurrent_starts_apply_each_migration_once(empty_dsn: str) -> None:
    applied = await asyncio.gather(*(migrate(empty_dsn) for _ in range(5)))
    assert sorted(name for names in applied for name in names) == [migration.name for migration in read_migrations()]


async def test_a_connection_may_be_given(empty_dsn: str) -> None:
    connection = await asyncpg.connect(empty_dsn)
    try:
        assert await migrate(connection) != []
        assert await connection.fetchval("SELECT count(*) FROM projects") == 0
    finally:
        await connection.close()


async def test_an_edited_migration_is_refused_by_name(empty_dsn: str, tmp_path: Path) -> None:
    await migrate(empty_dsn)
    edited = shutil.copytree(MIGRATIONS, tmp_path / "migrations")
    first = sorted(edited.glob("*.sql"))[0]
    first.write_text(first.read_text() + "-- one more thought\n")
    with pytest.raises(MigrationRefused, match=f"{first.stem} was edited"):
        await migrate(empty_dsn, edited)


async def test_a_database_newer_than_the_code_is_refused(empty_dsn: str, tmp_path: Path) -> None:
    newer = shutil.copytree(MIGRATIONS, tmp_path / "migrations")
    name = "9999_from_the_future"
    (newer / f"{name}.sql").write_text("CREATE TABLE future (id text)")
    assert name in await migrate(empty_dsn, newer)
    with pytest.raises(MigrationRefused, match=f"{name}, which this version"):
        await migrate(empty_dsn)


async def test_a_failing_migration_leaves_the_ones_before_it_and_nothing_of_itself(
    empty_dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "0001_good.sql").write_text("CREATE TABLE good (id text)")
    (tmp_path / "0002_bad.sql").write_text("CREATE TABLE half (id text); SELECT nonsense")
    with pytest.raises(asyncpg.UndefinedColumnError):
        await migrate(empty_dsn, tmp_path)
    (tmp_path / "0002_bad.sql").write_text("CREATE TABLE half (id text)")
    assert await migrate(empty_dsn, tmp_path) == ["0002_bad"]


def test_numbers_that_repeat_are_refused(tmp_path: Path) -> None:
    (tmp_path / "0001_first.sql").write_text("")
    (tmp_path / "0003_third.sql").write_text("")
    (tmp_path / "0003_too.sql").write_text("")
    with pytest.raises(MigrationRefused, match="its number is that of 0003_third"):
        read_migrations(tmp_path)


async def test_a_migration_that_comes_late_is_refused(empty_dsn: str, tmp_path: Path) -> None:
    (tmp_path / "0001_first.sql").write_text("SELECT 1")
    (tmp_path / "0003_third.sql").write_text("SELECT 1")
    await migrate(empty_dsn, tmp_path)
    (tmp_path / "0002_second.sql").write_text("SELECT 1")
    with pytest.raises(MigrationRefused, match="0002_second comes before one that is already applied"):
        await migrate(empty_dsn, tmp_path)
