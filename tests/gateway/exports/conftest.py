"""One ledger for all tests that only read it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from gateway.db.pool import Database
from tests.conftest import with_database
from tests.gateway.exports.ledger import Books, make_books

SHARED = "exported_books"


@pytest.fixture(scope="session")
def books_dsn(postgres: str, database_template: str) -> str:
    """A database in which nobody may change these months."""

    async def prepare() -> None:
        conn = await asyncpg.connect(postgres)
        await conn.execute(f"CREATE DATABASE {SHARED} TEMPLATE {database_template}")
        await conn.close()
        async with await Database.connect(with_database(postgres, SHARED)) as database:
            await make_books(database)

    asyncio.run(prepare())
    return with_database(postgres, SHARED)


@pytest.fixture
async def books(books_dsn: str) -> AsyncIterator[Books]:
    async with await Database.connect(books_dsn) as database, database.acquire() as conn:
        organization_id = await conn.fetchval("SELECT id FROM organizations")
        projects = [row["id"] for row in await conn.fetch("SELECT id FROM projects ORDER BY name")]
        yield Books(database, organization_id, *projects)
