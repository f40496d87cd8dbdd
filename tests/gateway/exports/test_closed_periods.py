"""A closed month gives the same bytes every time: later, after whatever changed since, and in another database."""

from __future__ import annotations

import asyncio
import datetime
from pathlib import Path

import asyncpg
import pytest

from gateway.db import dump
from gateway.db.exports import LedgerSums
from gateway.db.pool import Database
from gateway.db.projects import archive_project, rename_project
from gateway.exports.request import FORMATS_OF
from gateway.exports.totals import Totals, difference
from tests.conftest import with_database
from tests.gateway.exports.ledger import BEFORE, MONTH, Books, close_month, make_books, time, write_usage
from tests.gateway.exports.reading import export


async def everything(books: Books, month: str) -> dict[str, bytes]:
    """Every file and manifest of a month, by name."""
    files = {}
    for kind, formats in FORMATS_OF.items():
        for format in formats:
            content, manifest = await export(books, kind, format, month)
            files[manifest.files[0].name] = content
            files[f"{manifest.files[0].name}.manifest"] = manifest.encode()
    return files


async def test_nothing_that_happens_later_changes_a_closed_month(database: Database) -> None:
    books = await make_books(database, num_rows=300)
    async with database.transaction() as conn:
        await close_month(conn, books, datetime.date(2025, 10, 1))
    before = await everything(books, MONTH)
    async with database.transaction() as conn:
        await rename_project(conn, books.organization_id, books.acme, "renamed")
        await archive_project(conn, books.organization_id, books.globex, datetime.timedelta(days=1))
        await write_usage(conn, books, "req_too_late_", time(10, 3), time(11, 1), 50)
        await conn.execute(
            "INSERT INTO price_versions (id, organization_id, version, currency, effective_at)"
            " VALUES ('pv_3', $1, 3, 'usd', now())",
            books.organization_id,
        )
    assert await everything(books, MONTH) == before


async def test_two_databases_of_one_backup_give_the_same_bytes(
    books: Books, books_dsn: str, postgres: str, tmp_path: Path
) -> None:
    async with dump.snapshot(books_dsn) as moment:
        await asyncio.to_thread(dump.dump, books_dsn, moment.id, tmp_path / "books.dump")
    conn = await asyncpg.connect(postgres)
    await conn.execute("CREATE DATABASE second_books")
    await conn.close()
    elsewhere = with_database(postgres, "second_books")
    await asyncio.to_thread(dump.restore, elsewhere, tmp_path / "books.dump")
    async with await Database.connect(elsewhere) as database:
        second = Books(database, books.organization_id, books.acme, books.globex)
        assert await everything(second, BEFORE) == await everything(books, BEFORE)


async def test_an_open_month_says_so_and_when_it_was_looked_at(books: Books) -> None:
    _, of_open = await export(books, "usage", "csv", MONTH)
    _, of_closed = await export(books, "usage", "csv", BEFORE)
    _, of_day = await export(books, "usage", "csv", f"{BEFORE}-05")
    assert (of_open.state, of_closed.state, of_day.state) == ("open", "closed", "closed")
    assert of_open.as_of is not None and of_closed.as_of is None
    assert datetime.datetime.fromisoformat(of_open.as_of).tzinfo is not None


def test_an_export_that_differs_from_the_ledger_is_found() -> None:
    ledger = LedgerSums(num_rows=3, input_tokens=13, cached_input_tokens=1, output_tokens=5, cost_nanos=100)
    assert difference(Totals(13, 1, 5, "usd", 100, 7), ledger) is None
    for wrong in ((12, 1, 5, 100), (13, 2, 5, 100), (13, 1, 4, 100), (13, 1, 5, 101)):
        assert difference(Totals(*wrong[:3], "usd", wrong[3], 7), ledger) is not None


@pytest.mark.parametrize("period", ["2025-07", "2026-01"])
async def test_a_month_without_usage_is_whole_and_empty(books: Books, period: str) -> None:
    for kind, formats in FORMATS_OF.items():
        for format in formats:
            content, manifest = await export(books, kind, format, period)
            assert manifest.num_rows == 0 and manifest.totals.cost_nanos == 0
            assert manifest.files[0].num_bytes == len(content)
