"""Fixtures for tests of stored content: a house whose tenants are of the test's own, and all that its tables hold."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import httpx
import pytest

from gateway.db.organization.keys import create_key
from gateway.db.pool import Database
from gateway.domain.content.keys import ContentKey
from gateway.domain.tenancy.keys import new_key
from gateway.support.cipher import Cipher
from tests.gateway.conftest import House
from tests.gateway.limits.fleet import Key, make_key
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

NUMBERS = itertools.count(1)


@pytest.fixture
def cipher() -> Cipher:
    return Cipher([ContentKey(b"k" * 32)])


@pytest.fixture
def tenant(house: House) -> Key:
    """Return a project of the test's own that has stored nothing yet."""
    return asyncio.run(make_key(house.dsn, f"keeper-{next(NUMBERS)}"))


@pytest.fixture
def stranger(house: House) -> Key:
    return asyncio.run(make_key(house.dsn, f"stranger-{next(NUMBERS)}"))


@pytest.fixture
async def client(house: House) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=house.url, timeout=PATIENCE_S) as client:
        yield client


@asynccontextmanager
async def connected(house: House) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client of the admin API with the operator's key."""
    headers = {"authorization": f"Bearer {house.operator_key}"}
    async with httpx.AsyncClient(
        base_url=f"{house.url}/v1/organization", headers=headers, timeout=PATIENCE_S
    ) as client:
        yield client


@pytest.fixture
async def operator(house: House) -> AsyncIterator[httpx.AsyncClient]:
    async with connected(house) as client:
        yield client


@pytest.fixture
async def tables(house: House) -> AsyncIterator[Database]:
    """Give a connection pool to the house's database."""
    async with await Database.connect(house.dsn) as database:
        yield database


async def another_key(dsn: str, tenant: Key, *, models: list[str]) -> Key:
    """Return another key of the same project, for these models alone."""
    conn, made = await asyncpg.connect(dsn), new_key()
    try:
        row = await create_key(
            conn,
            organization_id=tenant.organization_id,
            project_id=tenant.project_id,
            name="restricted",
            public=made.public,
            sha256=made.sha256,
            scopes=["inference"],
            models=models,
        )
    finally:
        await conn.close()
    assert row is not None
    return Key(tenant.organization_id, tenant.project_id, row.id, made.secret)


async def ledger_rows(dsn: str, project_id: str, count: int) -> list[tuple[int, int]]:
    """Return prompt tokens and completion tokens of each row, once there are `count` rows."""
    sql = "SELECT prompt_tokens, completion_tokens FROM usage_attempts WHERE project_id = $1"
    conn = await asyncpg.connect(dsn)

    async def rows() -> list[tuple[int, int]]:
        return [(row["prompt_tokens"], row["completion_tokens"]) for row in await conn.fetch(sql, project_id)]

    async def are_there() -> bool:
        return len(await rows()) >= count

    try:
        await until(are_there, f"fewer than {count} rows came", pause_s=0.05)
        return await rows()
    finally:
        await conn.close()


async def all_rows_as_text(database: Database) -> str:
    """Return all rows of all tables as text, with bytes in hexadecimal."""
    async with database.acquire() as conn:
        names = await conn.fetch(
            "SELECT format('%I', relname) AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace "
            "AND relkind = 'r'"
        )
        rows = [await conn.fetch(f"SELECT t::text AS row FROM {name['name']} t") for name in names]
    return "\n".join(str(row["row"]) for of_table in rows for row in of_table)
