"""A database of the last schema before numbering began anew becomes one of this schema, and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import asyncpg
import pytest

from gateway.backup.manifest import BackupError
from gateway.backup.restore import check_backup
from gateway.cli import main
from gateway.db.adapters import adapters, bases
from gateway.db.conversion import CONVERTED, LAST
from gateway.db.migrate import MigrationRefused, migrate
from gateway.db.organization import audit
from gateway.db.pool import Database
from gateway.db.schema_files import read_functions, schema_names
from tests.conftest import with_database
from tests.gateway.bases import BASE_DIGEST
from tests.gateway.billing.books import Books
from tests.gateway.billing.sums import assert_sums_equal_the_ledger
from tests.gateway.db.catalog import differences, read_catalog
from tests.gateway.db.compare import MAY_DIFFER, compare
from tests.gateway.db.old import OLD_SCHEMA, build_old_schema, load_old_rows, take_old_backup

if TYPE_CHECKING:
    from gateway.db.pool import Connection


@asynccontextmanager
async def open_connection(dsn: str) -> AsyncIterator[Connection]:
    connection = await asyncpg.connect(dsn, server_settings={"timezone": "UTC"})
    try:
        yield connection
    finally:
        await connection.close()


OF_POOLS = {
    "backend_keys",
    "host_failures",
    "host_tokens",
    "hosts",
    "pool_grants",
    "pool_loads",
    "pool_revisions",
    "pool_scaling",
    "pools",
    "provider_keys",
    "replicas",
}
OF_EXPERIMENTS = {
    "experiment_ages",
    "experiment_arms",
    "experiment_days",
    "experiment_events",
    "experiment_gateways",
    "experiment_holdouts",
    "experiment_keys",
    "experiment_layers",
    "experiment_looks",
    "experiment_reasons",
    "experiment_requests",
    "experiment_segment_sums",
    "experiment_segments",
    "experiment_sums",
    "experiment_time_totals",
    "experiment_times",
    "experiment_totals",
    "experiment_units",
    "experiments",
    "feedback",
    "feedback_counted",
    "feedback_ids",
    "feedback_metrics",
}
OF_ROUTES = {"routes", "route_versions"}
OF_RESPONSES = {
    "stored_responses",
    "background_responses",
    "background_events",
    "conversations",
    "conversation_items",
}
OF_FILES = {"disowned_lines", "files", "file_uploads", "file_parts", "batches", "batch_lines", "batch_turns"}
OF_PASSKEYS = {"passkeys", "passkey_challenges"}
LATER = OF_POOLS | OF_EXPERIMENTS | OF_ROUTES | OF_RESPONSES | OF_FILES | OF_PASSKEYS
"""Tables that a later migration added, so that they are empty after it."""


@pytest.fixture
async def old_dsn(empty_dsn: str) -> str:
    """Return the DSN of a database of the old schema, with rows in every table."""
    async with open_connection(empty_dsn) as conn:
        await build_old_schema(conn)
        await load_old_rows(conn)
    return empty_dsn


@pytest.fixture
def copy_dsn(postgres: str, old_dsn: str) -> Iterator[str]:
    """Give the DSN of a copy of the old database as it was before its conversion."""
    name = urlsplit(old_dsn).path[1:]
    copy = f"copy_of_{name}"
    asyncio.run(_execute(postgres, f"CREATE DATABASE {copy} TEMPLATE {name}"))
    yield with_database(postgres, copy)
    asyncio.run(_execute(postgres, f"DROP DATABASE {copy} WITH (FORCE)"))


async def _execute(dsn: str, statement: str) -> None:
    async with open_connection(dsn) as conn:
        await conn.execute(statement)


async def test_a_converted_schema_equals_one_that_is_built_anew(empty_dsn: str, dsn: str) -> None:
    async with open_connection(empty_dsn) as old, open_connection(dsn) as new:
        await build_old_schema(old)
        assert await migrate(empty_dsn) == list(schema_names())
        converted = await read_catalog(old)
        assert len(converted) > 1000
        assert differences(converted, await read_catalog(new)) == []
        assert await migrate(empty_dsn) == []


async def test_functions_applied_again_are_the_same(dsn: str) -> None:
    """This holds, too, for functions that call others which the first application had yet to make."""
    async with open_connection(dsn) as conn:
        before = await read_catalog(conn)
        await conn.execute(read_functions().sql)
        assert differences(before, await read_catalog(conn)) == []


async def test_every_row_of_a_loaded_database_stays(old_dsn: str, copy_dsn: str) -> None:
    async with open_connection(copy_dsn) as before, open_connection(old_dsn) as after:
        assert await migrate(old_dsn) == list(schema_names())
        tables = await compare(before, after)
        empty = {each.table for each in tables if each.before is not None and each.before.num_rows == 0}
        assert empty == {"usage_events"}, "the old database has rows in every table but its door"
        assert [each for each in tables if not each.is_equal and each.table not in MAY_DIFFER | LATER] == []
        assert {each.table for each in tables if each.after is None} == {"usage_events", "traffic_queue"}
        assert {each.table for each in tables if each.before is None} == {"bases", *LATER}


async def test_events_that_waited_in_the_old_queues_are_counted_in_the_sums(old_dsn: str) -> None:
    await migrate(old_dsn)
    async with await Database.connect(old_dsn) as database:
        await assert_sums_equal_the_ledger(Books(database, "org_1", "proj_1"))
        async with database.acquire() as conn:
            levels = await conn.fetch(
                "SELECT sum(num_requests), sum(num_errors), sum(completion_tokens), sum(cost_nanos)"
                " FROM traffic_rollups GROUP BY level, width"
            )
            ledger = await conn.fetchrow(
                "SELECT count(*) FILTER (WHERE counts_as_request(kind, revision, request_id)), 0,"
                " sum(completion_tokens), sum(cost_nanos) FROM ledger WHERE kind = 'usage'"
            )
            assert len(levels) == 12
            assert {tuple(map(int, level)) for level in levels} == {tuple(map(int, ledger))}
            num_times = await conn.fetchval(
                "SELECT sum(n) FROM traffic_times, unnest(ttft_counts) n WHERE level = 'full'"
            )
            assert num_times == 3 * ledger[0], "of each width"


async def test_the_audit_chain_holds_and_the_ledger_goes_on(old_dsn: str) -> None:
    await migrate(old_dsn)
    async with await Database.connect(old_dsn) as database:
        async with database.acquire() as conn:
            verdict = await audit.verify(conn, "org_1")
            assert (verdict.head.sequence, verdict.broken) == (3, None)
        books = Books(database, "org_1", "proj_1")
        settled = "SELECT sum(settled)::bigint FROM limit_accounts WHERE limit_id = 'lim_1'"
        before = await books.value(settled)
        assert await books.write(books.event("req_new"), books.event("req_new", attempt=1)) == {
            ("req_new", 0),
            ("req_new", 1),
        }
        assert await books.value(settled) == before + 2 * 15
        await books.roll_up()
        await assert_sums_equal_the_ledger(books)


async def test_the_first_base_adopts_adapters_once_and_caches_hear_of_it(old_dsn: str) -> None:
    await migrate(old_dsn)
    async with open_connection(old_dsn) as conn:
        found = await adapters.find_adapter(conn, "proj_1", "pirate")
        assert found is not None and found.base_digest is None
        version = await conn.fetchval("SELECT change_version FROM installation")
        assert await bases.settle_base(conn, BASE_DIGEST, "base") == 3
        assert await conn.fetchval("SELECT change_version FROM installation") == version + 3
        assert await bases.settle_base(conn, "c" * 64, "another") == 0
        found = await adapters.find_adapter(conn, "proj_1", "pirate")
        assert found is not None and found.base_digest == BASE_DIGEST
        assert await conn.fetchval("SELECT count(*) FROM bases") == 2


async def test_a_backup_of_the_old_schema_is_restored_and_converted(
    old_dsn: str, copy_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = tmp_path / "backup"
    await take_old_backup(old_dsn, backup)
    assert check_backup(backup).contents.migrations == tuple(CONVERTED)
    environ = {"DATABASE_URL": old_dsn, "LORIKEET_DATA_DIR": str(tmp_path / "data")}
    await _execute(old_dsn, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    assert await asyncio.to_thread(main, ["restore", str(backup)], environ) == 0, capsys.readouterr().err
    assert await migrate(old_dsn) == []
    async with open_connection(copy_dsn) as before, open_connection(old_dsn) as after:
        left_out = {"kept_replies", "request_contents"}
        differing = {each.table for each in await compare(before, after) if not each.is_equal}
        assert differing - MAY_DIFFER - LATER == left_out
    assert await asyncio.to_thread(main, ["backup", str(tmp_path / "again")], environ) == 0, capsys.readouterr().err


async def test_a_backup_of_an_earlier_schema_is_refused_with_what_to_do(old_dsn: str, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    await _execute(old_dsn, f"DELETE FROM schema_migrations WHERE name = '{LAST}'")
    await take_old_backup(old_dsn, backup)
    with pytest.raises(BackupError, match=f"{list(CONVERTED)[-2]}: restore it with the version that made it"):
        check_backup(backup)


@pytest.mark.parametrize("num_migrations", [1, 13, 19])
async def test_earlier_schemas_are_refused_with_what_to_do(
    empty_dsn: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], num_migrations: int
) -> None:
    async with open_connection(empty_dsn) as conn:
        await build_old_schema(conn, num_migrations=num_migrations)
        before = await read_catalog(conn)
        with pytest.raises(
            MigrationRefused, match=f"run `lorikeet migrate` of the version that ends with {LAST} first"
        ):
            await migrate(empty_dsn)
        assert await read_catalog(conn) == before
    environ = {"DATABASE_URL": empty_dsn, "LORIKEET_DATA_DIR": str(tmp_path)}
    assert await asyncio.to_thread(main, ["migrate"], environ) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert list(CONVERTED)[num_migrations - 1] in line


async def test_an_edited_or_unknown_old_migration_is_refused(old_dsn: str) -> None:
    await _execute(old_dsn, f"UPDATE schema_migrations SET sha256 = 'x' WHERE name = '{LAST}'")
    with pytest.raises(MigrationRefused, match=f"{LAST} was edited"):
        await migrate(old_dsn)
    await _execute(old_dsn, f"UPDATE schema_migrations SET name = '0022_unheard_of' WHERE name = '{LAST}'")
    with pytest.raises(MigrationRefused, match="0022_unheard_of, which this version"):
        await migrate(old_dsn)


async def test_a_conversion_that_fails_leaves_the_old_database(old_dsn: str) -> None:
    await _execute(old_dsn, "CREATE TABLE bases (id text)")  # somebody else's
    async with open_connection(old_dsn) as conn:
        before = await read_catalog(conn)
        with pytest.raises(asyncpg.DuplicateTableError):
            await migrate(old_dsn)
        assert await read_catalog(conn) == before
        assert await conn.fetchval("SELECT count(*) FROM schema_migrations") == len(CONVERTED)


def test_the_old_schema_is_the_one_that_is_converted() -> None:
    assert [path.stem for path in sorted(OLD_SCHEMA.glob("*.sql"))] == list(CONVERTED)
