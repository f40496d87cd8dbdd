"""More adapters than slots: no request waits forever, no adapter is loaded needlessly, and a failed load fails
alone."""

from __future__ import annotations

import math
import random
import weakref
from collections.abc import Callable

import msgspec
import pytest
import torch

from adapters.errors import AdapterDamaged, AdapterRejected, StoreFailure
from engine.lora.layer import LoadedAdapter
from engine.lora.pool import NOT_LOADED, PATIENCE_S, AdapterPool
from engine.lora.slots import RECENT_S
from tests.engine.lora.loading import LoadsAtOnce, LoadsWhenTold


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def load(digest: str) -> LoadedAdapter:
    if digest.startswith("bad"):
        raise AdapterRejected([f"{digest} does not fit"])
    if digest == "away":
        raise StoreFailure("no path leads to s3://a-bucket")
    if digest == "damaged":
        raise AdapterDamaged(digest, "has changed")
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


def test_waiting_adapters_are_those_that_load_and_then_those_in_line(make: Callable[[int], AdapterPool]) -> None:
    pool = make(1)
    for key in ("z", "b", "a"):
        pool.request(key)
    assert pool.waiting == ["z", "b", "a"] and pool.num_waiting == 3
    pool.arrivals()
    assert pool.waiting == ["b", "a"] and pool.resident == ["z"]


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
    assert pool.arrivals()[0].key == "a"  # asked for again above
    pool.check_integrity(num_users=0)


@pytest.mark.parametrize(
    ("digest", "code"),
    [("bad", "adapter_rejected"), ("broken", "internal"), ("away", "internal"), ("damaged", "internal")],
)
def test_a_load_that_fails_gives_its_reason_and_its_slot_back(
    make: Callable[[int], AdapterPool], digest: str, code: str
) -> None:
    pool = make(1)
    assert pool.acquire(digest) is None
    (arrival,) = pool.arrivals()
    assert arrival.error is not None and arrival.error.code == code
    assert "path" not in arrival.error.message
    assert (arrival.error.message == NOT_LOADED) == (code == "internal"), "the store and the content are not named"
    pool.preload("good")
    assert pool.resident == ["good"]


def test_pins_are_kept_and_fill_at_most_half_of_the_slots(make: Callable[[int], AdapterPool], clock: Clock) -> None:
    pool = make(4)
    for digest in ("pinned 0", "pinned 1", "one too many"):
        pool.pin(digest)
        pool.arrivals()
        pool.withdraw(digest)
    for i in range(8):
        clock.now_s += 1
        pool.preload(f"a{i}")
    assert pool.resident == ["a6", "a7", "pinned 0", "pinned 1"]
    assert (pool.slots.num_used, len(pool.slots), pool.num_loads, pool.slots.num_evictions) == (4, 4, 11, 7)
    pool.unload("pinned 0")
    assert not pool.is_resident("pinned 0")
    pool.unpin("pinned 1")
    assert pool.is_resident("pinned 1"), "until its slot is needed"
    for i in range(4):
        clock.now_s += 1
        pool.preload(f"b{i}")
    assert pool.resident == ["b0", "b1", "b2", "b3"]


def test_the_wait_for_a_slot_is_bounded_with_many_more_adapters_than_slots(clock: Clock) -> None:
    """32 streams over 64 adapters share 16 slots: no wait exceeds the bound in the module's docstring, in the test's
    own time."""
    num_streams, num_adapters, num_slots = 32, 64, 16
    longest_s, load_s = 3.0, 0.05  # that a stream holds a slot; of a load, one in each step
    loads = LoadsWhenTold()
    pool = AdapterPool(load, num_slots, wake=lambda: None, clock=clock, executor=loads)
    rnd = random.Random(0)
    wanted = [f"a{rnd.randrange(num_adapters)}" for _ in range(num_streams)]
    since_s, until_s = [0.0] * num_streams, [0.0] * num_streams
    slots: list[int | None] = [None] * num_streams
    waits_s = []
    while clock.now_s < 300:
        clock.now_s += load_s
        if loads.submitted:
            loads.run_next()
        pool.arrivals()
        for i in range(num_streams):
            slot = slots[i]
            if slot is not None and clock.now_s >= until_s[i]:
                pool.release(slot)
                wanted[i], slots[i], since_s[i] = f"a{rnd.randrange(num_adapters)}", None, clock.now_s
            elif slot is None and (slot := pool.acquire(wanted[i])) is not None:
                waits_s.append(clock.now_s - since_s[i])
                slots[i], until_s[i] = slot, clock.now_s + rnd.uniform(0.5, longest_s)
    steps_s = 3 * load_s  # a wish, a load's end and a slot's each show one step later
    bound_s = PATIENCE_S + math.ceil(num_streams / num_slots) * longest_s + num_streams * load_s + steps_s
    assert len(waits_s) > 1000
    assert max(waits_s + [clock.now_s - since_s[i] for i in range(num_streams) if slots[i] is None]) <= bound_s


def test_batch_work_waits_behind_others_and_takes_no_slot_that_they_used_of_late(
    make: Callable[[int], AdapterPool], clock: Clock
) -> None:
    pool = make(2)
    for key in ("a", "b"):
        pool.preload(key)
        slot = pool.acquire(key)
        assert slot is not None
        pool.release(slot)
    clock.now_s += RECENT_S - 1
    assert pool.acquire("bulk", for_batch=True) is None
    assert pool.arrivals() == [] and pool.waiting == ["bulk"] and pool.resident == ["a", "b"]
    slot = pool.acquire("b")
    assert slot is not None
    pool.release(slot)
    clock.now_s += 2
    pool.request("c")  # evicts the least recent, before which batch work has no turn
    assert [arrival.key for arrival in pool.arrivals()] == ["c"] and pool.resident == ["b", "c"]
    clock.now_s += RECENT_S + 1
    pool.withdraw("c")
    assert [arrival.key for arrival in pool.arrivals()] == [] and "bulk" in pool.waiting
    assert [arrival.key for arrival in pool.arrivals()] == ["bulk"]
    assert len(pool.resident) == 2
    pool.check_integrity(num_users=0)


def test_a_slot_that_batch_work_alone_uses_is_wanted_back_at_once(
    make: Callable[[int], AdapterPool], clock: Clock
) -> None:
    pool = make(2)
    slots = {}
    for key in ("bulk", "shared"):
        assert pool.acquire(key, for_batch=True) is None
        pool.arrivals()
        slots[key] = pool.acquire(key, for_batch=True)
    used = pool.acquire("shared")
    assert used == slots["shared"] is not None and slots["bulk"] is not None
    assert pool.acquire("c") is None
    assert pool.is_reclaimed(slots["bulk"]) and not pool.is_reclaimed(slots["shared"])
    pool.release(slots["bulk"], for_batch=True)
    assert [arrival.key for arrival in pool.arrivals()] == ["c"]
    assert pool.acquire("bulk", for_batch=True) is None, "it comes back when there is a slot for it"
    pool.release(slots["shared"], for_batch=True)
    pool.release(used)
    pool.check_integrity(num_users=0)


@pytest.mark.parametrize("in_use", [True, False], ids=["released", "unloaded"])
def test_what_left_its_slot_holds_no_memory_when_the_next_is_copied(in_use: bool, clock: Clock) -> None:
    """There are two slots, and memory on the device for one adapter."""
    copied: list[weakref.ref[torch.Tensor]] = []
    alive: list[int] = []

    def to_device(adapter: LoadedAdapter) -> LoadedAdapter:
        alive.append(sum(weights() is not None for weights in copied))
        weights = torch.empty(4)
        copied.append(weakref.ref(weights))
        return msgspec.structs.replace(adapter, weights=weights)

    pool = AdapterPool(
        load, 2, wake=lambda: None, max_bytes=10, to_device=to_device, clock=clock, executor=LoadsAtOnce()
    )
    pool.preload("first")
    slot = pool.acquire("first") if in_use else pool.pin("first")
    pool.request("next")
    pool.arrivals()
    assert pool.unload("first") is not in_use
    if slot is not None and in_use:
        pool.release(slot)
    pool.arrivals()
    assert pool.is_resident("next") and alive == [0, 0]
