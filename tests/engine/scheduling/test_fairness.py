"""Tenants get their shares whatever the others send (Sheng et al., OSDI 2024), shown in virtual time."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from engine.protocol import Service
from engine.scheduling.fairness import MAX_REMEMBERED, QUANTUM_TOKENS, ServiceCounters
from tests.engine.scheduling.fairness_simulator import TOKEN_BYTES, Simulator, percentile

NUM_WORKLOADS, NUM_WORKLOADS_FULL = 120, 1_000
NUM_STEPS = 120


def spread_and_bound(seed: int) -> tuple[float, float, float]:
    """Run a random workload of backlogged tenants of equal weight, whose requests differ in size and number.

    Returns the largest difference of service between two tenants over any interval, the bound that
    `engine.scheduling.fairness` states for that difference, and the service of all tenants.
    """
    chance = random.Random(seed)
    load_bytes = chance.choice((0, 500, 2000))
    longest, most_output = chance.choice((32, 100, 250)), chance.choice((4, 16, 40))
    simulator = Simulator(
        num_blocks=chance.choice((20, 40, 200)),  # blocks of 16 tokens: little memory makes preemptions
        max_num_seqs=chance.randint(2, 6),
        max_batched_tokens=chance.choice((32, 64, 256)),
        load_bytes=load_bytes,
        ahead=bool(seed % 2),
    )
    tenants = {
        f"t{i}": (chance.randint(1, longest), chance.randint(1, most_output), chance.choice((2, 20)))
        for i in range(chance.randint(2, 4))
    }
    lowest = dict.fromkeys(itertools.combinations(tenants, 2), 0.0)
    highest = dict(lowest)
    for _ in range(NUM_STEPS):
        for tenant, (prompt, output, eagerness) in tenants.items():
            while simulator.outstanding[tenant] < 7 + eagerness:  # more than can run: always one that waits
                adapter = f"{tenant}-{chance.randint(0, 9)}" if load_bytes and chance.random() < 0.3 else ""
                simulator.send(tenant, chance.randint(1, prompt), chance.randint(1, output), adapter)
        simulator.step()
        for a, b in lowest:
            difference = simulator.service[a] - simulator.service[b]
            lowest[a, b], highest[a, b] = min(lowest[a, b], difference), max(highest[a, b], difference)
    bound = 2 * (max(longest, 2 * simulator.most_running) + load_bytes / TOKEN_BYTES + QUANTUM_TOKENS)
    return max(highest[pair] - lowest[pair] for pair in lowest), bound, sum(simulator.service.values())


def test_service_of_backlogged_tenants_differs_by_at_most_the_stated_bound(full: bool) -> None:
    total = total_bound = 0.0
    for seed in range(NUM_WORKLOADS_FULL if full else NUM_WORKLOADS):
        spread, bound, service = spread_and_bound(seed)
        assert spread <= bound, f"workload {seed}"
        total, total_bound = total + service, total_bound + bound
    assert total > 2 * total_bound, "the bound says nothing about runs this short"


def test_under_saturation_service_follows_the_weights() -> None:
    simulator = Simulator(num_blocks=400, max_num_seqs=8, max_batched_tokens=128)
    for _ in range(3_000):
        for tenant, weight in (("gold", 3.0), ("plain", 1.0)):
            while simulator.outstanding[tenant] < 16:
                simulator.send(tenant, 60, 20, weight=weight)
        simulator.step()
    assert simulator.service["gold"] / simulator.service["plain"] == pytest.approx(3.0, rel=0.1)


def quiet_ttft_p99(num_other: int) -> float:
    """Return a tenant's 99th percentile of steps to the first token.

    The tenant keeps 10 requests outstanding beside another tenant that keeps num_other.
    """
    simulator = Simulator(num_blocks=400, max_num_seqs=8, max_batched_tokens=128)
    chance = random.Random(0)
    for _ in range(3_000):
        for tenant, outstanding in (("other", num_other), ("quiet", 10)):
            while simulator.outstanding[tenant] < outstanding:
                simulator.send(tenant, chance.randint(20, 100), chance.randint(10, 30))
        simulator.step()
    return percentile(simulator.ttfts["quiet"][20:], 0.99)


def test_a_tenant_that_sends_a_hundred_times_as_much_does_not_slow_a_quiet_one() -> None:
    assert quiet_ttft_p99(num_other=1_000) <= 1.5 * quiet_ttft_p99(num_other=10)


def test_a_tenant_that_returns_from_idle_has_no_credit_and_keeps_its_debt() -> None:
    counters = ServiceCounters()
    for tenant in ("steady", "greedy"):
        counters.arrive(tenant)
    counters.admit("steady", 0.0, 100.0)
    counters.admit("greedy", 100.0, 900.0)
    counters.leave("greedy")
    counters.arrive("greedy")
    counters.lift("greedy", ["steady"])
    assert counters.service_of("greedy") == 900.0
    counters.arrive("newcomer")
    counters.lift("newcomer", ["steady", "greedy"])
    assert counters.service_of("newcomer") == 100.0


def test_service_of_other_replicas_counts_for_tenants_that_are_known_here() -> None:
    counters = ServiceCounters()
    counters.arrive("known")
    for cost in (100.0, 0.0, -50.0, math.nan, math.inf):
        counters.charge_elsewhere("known", cost)
        counters.charge_elsewhere("stranger", cost)
    assert counters.service_of("known") == 100.0
    assert len(counters) == 1


def test_a_tenant_that_is_served_elsewhere_comes_after_one_that_is_not() -> None:
    simulator = Simulator(num_blocks=400, max_num_seqs=8, max_batched_tokens=128)
    for step in range(1_000):
        for tenant in ("here", "everywhere"):
            while simulator.outstanding[tenant] < 16:
                simulator.send(tenant, 60, 20)
        if step % 20 == 0:
            used = Service(prompt_tokens=10.0, completion_tokens=20.0, adapter_bytes=10.0 * TOKEN_BYTES)
            simulator.scheduler.count_elsewhere({"everywhere": used, "unknown": used})
        simulator.step()
    told = 50 * (10 + 2 * 20 + 10)
    assert simulator.service["here"] - simulator.service["everywhere"] == pytest.approx(told, abs=1_500)


def test_idle_tenants_are_forgotten() -> None:
    counters = ServiceCounters()
    for i in range(5 * MAX_REMEMBERED):
        counters.arrive(f"t{i}")
        counters.admit(f"t{i}", 0.0, 1.0 + i)
        counters.leave(f"t{i}")
        assert len(counters) <= MAX_REMEMBERED + 1
    counters.arrive("last")
    counters.admit("last", 1e9, 0.0)
    counters.leave("last")
    assert len(counters) <= MAX_REMEMBERED + 1
