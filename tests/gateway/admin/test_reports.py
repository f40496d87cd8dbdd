"""Reports take turns, and each key or person reads them for a share of the time."""

from __future__ import annotations

import asyncio

import pytest

from gateway.admin.reports import MAX_AT_ONCE, Reports
from gateway.db.pool import Database
from gateway.domain.errors import LimitReached, Overloaded


@pytest.mark.parametrize(("num_actors", "at_once"), [(1, 1), (8, MAX_AT_ONCE)], ids=["one reader", "many"])
async def test_one_report_of_each_reader_is_read_at_a_time_and_few_of_all(
    database: Database, num_actors: int, at_once: int
) -> None:
    reports = Reports(database)
    running, most = 0, 0

    async def read(actor_id: str) -> int:
        nonlocal running, most
        async with reports.connection(actor_id) as connection:
            running += 1
            most = max(most, running)
            found = await connection.fetchval("SELECT 1 FROM pg_sleep(0.01)")
            running -= 1
            return int(found)

    assert await asyncio.gather(*(read(f"user_{number % num_actors}") for number in range(8))) == [1] * 8
    assert most == at_once


async def test_a_reader_whose_report_takes_long_holds_up_nobody_else(database: Database) -> None:
    reports = Reports(database)
    async with reports.connection("slow"):
        async with reports.connection("other") as connection:
            assert await connection.fetchval("SELECT 1") == 1
        again = asyncio.create_task(reports.connection("slow").__aenter__())
        async with reports.connection("other") as connection:
            assert await connection.fetchval("SELECT 1") == 1
        assert not again.done()
        again.cancel()


async def test_who_asks_for_many_reports_at_once_is_told_so_and_others_that_reports_are_read(
    database: Database,
) -> None:
    """The first refusal is due to the reader's own reports, the second to those of others."""
    reports = Reports(database, wait_s=0.05)
    async with reports.connection("many"):
        with pytest.raises(LimitReached, match="too many reports at once"):
            async with reports.connection("many"):
                pass
        async with reports.connection("another"):
            with pytest.raises(Overloaded) as refusal:
                async with reports.connection("a third"):
                    pass
    assert refusal.value.retry_after_s
    async with reports.connection("many") as connection:
        assert await connection.fetchval("SELECT 1") == 1


async def test_who_has_read_reports_for_too_long_waits_and_others_do_not(database: Database) -> None:
    now_s = 100.0
    reports = Reports(database, share=0.1, burst_s=2.0, clock=lambda: now_s)

    async def read(actor_id: str, seconds: float) -> None:
        nonlocal now_s
        async with reports.connection(actor_id):
            now_s += seconds

    await read("key_a", 1.5)
    await read("key_a", 1.0)
    with pytest.raises(LimitReached, match="too many requests for reports") as refusal:
        await read("key_a", 0.1)
    wait_s = refusal.value.retry_after_s
    assert wait_s is not None and 0 < wait_s <= (1.5 + 1.0 - 2.0) / 0.1
    await read("key_b", 0.1)
    now_s += wait_s
    await read("key_a", 0.1)


async def test_a_report_that_fails_gives_its_turn_back_and_is_charged(database: Database) -> None:
    now_s = 0.0
    reports = Reports(database, share=0.1, burst_s=1.0, clock=lambda: now_s)
    with pytest.raises(ZeroDivisionError):
        async with reports.connection("key_a"):
            now_s += 3.0
            raise ZeroDivisionError
    with pytest.raises(LimitReached):
        async with reports.connection("key_a"):
            pass
    async with reports.connection("key_b") as connection:
        assert await connection.fetchval("SELECT 1") == 1
