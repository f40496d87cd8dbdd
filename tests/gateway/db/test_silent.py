"""A database that says nothing any more, as behind a cut cable, keeps nobody longer than its deadline and a moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.db.pool import ACQUIRE_TIMEOUT_S, LOOKUP_TIMEOUT_S, Database
from gateway.domain.errors import Overloaded
from gateway.domain.routing.bases import Bases
from gateway.routing.resolve import Resolver
from tests.installation.processes import frozen
from tests.installation.tenants import make_key


async def no_key(project_id: str) -> bytes:
    return b""


@pytest.fixture
async def silent_database(dsn: str) -> AsyncIterator[Database]:
    """Give a database whose only connection is open but receives nothing any more."""
    async with await Database.connect(dsn, max_size=1) as database:
        async with database.acquire() as conn:
            pid: int = await conn.fetchval("SELECT pg_backend_pid()")
        with frozen(pid):
            yield database


async def test_a_caller_that_gives_up_does_not_wait_for_the_server(silent_database: Database) -> None:
    begun_s = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1), silent_database.acquire() as conn:
            await conn.fetchval("SELECT 1")
    assert asyncio.get_running_loop().time() - begun_s < ACQUIRE_TIMEOUT_S


async def test_a_model_that_cannot_be_looked_up_is_refused_in_time(dsn: str, silent_database: Database) -> None:
    key = await make_key(dsn, "acme")
    begun_s = asyncio.get_running_loop().time()
    with pytest.raises(Overloaded, match="cannot be looked up"):
        await Resolver(silent_database, Bases(), no_key).look_up(key.project_id, "org", "my-alias")
    assert asyncio.get_running_loop().time() - begun_s < LOOKUP_TIMEOUT_S + ACQUIRE_TIMEOUT_S
