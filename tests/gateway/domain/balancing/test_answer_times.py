"""A replica that answers more slowly than others gets fewer requests, until its times are too old to count."""

from __future__ import annotations

from collections import Counter

import pytest

from gateway.domain.balancing.answer_times import (
    APART_S,
    FORGET_S,
    LEAST_PACE,
    MIN_SAMPLES,
    NOISE_MS,
    AnswerTimes,
    capacity_factors,
)
from gateway.domain.balancing.balancer import Balancer
from gateway.domain.balancing.replica import Asked
from tests.gateway.domain.balancing.pools import balancer_over, send


def times(*first_ms: float, token_ms: float = 0.0) -> AnswerTimes:
    """Return answer times with recorded times to the first token.

    first_ms: the milliseconds of each answer, recorded APART_S apart, the last one at 0 s. token_ms: milliseconds
    for each further token.
    """
    made = AnswerTimes()
    for number, each in enumerate(first_ms, 1 - len(first_ms)):
        made.answered(number * APART_S, each, token_ms)
    return made


def test_a_usual_time_is_a_median_of_a_few_answers_that_were_seen_lately() -> None:
    assert times(*[50.0] * (MIN_SAMPLES - 1)).usual_ms(0.0) is None
    assert times(50.0, 60.0, 9000.0).usual_ms(0.0) == 60.0, "one that stalls changes nothing"
    assert times(50.0, 50.0, 50.0, token_ms=2.0).usual_ms(0.0) == 50.0 + 32 * 2.0
    assert times(50.0, 50.0, 50.0).usual_ms(FORGET_S) is None


def test_an_abandoned_wait_counts_if_it_was_longer_than_usual() -> None:
    usual = times(50.0, 50.0, 50.0)
    for number in range(9):
        usual.waited(number * APART_S, 5.0)
    assert usual.usual_ms(9 * APART_S) == 50.0, "a client that leaves early says nothing"
    for number in range(10, 19):
        usual.waited(number * APART_S, 400.0)
    assert usual.usual_ms(19 * APART_S) == 400.0
    unknown = AnswerTimes()
    unknown.waited(0.0, 400.0)
    assert unknown.usual_ms(0.0) is None


def test_answers_of_one_moment_count_as_one() -> None:
    """After a gateway was frozen, it sees the answers of all running requests late at one moment."""
    usual = times(*[50.0] * 9)
    for _ in range(24):
        usual.answered(APART_S, 550.0, 0.0)
    assert usual.usual_ms(APART_S) == 50.0


def test_requests_that_wait_longer_than_usual_count_before_they_are_answered() -> None:
    usual = times(*[50.0] * 9)
    assert usual.usual_ms(0.0, [40.0] * 20) == 50.0
    assert usual.usual_ms(0.0, [40.0] * 20 + [900.0] * 5) == 50.0, "a few that stall change nothing"
    assert usual.usual_ms(0.0, [600.0, 800.0] * 10) > 400.0
    assert AnswerTimes().usual_ms(0.0, [2_000.0] * (MIN_SAMPLES - 1)) is None
    assert AnswerTimes().usual_ms(0.0, [2_000.0] * MIN_SAMPLES) == 2_000.0, "the least that its answers take"


def test_parts_fall_with_the_square_of_the_time() -> None:
    assert capacity_factors({"a": None, "b": None}) == {"a": 1.0, "b": 1.0}
    assert capacity_factors({"a": 100.0, "b": None, "c": 120.0}) == {"a": 1.0, "b": 1.0, "c": 1.0}
    found = capacity_factors({"a": 90.0 - NOISE_MS, "b": 5 * 90.0 - NOISE_MS, "c": 1e9})
    assert found == {"a": 1.0, "b": pytest.approx(1 / 16), "c": LEAST_PACE}
    assert min(capacity_factors({"a": 0.1, "b": 2.0}).values()) == 1.0, "a difference of a few milliseconds is noise"


@pytest.mark.parametrize("kind", ["base", "adapters"])
@pytest.mark.parametrize("num_at_once", [1, 8, 40])
def test_a_replica_that_is_five_times_slower_gets_few_requests(kind: str, num_at_once: int) -> None:
    """A request of the slow replica runs five times as long as one of another replica."""
    balancer = balancer_over(2)
    slow = sorted(balancer.loads())[0]
    balancer.pace({slow: 1 / 16})
    counts = requests_by_replica(balancer, slow, kind, num_at_once)
    assert counts[slow] <= 0.1 * counts.total(), counts
    counts = requests_by_replica(balancer_over(2), slow, kind, num_at_once)
    assert counts[slow] > 0.1 * counts.total(), "by their number alone it would get more"


def requests_by_replica(balancer: Balancer, slow: str, kind: str, num_at_once: int) -> Counter[str]:
    """Return the number of requests that each replica got of 2,000, of which `num_at_once` run at one time."""
    counts, running = Counter[str](), list[tuple[float, str, Asked]]()
    now_s = 0.0
    for number in range(2_000):
        asked = Asked(f"adapter-{number % 50}" if kind == "adapters" else "")
        while len(running) >= num_at_once:
            running.sort(key=lambda each: each[0])
            now_s, replica, ended = running.pop(0)
            balancer.given(replica, ended)
        picked = send(balancer, asked)
        assert picked is not None
        running.append((now_s + (5.0 if picked == slow else 1.0), picked, asked))
        counts[picked] += 1
    for _, replica, ended in running:
        balancer.given(replica, ended)
    return counts
