"""Reports are read by processes of PostgreSQL with a lower priority than those that requests wait for."""

from __future__ import annotations

import os

import pytest

from gateway.db.pool import Database
from tests.installation.databases import Databases

LOWEST = 19


@pytest.fixture
def dsn(databases: Databases) -> str:
    return databases.create("priority")


async def niceness_of(database: Database) -> int:
    async with database.acquire() as conn:
        return os.getpriority(os.PRIO_PROCESS, await conn.fetchval("SELECT pg_backend_pid()"))


async def test_the_processes_behind_a_pool_have_its_niceness_and_no_others(dsn: str) -> None:
    async with await Database.connect(dsn) as usual, await Database.connect(dsn, niceness=LOWEST) as lowered:
        before = await niceness_of(usual)
        assert (await niceness_of(lowered), await niceness_of(usual)) == (LOWEST, before)
        async with await Database.connect(dsn, niceness=1) as higher:
            assert await niceness_of(higher) == max(1, before), "a priority is never raised"
