"""A transaction is whole or nothing, and a caller that gives up on a transaction does not wait for the server."""

from __future__ import annotations

import asyncio

import pytest

from gateway.db.pool import Database
from tests.patience import PATIENCE_S

INSERT = "INSERT INTO organizations (id, name) VALUES ('org', 'org')"


async def num_organizations(database: Database) -> int:
    async with database.acquire() as conn:
        count: int = await conn.fetchval("SELECT count(*) FROM organizations")
        return count


async def test_a_transaction_that_ends_without_an_error_is_committed(database: Database) -> None:
    async with database.transaction() as conn:
        await conn.execute(INSERT)
    assert await num_organizations(database) == 1


async def test_an_error_rolls_the_whole_transaction_back(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        async with database.transaction() as conn:
            await conn.execute(INSERT)
            _ = 1 / 0
    assert await num_organizations(database) == 0


async def test_a_timeout_rolls_the_transaction_back_without_waiting_for_the_server(database: Database) -> None:
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1), database.transaction() as conn:
            await conn.execute(INSERT)
            await conn.execute("SELECT pg_sleep(600)")
    assert loop.time() - start_s < PATIENCE_S
    assert await num_organizations(database) == 0


async def test_a_part_of_a_process_with_a_bound_leaves_connections_to_other_parts(database: Database) -> None:
    bounded = database.bounded(1)
    async with bounded.transaction() as conn:
        await conn.execute(INSERT)
        waiting = asyncio.create_task(num_organizations(bounded))
        assert await num_organizations(database) == 0
        assert not waiting.done()
    assert await waiting == 1
