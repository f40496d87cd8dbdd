"""Each replica gets the service of all others, once, and none of its own."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import Service
from gateway.domain.balancing.service import MAX_TENANTS, PoolService

REPLICAS = ["a", "b", "c"]
uses = st.lists(
    st.tuples(st.sampled_from(REPLICAS), st.sampled_from("xyz"), st.sampled_from([0.5, 1.0, 4.0]), st.integers(0, 1000))
    | st.none(),
    max_size=40,
)


@given(uses=uses)
def test_a_replica_is_told_once_of_the_service_by_other_replicas(
    uses: list[tuple[str, str, float, int] | None],
) -> None:
    service = PoolService()
    told: dict[tuple[str, str], float] = defaultdict(float)
    expected: dict[tuple[str, str], float] = defaultdict(float)
    for use in [*uses, None]:
        if use is None:  # a heartbeat
            for replica, services in service.elsewhere(REPLICAS).items():
                for tenant, used in services.items():
                    told[replica, tenant] += used.completion_tokens
            continue
        replica, tenant, weight, tokens = use
        service.used(replica, tenant, weight, completion_tokens=tokens)
        for other in REPLICAS:
            if other != replica and tokens:
                expected[other, tenant] += tokens / weight
    assert dict(told) == pytest.approx(dict(expected))


def test_amounts_are_kept_apart_and_divided_by_the_weight() -> None:
    service = PoolService()
    service.used("a", "t", 2.0, prompt_tokens=10, completion_tokens=20, adapter_bytes=30)
    assert service.elsewhere(REPLICAS) == {"b": {"t": Service(5.0, 10.0, 15.0)}, "c": {"t": Service(5.0, 10.0, 15.0)}}
    assert service.elsewhere(REPLICAS) == {}


def test_service_by_a_replica_that_has_left_still_counts() -> None:
    service = PoolService()
    service.used("gone", "t", 1.0, completion_tokens=5)
    assert service.elsewhere(["a"]) == {"a": {"t": Service(0.0, 5.0, 0.0)}}


def test_a_heartbeat_tells_of_the_tenants_that_used_the_most() -> None:
    service = PoolService()
    for number in range(MAX_TENANTS + 10):
        service.used("a", f"t{number}", 1.0, completion_tokens=number + 1)
    told = service.elsewhere(REPLICAS)["b"]
    assert len(told) == MAX_TENANTS
    assert "t9" not in told and "t10" in told
