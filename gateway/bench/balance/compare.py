"""One row of the comparison: a policy over a run, the moves at a change of membership, and the time of a choice."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from gateway.bench.balance.model import Arrival, Policy, ReplicaSnapshot, Simulation, SimulationParameters, adapter_name
from gateway.bench.balance.policies import OurPolicy, PeerPolicy
from gateway.domain.balancing.replica import Asked, ReplicaLoad

NUM_TIMED = 20_000


class Row(msgspec.Struct, frozen=True):
    """Figures of one policy."""

    policy: str
    hit_rate: float
    """The share of requests that caused no load of an adapter."""
    ratio_to_static: float
    """The policy's hit rate, divided by the hit rate of the best static placement."""
    busiest: float
    """The largest number of requests at one replica over the time, divided by the mean number at a replica."""
    wait_ms_p50: float
    """The median milliseconds from arrival to the first step: for the adapter, and for a place in the batch."""
    wait_ms_p99: float
    """The milliseconds that 99 % of the requests waited at the most."""
    moved_by_one_more: float
    """The share of adapters that move to another replica when a replica joins."""
    moved_by_one_less: float
    """The share of adapters that move to another replica when a replica is lost."""
    pick_us_p50: float
    """The median microseconds of one choice of a replica."""
    pick_us_p99: float
    """The microseconds that 99 % of the choices took at the most."""


def compare(
    kind: type[OurPolicy | PeerPolicy], world: SimulationParameters, requests: Sequence[Arrival], static: float
) -> Row:
    """Run one policy over the requests, and return its row of figures.

    static: the hit rate of a fixed placement, for the row.
    """
    names = [f"replica-{number}" for number in range(world.replicas)]
    policies: list[Policy] = [kind(names, world.gateways, seed) for seed in range(world.gateways)]
    simulation = Simulation(world, policies)
    outcome = simulation.run(requests)
    p50_us, p99_us = _pick_times_us(policies[0], requests)
    more, less = _moved(kind, world, [replica.snapshot() for replica in simulation.replicas.values()])
    waits = outcome.waits_s
    return Row(
        policy=kind.name,
        hit_rate=outcome.hit_rate,
        ratio_to_static=outcome.hit_rate / static,
        busiest=outcome.busiest,
        wait_ms_p50=waits[len(waits) // 2] * 1e3,
        wait_ms_p99=waits[len(waits) * 99 // 100] * 1e3,
        moved_by_one_more=more,
        moved_by_one_less=less,
        pick_us_p50=p50_us,
        pick_us_p99=p99_us,
    )


def _pick_times_us(policy: Policy, requests: Sequence[Arrival]) -> tuple[float, float]:
    """Measure choices in the state at the end of the run; return the median and the 99th percentile in microseconds."""
    taken_ns = []
    for arrival in requests[-NUM_TIMED:]:
        asked = Asked(arrival.adapter)
        start_ns = time.perf_counter_ns()
        policy.pick(asked)
        taken_ns.append(time.perf_counter_ns() - start_ns)
    taken_ns.sort()
    return taken_ns[len(taken_ns) // 2] / 1e3, taken_ns[len(taken_ns) * 99 // 100] / 1e3


def _moved(
    kind: type[OurPolicy | PeerPolicy], world: SimulationParameters, snapshots: list[ReplicaSnapshot]
) -> tuple[float, float]:
    """Return the shares of adapters that move when an idle replica joins the pool, and when a replica is lost."""
    load = snapshots[0].load
    idle = ReplicaSnapshot(
        ReplicaLoad(
            id="new", capacity=load.capacity, adapter_slots=load.adapter_slots, ready_since_s=load.ready_since_s
        ),
        frozenset(),
        frozenset(),
    )
    before = _places(kind, world, snapshots)
    after = [_places(kind, world, [*snapshots, idle]), _places(kind, world, snapshots[1:])]
    more, less = (sum(a != b for a, b in zip(before, each, strict=True)) / world.adapters for each in after)
    return more, less


def _places(
    kind: type[OurPolicy | PeerPolicy], world: SimulationParameters, snapshots: list[ReplicaSnapshot]
) -> list[str]:
    """Return, for each adapter, the id of the replica to which a gateway would send the adapter's next request.

    snapshots: the replicas that the gateway knows.
    """
    policy = kind([snapshot.load.id for snapshot in snapshots], 1, 0)
    for snapshot in snapshots:
        policy.update(snapshot, 0.0)
    return [policy.pick(Asked(adapter_name(number))) for number in range(world.adapters)]
