"""Adapters live on few replicas, hot ones spread, new replicas warm up, and an excluded replica gets nothing."""

from __future__ import annotations

import time
import tracemalloc
from collections import Counter
from itertools import pairwise

from gateway.domain.balancing.balancer import SLOW_START_S, Balancer
from gateway.domain.balancing.prefixes import prefix_keys
from gateway.domain.balancing.replica import Asked
from tests.gateway.domain.balancing.pools import CAPACITY, NOW_S, SLOTS, balancer_over, names, picture, send

ADAPTERS = [f"adapter-{number}" for number in range(10_000)]


def assigned_replicas(balancer: Balancer) -> dict[str, str | None]:
    """Return the replica that each adapter is assigned to while nothing runs and nothing is resident."""
    return {adapter: balancer.pick(Asked(adapter)) for adapter in ADAPTERS}


def test_a_new_replica_takes_over_at_most_two_of_64_parts_and_the_rest_stays() -> None:
    balancer = balancer_over(64)
    before = assigned_replicas(balancer)
    balancer.add("new")
    balancer.update(picture("new"), NOW_S)
    after = assigned_replicas(balancer)
    moved = [adapter for adapter in ADAPTERS if before[adapter] != after[adapter]]
    assert 0 < len(moved) <= len(ADAPTERS) * 2 / 64
    assert {after[adapter] for adapter in moved} == {"new"}


def test_a_lost_replica_moves_its_own_adapters_alone() -> None:
    balancer = balancer_over(64)
    before = assigned_replicas(balancer)
    balancer.remove("replica-7")
    after = assigned_replicas(balancer)
    moved = [adapter for adapter in ADAPTERS if before[adapter] != after[adapter]]
    assert 0 < len(moved) <= len(ADAPTERS) * 2 / 64
    assert {before[adapter] for adapter in moved} == {"replica-7"}


def test_adapters_spread_evenly_over_the_replicas() -> None:
    counts = Counter(assigned_replicas(balancer_over(64)).values())
    assert len(counts) == 64
    assert max(counts.values()) <= 1.35 * len(ADAPTERS) / 64


def test_weights_give_shares_of_the_adapters() -> None:
    balancer = Balancer()
    for name, weight in (("large", 3.0), ("small", 1.0)):
        balancer.add(name, weight)
        balancer.update(picture(name), NOW_S)
    counts = Counter(assigned_replicas(balancer).values())
    assert 0.72 <= counts["large"] / len(ADAPTERS) <= 0.78


def test_a_cold_adapter_lives_on_one_replica() -> None:
    balancer = balancer_over(16, running=10)
    asked = Asked("cold")
    assert len({send(balancer, asked) for _ in range(5)}) == 1


def test_a_hot_adapter_spreads_over_the_replicas_that_it_fills() -> None:
    balancer = balancer_over(16)
    placed = Counter(send(balancer, Asked("hot")) for _ in range(16 * 20))
    assert len(placed) >= 16 / 1.25
    assert max(placed.values()) <= 1.25 * 20 + 1


def test_few_requests_do_not_spread_over_an_idle_pool() -> None:
    balancer = balancer_over(16)
    assert len({send(balancer, Asked("only")) for _ in range(4)}) == 1


def test_a_replica_where_the_adapter_is_resident_goes_before_the_preferred_one() -> None:
    balancer = balancer_over(16, running=10)
    asked = Asked("moved")
    preferred = balancer.pick(asked)
    elsewhere = next(name for name in names(16) if name != preferred)
    balancer.update(picture(elsewhere, running=10, resident=frozenset({"moved"})), NOW_S)
    assert balancer.pick(asked) == elsewhere
    balancer.update(picture(elsewhere, running=10, waiting_adapters=frozenset({"moved"})), NOW_S)
    assert balancer.pick(asked) == elsewhere
    balancer.update(picture(elsewhere, running=10), NOW_S)
    assert balancer.pick(asked) == preferred, "it was evicted"


def test_an_overloaded_home_is_left_for_the_next_in_order() -> None:
    balancer = balancer_over(16, running=10)
    asked = Asked("adapter")
    home = balancer.pick(asked)
    assert home is not None
    balancer.update(picture(home, running=40, resident=frozenset({"adapter"})), NOW_S)
    assert balancer.pick(asked) not in (None, home)


def test_requests_sent_since_the_last_heartbeat_count_as_load() -> None:
    balancer = balancer_over(2)
    first = send(balancer, Asked("adapter", choices=60))
    assert balancer.loads()[first] == 60
    assert balancer.pick(Asked("adapter")) != first
    balancer.given(first, Asked("adapter", choices=60))
    assert balancer.loads() == dict.fromkeys(names(2), 0)


def test_other_gateways_are_assumed_to_send_as_many_requests() -> None:
    balancer = balancer_over(2)
    balancer.share_among(4)
    first = send(balancer, Asked("adapter"))
    assert balancer.loads()[first] == 4


def test_a_heartbeat_from_before_a_request_does_not_hide_it() -> None:
    balancer = balancer_over(2)
    first = send(balancer, Asked("adapter", choices=5))
    balancer.update(picture(first, running=0), NOW_S)
    assert balancer.loads()[first] == 5


def test_adapters_of_a_high_rank_weigh_more() -> None:
    assert Asked("a", rank=64).units == 2 * Asked("a").units
    balancer = balancer_over(2)
    balancer.update(picture("replica-0", running=10, rank=640), NOW_S)
    assert balancer.loads()["replica-0"] == 20


def test_new_adapters_avoid_a_replica_with_many_on_their_way() -> None:
    balancer = balancer_over(16, running=10)
    asked = Asked("new")
    home = balancer.pick(asked)
    assert home is not None
    coming = frozenset(f"other-{number}" for number in range(SLOTS // 8))
    balancer.update(picture(home, running=10, waiting_adapters=coming), NOW_S)
    assert balancer.pick(asked) not in (None, home)
    assert balancer.pick(Asked("other-0")) == home


def test_a_prompt_goes_where_the_cache_has_room_for_it() -> None:
    balancer = balancer_over(4, free_blocks=10)
    asked = Asked("adapter", prompt_tokens=100)
    first = send(balancer, asked)
    second = send(balancer, asked)
    assert second != first
    assert send(balancer, Asked("adapter", prompt_tokens=10_000)) in names(4), "none has room, and it is not refused"


def test_a_silent_replica_gets_nothing_until_it_is_heard_again() -> None:
    balancer = balancer_over(2)
    asked = Asked("adapter")
    home = balancer.pick(asked)
    assert home is not None
    other = next(name for name in names(2) if name != home)
    balancer.update(picture(home, silent=True), NOW_S)
    assert balancer.pick(asked) == other
    balancer.update(picture(other, silent=True), NOW_S)
    assert balancer.pick(asked) is None
    balancer.update(picture(home), NOW_S + 10)
    assert balancer.pick(asked) == home


def test_nothing_is_picked_before_a_first_picture_or_where_all_are_excluded() -> None:
    balancer = Balancer()
    assert balancer.pick(Asked()) is None
    balancer.add("replica-0")
    assert balancer.pick(Asked("adapter")) is None
    balancer.update(picture("replica-0"), NOW_S)
    for asked in (Asked(), Asked("adapter"), Asked(prefixes=(1,))):
        assert balancer.pick(asked) == "replica-0"
        assert balancer.pick(asked, frozenset({"replica-0"})) is None


def test_a_replica_added_anew_is_not_charged_for_the_one_before() -> None:
    balancer = balancer_over(1)
    send(balancer, Asked("adapter", choices=9))
    balancer.remove("replica-0")
    balancer.add("replica-0")
    balancer.update(picture("replica-0", running=2), NOW_S)
    balancer.given("replica-0", Asked("adapter", choices=9))
    assert balancer.loads() == {"replica-0": 2}


def test_a_starting_replica_takes_a_growing_part_of_the_adapters_and_never_gives_one_back() -> None:
    balancer = balancer_over(15)
    balancer.add("new")
    taken: list[set[str]] = []
    for age in (0.0, 0.3, 0.6, 1.0):
        now_s = NOW_S + age * SLOW_START_S
        for name in names(15):
            balancer.update(picture(name), now_s)
        balancer.update(picture("new", ready_since_s=NOW_S), now_s)
        taken.append({adapter for adapter, home in assigned_replicas(balancer).items() if home == "new"})
    assert [len(before - after) for before, after in pairwise(taken)] == [0, 0, 0]
    shares = [len(each) / len(taken[-1]) for each in taken]
    assert 0.05 < shares[0] < 0.15 and 0.2 < shares[1] < 0.4 and 0.5 < shares[2] < 0.7


def test_a_starting_replica_is_full_with_a_part_of_the_load() -> None:
    balancer = balancer_over(3)
    balancer.add("new")
    balancer.update(picture("new", ready_since_s=NOW_S), NOW_S)
    placed = Counter(send(balancer, Asked()) for _ in range(310))
    assert placed["new"] <= 20 and max(placed.values()) <= 130


def test_replicas_that_all_start_together_share_as_if_none_did() -> None:
    fresh, old = balancer_over(16, ready_since_s=NOW_S), balancer_over(16)
    assert assigned_replicas(fresh) == assigned_replicas(old)


def test_requests_for_the_base_spread_by_two_choices() -> None:
    balancer = balancer_over(64)
    placed = Counter(send(balancer, Asked()) for _ in range(64 * 20))
    assert len(placed) == 64
    assert max(placed.values()) - 20 <= 5


def test_a_conversation_returns_to_its_replica_and_another_gateway_finds_its_beginning() -> None:
    balancer, other = balancer_over(16, seed=1, running=10), balancer_over(16, seed=2, running=10)
    turns = list(range(40)), list(range(100)), list(range(300))
    placed = {send(balancer, Asked(prefixes=prefix_keys(turn, "tenant"))) for turn in turns}
    assert len(placed) == 1
    assert {send(other, Asked(prefixes=prefix_keys(turns[2], "tenant")))} == placed


def test_prompts_of_one_adapter_that_share_a_beginning_meet_on_one_of_its_replicas() -> None:
    everywhere = frozenset({"hot"})
    balancer = balancer_over(16, running=10, resident=everywhere)
    for topic in range(20):
        prompts = [[topic] * 64 + [turn] * 64 for turn in range(3)]
        placed = {balancer.pick(Asked("hot", prefixes=prefix_keys(prompt, "tenant"))) for prompt in prompts}
        assert len(placed) == 1
    assert len({balancer.pick(Asked("hot", prefixes=prefix_keys([topic] * 64, ""))) for topic in range(200)}) == 16


def test_few_replicas_take_no_more_memory_the_more_adapters_and_prompts_were_sent() -> None:
    balancer = balancer_over(2)

    def send_all(numbers: range) -> None:
        for number in numbers:
            for adapter in ("", f"adapter-{number}"):
                asked = Asked(adapter, prefixes=prefix_keys([number] * 100, adapter))
                balancer.given(send(balancer, asked), asked)
            for name in names(2):
                balancer.update(picture(name), NOW_S)

    tracemalloc.start()
    try:
        send_all(range(100))
        before, _ = tracemalloc.get_traced_memory()
        send_all(range(100, 5_100))
        assert tracemalloc.get_traced_memory()[0] - before < 64 << 10
    finally:
        tracemalloc.stop()


def test_a_beginning_gives_way_to_the_load() -> None:
    balancer = balancer_over(16, running=10)
    asked = Asked(prefixes=prefix_keys(range(100), "tenant"))
    home = send(balancer, asked)
    balancer.update(picture(home, running=60), NOW_S)
    assert balancer.pick(asked) not in (None, home)


def test_a_tenant_that_waits_spreads_although_others_fill_all_queues_alike() -> None:
    balancer = balancer_over(4, running=CAPACITY, waiting=10 * CAPACITY)
    placed = Counter(send(balancer, Asked("its adapter", tenant="victim")) for _ in range(4 * CAPACITY))
    assert len(placed) == 4
    assert max(placed.values()) <= 1.3 * CAPACITY
    alone = Counter(send(balancer_over(4, running=1), Asked("its adapter", tenant="victim")) for _ in range(1))
    assert len(alone) == 1


def test_a_tenant_that_fills_no_replica_stays_where_its_adapter_is() -> None:
    balancer = balancer_over(4, running=CAPACITY, waiting=10 * CAPACITY)
    assert len({send(balancer, Asked("its adapter", tenant="victim")) for _ in range(CAPACITY)}) == 1


def test_a_pick_among_64_replicas_takes_microseconds() -> None:
    balancer = balancer_over(64, running=20)
    asks = [Asked(adapter, 16, (), 100, 1, "tenant") for adapter in ADAPTERS[:2_000]]
    best_us = float("inf")
    for _ in range(5):
        start_ns = time.perf_counter_ns()
        for asked in asks:
            balancer.pick(asked)
        best_us = min(best_us, (time.perf_counter_ns() - start_ns) / 1e3 / len(asks))
    assert best_us <= 20
