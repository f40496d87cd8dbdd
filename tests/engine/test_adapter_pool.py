"""More adapters than slots: nobody waits forever, nothing is loaded for nothing, and what fails fails alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from adapters.errors import AdapterRejected
from engine.adapter_pool import PATIENCE_S, AdapterPool
from engine.layers.lora import LoadedAdapter
from tests.engine.test_scheduler_state_machine import LoadsAtOnce


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def load(digest: str) -> LoadedAdapter:
    if digest.startswith("bad"):
        raise AdapterRejected([f"{digest} does not fit"])
    if digest.startswith("broken"):
        raise OSError("/a/path/that/is/nobody's/business")
    return LoadedAdapter(digest, {}, num_bytes=10)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make(clock: Clock) -> Callable[[int], AdapterPool]:
    return lambda slots: AdapterPool(load, slots, wake=lambda: None, clock=clock, executor=LoadsAtOnce())


def test_each_of_many_waiting_adapters_is_loaded_once_in_order_of_asking(make: Callable[[int], AdapterPool]) -> None:
    pool = make(1)
    waiting = [f"a{i}" for i in range(12)]
    served = []
    for _ in range(100):
        pool.arrivals()
        for digest in list(waiting):
            slot = pool.acquire(digest)
            if slot is not None:
                served.append(digest)
                waiting.remove(digest)
                pool.release(slot)
    assert served == [f"a{i}" for i in range(12)]
    assert pool.num_loads == 12


def test_a_cold_adapter_gets_a_slot_although_a_hot_one_never_rests(
    make: Callable[[int], AdapterPool], clock: Clock
) -> None:
    pool = make(1)
    pool.preload("hot")
    users = [pool.acquire("hot")]
    for _ in range(100):
        clock.now_s += 0.1
        pool.arrivals()
        if (slot := pool.acquire("cold")) is not None:
            break
        successor = pool.acquire("hot")  # before the last user leaves
        for user in users:
            assert user is not None
            pool.release(user)
        users = [successor] if successor is not None else []
    assert slot is not None
    assert clock.now_s <= PATIENCE_S + 1


def test_no_more_adapters_are_held_than_there_are_slots(make: Callable[[int], AdapterPool]) -> None:
    pool = make(3)
    for i in range(10):
        pool.request(f"a{i}")
    pool.arrivals()
    assert (pool.resident, pool.num_loads) == (["a0", "a1", "a2"], 3)
    pool.withdraw("a1")
    pool.request("a9")
    pool.arrivals()
    assert pool.resident == ["a0", "a2", "a3"]


def test_an_adapter_in_use_leaves_with_its_last_user_and_takes_no_new_one(make: Callable[[int], AdapterPool]) -> None:
    pool = make(2)
    pool.preload("a")
    slot = pool.acquire("a")
    assert slot is not None
    assert pool.unload("a") is False
    assert pool.acquire("a") is None
    pool.release(slot)
    assert pool.arrivals()[0].digest == "a"  # asked for again above
    pool.check_integrity(num_users=0)


@pytest.mark.parametrize(("digest", "code"), [("bad", "adapter_rejected"), ("broken", "internal")])
def test_a_load_that_fails_gives_its_reason_and_its_slot_back(
    make: Callable[[int], AdapterPool], digest: str, code: str
) -> None:
    pool = make(1)
    assert pool.acquire(digest) is None
    (arrival,) = pool.arrivals()
    assert arrival.error is not None and arrival.error.code == code
    assert "path" not in arrival.error.message
    pool.preload("good")
    assert pool.resident == ["good"]
