"""Requests wait for a first replica in order, bounded in number and in time, and leave nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from gateway.backends.waiting_room import MAX_OF_TENANT, MAX_WAITING, WaitingRoom, WaitTerms
from gateway.domain.errors import ENGINE_UNAVAILABLE, NoReplicaYet

TERMS = WaitTerms(max_wait_s=60.0, start_s=12.0)


class Site:
    """A waiting room whose replica becomes ready when a test says so."""

    def __init__(self, terms: WaitTerms | None = TERMS) -> None:
        self.is_there, self.num_wanted = False, 0
        self.left: list[str] = []
        self.room = WaitingRoom("tiny", self._wanted)
        self.room.open(terms)

    def _wanted(self) -> None:
        self.num_wanted += 1

    async def start_waiting(self, *names: str, tenant: str = "proj_1") -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._wait(name, tenant)) for name in names]
        await asyncio.sleep(0)
        return tasks

    async def _wait(self, name: str, tenant: str) -> None:
        await self.room.wait(tenant, lambda: self.is_there)
        self.left.append(name)

    def make_replica_ready(self) -> None:
        self.is_there = True
        self.room.notify()


async def test_waiting_requests_go_on_in_order_and_ask_for_one_replica() -> None:
    site = Site()
    names = [str(number) for number in range(1000)]
    tasks = await site.start_waiting(*names)
    assert (site.room.num_waiting, site.num_wanted, site.left) == (1000, 1, [])
    site.make_replica_ready()
    await asyncio.gather(*tasks)
    assert site.left == names and site.room.num_waiting == 0


async def test_a_request_that_leaves_gives_its_place_back_and_holds_up_no_other() -> None:
    site = Site()
    first, second, third = await site.start_waiting("first", "second", "third")
    first.cancel()
    third.cancel()
    await asyncio.gather(first, third, return_exceptions=True)
    assert site.room.num_waiting == 1
    site.make_replica_ready()
    await second
    assert site.left == ["second"]


async def test_a_request_that_waited_too_long_is_told_when_to_come_again() -> None:
    site = Site(WaitTerms(max_wait_s=0.05, start_s=40.0))
    tasks = await site.start_waiting("a", "b")
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    for error in errors:
        assert isinstance(error, NoReplicaYet) and error.code == ENGINE_UNAVAILABLE and error.status == 503
        assert error.retry_after_s is not None and 30 < error.retry_after_s <= 40
        assert "'tiny'" in error.message and "0.05 s" in error.message
    assert site.room.num_waiting == 0


async def test_no_tenant_takes_all_places_and_no_more_wait_than_there_are() -> None:
    site = Site()
    names = [str(number) for number in range(MAX_OF_TENANT)]
    tasks = await site.start_waiting(*names)
    with pytest.raises(NoReplicaYet, match="too many"):
        await site.room.wait("proj_1", lambda: False)
    tasks += await site.start_waiting(*names[: MAX_WAITING - MAX_OF_TENANT], tenant="proj_2")
    with pytest.raises(NoReplicaYet, match="too many"):
        await site.room.wait("proj_3", lambda: False)
    assert site.room.num_waiting == MAX_WAITING
    site.make_replica_ready()
    await asyncio.gather(*tasks)


async def test_a_waiting_room_that_closes_lets_all_requests_go_on() -> None:
    site = Site()
    tasks = await site.start_waiting("a", "b")
    site.room.open(None)
    await asyncio.gather(*tasks)
    assert not site.room.is_open
    await site.room.wait("proj_1", lambda: False)


async def test_a_request_that_is_served_by_another_pool_asks_for_a_replica_too() -> None:
    site = Site()
    assert site.room.num_wanted == 0
    site.room.want()
    site.room.want()
    assert (site.room.num_wanted, site.num_wanted, site.room.num_waiting) == (1, 1, 0)


async def test_one_batch_line_at_a_time_asks_for_a_replica() -> None:
    site = Site()
    assert [site.room.take_line() for _ in range(3)] == [True, False, False]
