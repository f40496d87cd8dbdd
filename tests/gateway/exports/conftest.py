"""One ledger for all tests that only read it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.db.pool import Database
from tests.gateway.exports.ledger import Books, make_books
from tests.installation.databases import Databases


@pytest.fixture(scope="session")
def books_dsn(databases: Databases) -> str:
    """Return the DSN of a database whose months no test may change."""
    dsn = databases.create("exported_books")

    async def prepare() -> None:
        async with await Database.connect(dsn) as database:
            await make_books(database)

    asyncio.run(prepare())
    return dsn


@pytest.fixture
async def books(books_dsn: str) -> AsyncIterator[Books]:
    async with await Database.connect(books_dsn) as database, database.acquire() as conn:
        organization_id = await conn.fetchval("SELECT id FROM organizations")
        projects = [row["id"] for row in await conn.fetch("SELECT id FROM projects ORDER BY name")]
        yield Books(database, organization_id, *projects)
