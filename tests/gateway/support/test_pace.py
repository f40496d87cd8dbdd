"""Each tenant has a pace of its own, which its requests use up and time restores."""

from __future__ import annotations

import pytest

from gateway.domain.errors import LimitReached
from gateway.support.pace import Pace


def test_a_tenant_has_a_pace_of_its_own() -> None:
    now_s = 100.0
    pace = Pace(per_second=10, burst=3, what="tokenization", clock=lambda: now_s)
    for _ in range(3):
        pace.take("one")
    with pytest.raises(LimitReached) as refused:
        pace.take("one")
    assert refused.value.retry_after_s == pytest.approx(0.1)
    pace.take("other")
    now_s += 0.11
    pace.take("one")
    with pytest.raises(LimitReached):
        pace.take("one", 0.9)
    now_s += 10
    pace.take("one", 50.0)  # one that is large waits for no other, and makes others wait
    with pytest.raises(LimitReached):
        pace.take("one")


def test_a_request_in_parts_is_never_too_large_by_itself() -> None:
    now_s = 100.0
    pace = Pace(per_second=10, burst=3, what="a test", clock=lambda: now_s)
    count = pace.in_parts("one", most=8)
    for part in (2.0, 2.0, 2.0, 1.5):
        count(part)
    with pytest.raises(LimitReached):
        pace.take("one", 0.1)
    with pytest.raises(LimitReached):
        count(1.0)  # more than it may come to
    with pytest.raises(LimitReached):
        pace.in_parts("one", most=100)(0.1)  # which begins beyond the burst
    small = pace.in_parts("other", most=1)
    for _ in range(3):
        small(1.0)
    with pytest.raises(LimitReached):
        small(1.0)


def test_what_a_request_turned_out_to_cost_makes_the_next_ones_wait() -> None:
    now_s = 100.0
    pace = Pace(per_second=10, burst=3, what="a test", clock=lambda: now_s)
    pace.take("one")
    pace.charge("one", 7)
    with pytest.raises(LimitReached, match="for a test") as refused:
        pace.take("one")
    assert refused.value.retry_after_s == pytest.approx(0.6)
    pace.take("other")
    now_s += 0.61
    pace.take("one")
