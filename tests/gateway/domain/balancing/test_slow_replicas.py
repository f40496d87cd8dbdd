"""A pool of a fast and a slow replica in simulated time: how few requests the slow one gets, whatever the gateway does.

The simulation has the clock; the balancer and the times of answers are the gateway's own.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter

import msgspec
import pytest

from gateway.backends.pool import PACE_S
from gateway.domain.balancing.answer_times import AnswerTimes, capacity_factors
from gateway.domain.balancing.replica import Asked
from tests.gateway.domain.balancing.pools import balancer_over, names, send

FAST, SLOW = names(2)
TIMES_SLOWER = 5.0
PROMISED = 0.1
"""The largest share of requests that a replica five times slower may get."""


CLIENT_S = 0.001
"""Seconds between a client's answer and its next request."""


class RunningRequest(msgspec.Struct, frozen=True):
    """A request that runs at a replica."""

    replica: str
    began_s: float


def share_of_slow(
    num_clients: int, usual_s: float, pauses: list[tuple[float, float]], *, seed: int, until_s: float = 30.0
) -> float:
    """Return the slow replica's share of requests from the tenth second on; each client asks again after each answer.

    usual_s: the time that the fast replica takes.
    pauses: the beginnings and ends of times in which the gateway does nothing, so that events meanwhile are seen when a
    pause ends.
    """
    draw, balancer, asked = random.Random(seed), balancer_over(2, seed=seed, adapter_slots=0), Asked()
    times = {name: AnswerTimes() for name in (FAST, SLOW)}
    sent, counts, numbers, paced_s = set[RunningRequest](), Counter[str](), itertools.count(), -PACE_S
    coming: list[tuple[float, int, RunningRequest | None]] = []  # answers, and requests of clients

    def comes(at_s: float, what: RunningRequest | None) -> None:
        for begin_s, end_s in pauses:
            at_s = end_s if begin_s <= at_s < end_s else at_s
        heapq.heappush(coming, (at_s, next(numbers), what))

    for _ in range(num_clients):
        comes(draw.uniform(0.0, usual_s), None)
    while coming[0][0] < until_s:
        now_s, _, answered = heapq.heappop(coming)
        if answered is not None:
            times[answered.replica].answered(now_s, (now_s - answered.began_s) * 1e3, 0.0)
            balancer.given(answered.replica, asked)
            sent.discard(answered)
            comes(now_s + CLIENT_S, None)
            continue
        if now_s - paced_s >= PACE_S:
            waits_ms = {
                name: [(paced_s - each.began_s) * 1e3 for each in sent if each.replica == name] for name in times
            }
            usual = {name: times[name].usual_ms(now_s, [ms for ms in waits_ms[name] if ms > 0]) for name in times}
            balancer.pace(capacity_factors(usual))
            paced_s = now_s
        picked = RunningRequest(send(balancer, asked), now_s + next(numbers) * 1e-9)  # each is another one
        sent.add(picked)
        counts[picked.replica] += now_s > 10.0
        took_s = usual_s * draw.uniform(0.95, 1.05) * (TIMES_SLOWER if picked.replica == SLOW else 1.0)
        comes(now_s + took_s, picked)
    return counts[SLOW] / counts.total()


@pytest.mark.parametrize("num_clients", [2, 10, 24, 60])
@pytest.mark.parametrize("pause_s", [0.0, 0.5])
def test_a_slow_replica_gets_few_requests_though_the_gateway_stands_still_at_times(
    num_clients: int, pause_s: float
) -> None:
    """Pauses come at random, one in a second; a fast answer takes 150 ms."""
    for seed in range(3):
        draw, begins_s, pauses = random.Random(seed), 0.0, list[tuple[float, float]]()
        while pause_s and begins_s < 30.0:
            begins_s += draw.expovariate(1.0)
            pauses.append((begins_s, begins_s + pause_s))
        assert share_of_slow(num_clients, 0.15, pauses, seed=seed) <= PROMISED / 2


@pytest.mark.parametrize("usual_s", [0.5, 2.0, 4.0])
def test_a_replica_is_found_slow_before_its_first_answers_where_those_take_long(usual_s: float) -> None:
    for seed in range(3):
        assert share_of_slow(24, usual_s, [], seed=seed) <= 0.02
