"""A tenant's weight holds over the pool: shown with the engine's real scheduler on each replica, in virtual time."""

from __future__ import annotations

import functools
import random

import pytest

from engine.scheduling.fairness import DECODE_COST, QUANTUM_TOKENS
from tests.engine.scheduling.fairness_simulator import TOKEN_BYTES, percentile
from tests.gateway.domain.balancing.fair_pool import PLACES, FairPool

NUM_REPLICAS = 4
NUM_STEPS, WARM_UP = 1_500, 300
NUM_WORKLOADS, NUM_WORKLOADS_FULL = 20, 400
QUIET = 2 * PLACES * NUM_REPLICAS
"""The number of requests that the victim keeps running: its share of the pool, and as many that wait."""


def share_of_victim(
    pool: FairPool, num_victim: int, num_noisy: int, weight: float = 1.0, num_steps: int = NUM_STEPS
) -> float:
    """Run a tenant with one adapter, the victim, beside a noisy tenant with 20; return the victim's share of service.

    num_victim, num_noisy: the number of requests that each tenant has under way. weight: the victim's weight. The share
    counts from the end of the warm-up.
    """
    chance = random.Random(0)
    victim = noisy = 0.0
    for step in range(num_steps):
        for tenant, num in (("noisy", num_noisy), ("victim", num_victim)):
            for _ in range(num - pool.outstanding(tenant)):
                adapter = "victim's" if tenant == "victim" else f"noisy's {chance.randrange(20)}"
                size = chance.randint(20, 100), chance.randint(10, 30)
                pool.send(tenant, *size, adapter, weight if tenant == "victim" else 1.0)
        if step == WARM_UP:
            victim, noisy = pool.service("victim"), pool.service("noisy")
            for replica in pool.replicas.values():
                replica.ttfts.clear()
        pool.step()
    victim, noisy = pool.service("victim") - victim, pool.service("noisy") - noisy
    return victim / (victim + noisy)


@functools.cache
def share_beside_many(weight: float) -> tuple[float, FairPool]:
    """Run a tenant beside one with a hundred times as many requests; return the first tenant's share, and the pool."""
    pool = FairPool(NUM_REPLICAS)
    return share_of_victim(pool, QUIET, 100 * QUIET, weight), pool


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_tenant_gets_its_weight_of_the_pool_beside_a_hundred_times_as_many_requests(weight: float) -> None:
    share, _ = share_beside_many(weight)
    assert share == pytest.approx(weight / (1 + weight), rel=0.1)


def test_replicas_that_know_nothing_of_each_other_would_give_half_of_one_replica() -> None:
    alone = share_of_victim(FairPool(NUM_REPLICAS, tells=False, spreads=False), QUIET, 100 * QUIET)
    assert alone == pytest.approx(1 / 8, rel=0.1)


@pytest.mark.parametrize(("tells", "expected"), [(True, 1 / 2), (False, 1 / 4)])
def test_a_tenant_on_two_of_four_replicas_gets_its_half_of_the_pool_there(tells: bool, expected: float) -> None:
    """Counted over the pool, the tenant gets both replicas; counted by each replica, both tenants would share them
    equally."""
    pool = FairPool(NUM_REPLICAS, tells=tells)
    chance = random.Random(0)
    for _ in range(NUM_STEPS):
        for name, replica in pool.replicas.items():
            for tenant in ("noisy", "victim") if name in ("replica-0", "replica-1") else ("noisy",):
                while replica.outstanding[tenant] < 3 * PLACES:
                    pool.send_to(name, tenant, chance.randint(20, 100), chance.randint(10, 30))
        pool.step()
    share = pool.service("victim") / (pool.service("victim") + pool.service("noisy"))
    assert share == pytest.approx(expected, rel=0.1)


def test_the_wait_for_the_first_token_is_as_short_as_beside_a_tenant_with_equal_load() -> None:
    _, beside_noise = share_beside_many(1.0)
    beside_equal = FairPool(NUM_REPLICAS)
    share_of_victim(beside_equal, QUIET, QUIET)
    noisy, equal = (percentile(pool.ttfts("victim"), 0.99) for pool in (beside_noise, beside_equal))
    assert noisy <= 1.5 * equal


def test_a_tenant_that_its_replica_can_serve_gets_all_it_asks_for_and_stays_there() -> None:
    """The tenant asks for half of one of four replicas, an eighth of the pool, though its weight would allow a half."""
    pool = FairPool(NUM_REPLICAS)
    share = share_of_victim(pool, PLACES // 2, 100 * QUIET)
    places = {name for name, replica in pool.replicas.items() if replica.service["victim"]}
    assert len(places) == 1
    assert share == pytest.approx(1 / 8, rel=0.15)


def spread_and_bound(seed: int) -> tuple[float, float, float]:
    """Run a random workload of two tenants of equal weight that wait on all replicas throughout.

    Returns the largest difference of the tenants' service from the pool over any interval, the bound that
    `engine.scheduling.fairness` states for that difference, and all service.
    """
    chance = random.Random(seed)
    load_bytes = chance.choice((0, 500, 2_000))
    longest, most_output = chance.choice((32, 100)), chance.choice((4, 16, 40))
    places, num_replicas = chance.randint(2, 4), chance.randint(2, 4)
    pool = FairPool(num_replicas, max_num_seqs=places, num_blocks=chance.choice((40, 200)), load_bytes=load_bytes)
    sizes = {"f": (chance.randint(1, longest), most_output), "g": (longest, chance.randint(1, most_output))}
    lowest = highest = untold = 0.0
    for _ in range(400):
        for name, replica in pool.replicas.items():
            for tenant, (prompt, output) in sizes.items():
                while replica.outstanding[tenant] < places + chance.choice((2, 10)):
                    adapter = f"{tenant}-{chance.randint(0, 9)}" if load_bytes and chance.random() < 0.3 else ""
                    pool.send_to(name, tenant, chance.randint(1, prompt), chance.randint(1, output), adapter)
        pool.step()
        difference = pool.service("f") - pool.service("g")
        lowest, highest = min(lowest, difference), max(highest, difference)
        untold = max(untold, pool.untold("f"), pool.untold("g"))
    most_running = max(replica.most_running for replica in pool.replicas.values())
    running = max(longest, DECODE_COST * most_running) + (num_replicas - 1) * DECODE_COST * most_running
    bound = 2 * (running + load_bytes / TOKEN_BYTES + QUANTUM_TOKENS + untold)
    return highest - lowest, bound, pool.service("f") + pool.service("g")


def test_service_from_the_pool_differs_by_at_most_the_stated_bound(full: bool) -> None:
    total = total_bound = 0.0
    for seed in range(NUM_WORKLOADS_FULL if full else NUM_WORKLOADS):
        spread, bound, service = spread_and_bound(seed)
        assert spread <= bound, f"workload {seed}"
        total, total_bound = total + service, total_bound + bound
    assert total > 2 * total_bound, "the bound says nothing about runs this short"
