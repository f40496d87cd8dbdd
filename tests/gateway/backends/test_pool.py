"""A pool's revision counts the requests and the service of its replicas, and drops a replica's counts with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from engine.protocol import EngineStats, Service
from gateway.backends.base import Capabilities, Health, Model
from gateway.backends.pool import ManagedBackend, Pool, PoolRevision, Replica
from gateway.backends.used import UsedAmounts
from gateway.backends.waiting_room import WaitingRoom, WaitTerms
from gateway.domain.balancing.replica import Asked
from gateway.domain.errors import Overloaded
from tests.patience import PATIENCE_S


class CountingBackend:
    """A fake backend that hands out the used amounts set by a test, and records reports of service by other
    replicas."""

    def __init__(self, *, is_ready: bool = True, max_model_len: int = 8) -> None:
        self.num_in_flight = 0
        self.used: list[UsedAmounts] = []
        self.services: list[dict[str, Service]] = []
        self.is_ready = is_ready
        self.capabilities = Capabilities(
            max_model_len=max_model_len,
            vocab_size=8,
            max_choices=1,
            max_in_flight=8,
            embedding_size=1,
            longest_token_bytes=1,
            max_running=4,
        )

    def health(self) -> Health:
        return Health(self.is_ready, "", EngineStats())

    def watch(self, changed: Callable[[], None], has_other: Callable[[], bool]) -> None:
        """Ignore the watcher, since this backend never changes."""

    @property
    def is_full(self) -> bool:
        return self.num_in_flight >= self.capabilities.max_in_flight

    def usual_ms(self) -> float | None:
        return None

    def take_used(self) -> list[UsedAmounts]:
        used, self.used = self.used, []
        return used

    def report_used(self, elsewhere: dict[str, Service]) -> None:
        self.services.append(elsewhere)


def replica(id: str, backend: CountingBackend) -> Replica:
    return Replica(id, cast("ManagedBackend", backend))


def revision(*backends: CountingBackend) -> PoolRevision:
    replicas = [replica(f"r{number}", each) for number, each in enumerate(backends)]
    return PoolRevision("tiny", cast("Model", None), replicas)


def test_service_of_a_lone_replica_is_not_reported_to_a_replica_added_later() -> None:
    alone, other = CountingBackend(), CountingBackend()
    pool = revision(alone)
    alone.used.append(UsedAmounts("t", 1.0, 3, 4, 0))
    pool.report_used()
    assert (alone.used, alone.services) == ([], [])
    pool.add(replica("r1", other))
    alone.used.append(UsedAmounts("t", 1.0, 1, 2, 0))
    pool.report_used()
    assert (alone.services, other.services) == ([], [{"t": Service(1.0, 2.0, 0.0)}])


def test_the_bounds_of_a_pool_are_those_of_a_ready_replica_if_there_is_one() -> None:
    assert (
        revision(CountingBackend(is_ready=False, max_model_len=99), CountingBackend()).capabilities.max_model_len == 8
    )
    assert revision(CountingBackend(is_ready=False, max_model_len=99)).capabilities.max_model_len == 99


def test_a_replica_whose_window_is_full_is_asked_only_where_all_are() -> None:
    full, roomy = CountingBackend(), CountingBackend()
    pool = revision(full, roomy)
    asked = Asked("adapter")
    first = pool.take(asked)
    other = next(each for each in pool if each is not first)
    cast("CountingBackend", first.backend).num_in_flight = 8
    assert pool.take(asked) is other, "although the adapter is at home on the first"
    cast("CountingBackend", other.backend).num_in_flight = 8
    assert pool.take(asked) in (first, other)


def test_a_pool_takes_what_its_ready_replicas_take_together() -> None:
    silent = CountingBackend(is_ready=False)
    pool = revision(CountingBackend(), CountingBackend(), silent)
    assert pool.max_in_flight == 16
    silent.is_ready = True
    last = pool.find("r2")
    assert last is not None
    pool.refresh(last)
    assert pool.max_in_flight == 24
    last.is_draining = True
    pool.refresh(last)
    assert pool.max_in_flight == 16
    pool.remove("r0")
    assert pool.max_in_flight == 8
    pool.remove("r1")
    assert pool.max_in_flight == 8, "one that drains still answers where there is no other"


def test_a_request_of_a_former_replica_does_not_change_the_counts_of_its_successor() -> None:
    pool = revision(CountingBackend(), CountingBackend())
    former = pool.find("r0")
    assert former is not None
    old, new = Asked("old", tenant="t"), Asked("new", tenant="t")
    pool._balancer.taken("r0", old)
    pool.remove("r0")
    pool.add(replica("r0", CountingBackend()))
    pool._balancer.taken("r0", new)
    pool.give(former, old)
    assert pool._balancer.loads()["r0"] == 1.0
    again = pool.find("r0")
    assert again is not None
    pool.give(again, new)
    assert pool._balancer.loads()["r0"] == 0.0


def test_a_request_that_goes_to_a_draining_replica_asks_for_a_new_replica() -> None:
    pool = revision(CountingBackend())
    [last] = pool
    pool.take(Asked(""))
    assert pool.room.num_wanted == 0
    last.is_draining = True
    pool.take(Asked(""))
    assert pool.room.num_wanted == 0, "none starts by itself"
    pool.room.open(WaitTerms(60.0, 10.0))
    assert pool.take(Asked("")) is last
    assert pool.room.num_wanted == 1


async def test_a_request_for_a_base_that_is_gone_holds_up_none_that_waits_for_the_next_one() -> None:
    def of(digest: str) -> PoolRevision:
        made = PoolRevision("tiny", cast("Model", None), base_digest=digest)
        made.room = room
        return made

    room = WaitingRoom("tiny")
    room.open(WaitTerms(60.0, 10.0))
    former, current = of("old"), of("new")
    pool = Pool("tiny", former, created=0)
    waiting = asyncio.create_task(former.warm("t"))
    await asyncio.sleep(0)
    assert room.num_waiting == 1
    pool.serve(current)
    current.add(replica("r0", CountingBackend()))
    async with asyncio.timeout(PATIENCE_S):
        await waiting
        await current.warm("t")
    with pytest.raises(Overloaded):
        former.take(Asked(""))
