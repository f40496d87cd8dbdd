"""The number of replicas follows bursts, ramps, losses and slow loads without flapping and without much excess.

`make long-scaling` runs 100,000 seconds of two pools; the variable FIRST_SEED sets the seed to begin with.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np
import pytest

from gateway.domain.pools.scaling import (
    COOL_DOWN_S,
    DOWN_AFTER_S,
    LONGEST_WAIT_S,
    STEP_S,
    Bounds,
    Decision,
    Memory,
    PoolSnapshot,
    decide,
)
from tests.gateway.domain.pools.simulation.follower import REACTION_S, waits_s
from tests.gateway.domain.pools.simulation.oracle import Numbers, fewest, in_time, replica_seconds
from tests.gateway.domain.pools.simulation.run import simulate_site
from tests.gateway.domain.pools.simulation.site import Change, PoolRecord
from tests.seeds import seeds

CI_RUNS, FULL_RUNS = 3, 10
CI_STEPS, FULL_STEPS = 4_000, 10_000
MOST_OF_ORACLE = 1.3
MOST_LATE = 0.01
"""The largest allowed `excess_late_share`."""


def test_the_number_of_replicas_follows_the_load_within_bounds_of_cost_and_delay(full: bool) -> None:
    steps = FULL_STEPS if full else CI_STEPS
    for seed in seeds(CI_RUNS, FULL_RUNS, full=full):
        pools = simulate_site(seed, steps)
        for served in pools:
            assert opposite_changes(served.changes) == [], f"seed {seed}"
            assert excess_wait_s(served) <= 0, f"seed {seed}: a request waits more than a load time longer"
            assert excess_late_share(served) <= MOST_LATE, f"seed {seed}"
        ratio = ratio_to_oracle(pools)
        if full:
            print(f"seed {seed}: {ratio:.3f} of the oracle's replica-seconds", flush=True)
        assert ratio <= MOST_OF_ORACLE, f"seed {seed}"


def opposite_changes(changes: Sequence[Change]) -> list[tuple[Change, Change]]:
    """Return the pairs of changes in opposite directions within the cool-down, without those that are allowed.

    Bounds are kept at once, and the first replica of a pool that has none comes at once.
    """
    found = []
    for first, second in itertools.pairwise(changes):
        is_up, then_up = first.after > first.before, second.after > second.before
        pause_s = DOWN_AFTER_S if is_up else COOL_DOWN_S
        is_meant = first.is_bound or second.is_bound or second.before == 0
        if is_up != then_up and second.at_s - first.at_s < pause_s and not is_meant:
            found.append((first, second))
    return found


def ratio_to_oracle(pools: Sequence[PoolRecord]) -> float:
    """Return the ratio of pools' replica-seconds to the oracle's."""
    used = sum(second.num_engines for served in pools for second in served.seconds)
    return used / sum(replica_seconds(each) for each in pools)


def waits(served: PoolRecord) -> Iterator[tuple[float, float, int]]:
    """Yield each request's wait, its wait at an ideal follower, and an engine's load time, all in seconds.

    The follower (`waits_s`) is what the autoscaler is compared with. The load time is the longest during the wait.
    A request that waits at the end counts as served then.
    """
    end_s = len(served.seconds)
    load_s = [each.load_s for each in served.seconds]
    for request, there_s in zip(served.requests, waits_s(served), strict=True):
        left_s = end_s - request.came_at_s
        waited_s = left_s if request.waited_s is None else request.waited_s
        yield waited_s, min(there_s, left_s), max(load_s[request.came_at_s : request.came_at_s + waited_s + 1])


def excess_wait_s(served: PoolRecord) -> float:
    """Return how much longer a request waited, at most, than with the ideal follower plus a reaction and a load
    time."""
    return max((here_s - there_s - REACTION_S - load_s for here_s, there_s, load_s in waits(served)), default=0)


def excess_late_share(served: PoolRecord) -> float:
    """Return the share of requests that wait longer than `LONGEST_WAIT_S`, less the same share at an ideal follower."""
    late = [(here_s > LONGEST_WAIT_S) - (there_s > LONGEST_WAIT_S) for here_s, there_s, _ in waits(served)]
    return sum(late) / max(len(late), 1)


# The promises are such that other deciders break them.


def decide_doubling(bounds: Bounds, memory: Memory | None, snapshot: PoolSnapshot, now_s: float) -> Decision:
    """Decide for at most twice as many replicas, and only once the present ones are ready: a bad policy."""
    made = decide(bounds, memory, snapshot, now_s)
    number = snapshot.num_replicas
    if number < made.num_replicas and number >= bounds.min_replicas:
        limit = number if snapshot.num_ready < number else max(2 * number, 1)
        return msgspec.structs.replace(made, num_replicas=min(made.num_replicas, limit))
    return made


def decide_lavishly(bounds: Bounds, memory: Memory | None, snapshot: PoolSnapshot, now_s: float) -> Decision:
    """Decide as usual, but keep unneeded replicas for an hour: a bad policy."""
    return decide(msgspec.structs.replace(bounds, down_after_s=3600.0), memory, snapshot, now_s)


def decide_hastily(bounds: Bounds, memory: Memory | None, snapshot: PoolSnapshot, now_s: float) -> Decision:
    """Decide as usual, but remove unneeded replicas after half a minute: a bad policy."""
    return decide(msgspec.structs.replace(bounds, down_after_s=30.0), memory, snapshot, now_s)


@pytest.mark.parametrize(
    ("decider", "is_broken"),
    [
        (
            decide_doubling,
            lambda pools: max(map(excess_wait_s, pools)) > 0 or max(map(excess_late_share, pools)) > MOST_LATE,
        ),
        (decide_lavishly, lambda pools: ratio_to_oracle(pools) > MOST_OF_ORACLE),
        (decide_hastily, lambda pools: any(opposite_changes(each.changes) for each in pools)),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_decider_that_is_slow_lavish_or_hasty_is_found_out(
    decider: Callable[..., Decision], is_broken: Callable[[Sequence[PoolRecord]], bool]
) -> None:
    assert any(is_broken(simulate_site(seed, CI_STEPS, decider)) for seed in range(CI_RUNS))


# The oracle is the least of all plans: by trying them out.


def numbers(*each: int) -> Numbers:
    return np.array(each, dtype=np.int64)


def test_the_oracle_starts_a_replica_just_in_time() -> None:
    assert in_time(numbers(0, 0, 0, 2, 0, 1), [2] * 6).tolist() == [0, 2, 2, 2, 1, 1]
    assert in_time(numbers(0, 0, 0, 0, 1), [4, 3, 3, 1, 0]).tolist() == [0, 1, 1, 1, 1], (
        "the later starts come too late"
    )


def test_the_oracle_keeps_the_cool_down_and_goes_one_by_one() -> None:
    busy = np.repeat(numbers(1, 3, 1), [1000, 10, 1000])
    after_up, step = DOWN_AFTER_S, int(STEP_S)
    assert fewest(busy, 5) == 1000 + 3 * after_up + 2 * step + (1010 - after_up - step)
    assert fewest(np.repeat(numbers(2, 0, 2), [100, 20, 400]), 5) == 2 * 520, "it may not go for so short a time"
    assert fewest(np.repeat(numbers(0), 50), 5) == 0
