"""Samplers choose the same requests as OpenTelemetry's samplers of the same names."""

from __future__ import annotations

import random
from typing import get_args

import pytest

from gateway.domain.tracing.parent import Parent
from gateway.domain.tracing.sampler import OF_PARENT, Sampler, SamplerName

TRACES = [f"{random.Random(seed).getrandbits(128):032x}" for seed in range(4000)]


@pytest.mark.parametrize("name", get_args(SamplerName))
def test_a_parent_decides_where_the_name_says_so(name: SamplerName) -> None:
    sampler = Sampler(name, 0.25)
    for is_sampled in (True, False):
        chosen = {sampler.takes(each, Parent(each, "1" * 16, is_sampled)) for each in TRACES}
        if name.startswith(OF_PARENT):
            assert chosen == {is_sampled}
        else:
            assert chosen == {sampler.takes(each, None) for each in TRACES}


@pytest.mark.parametrize(("name", "share"), [("always_on", 1), ("always_off", 0), ("traceidratio", 0.25)])
def test_a_share_of_requests_without_a_parent_is_traced(name: SamplerName, share: float) -> None:
    sampler, of_parents = Sampler(name, 0.25), Sampler(f"{OF_PARENT}{name}", 0.25)  # type: ignore[arg-type]
    chosen = [sampler.takes(each, None) for each in TRACES]
    assert sum(chosen) / len(TRACES) == pytest.approx(share, abs=0.03)
    assert chosen == [of_parents.takes(each, None) for each in TRACES]


def test_a_request_traced_at_a_small_ratio_is_traced_at_a_larger_one() -> None:
    small, large = Sampler("traceidratio", 0.1), Sampler("traceidratio", 0.5)
    assert all(large.takes(each, None) for each in TRACES if small.takes(each, None))
    for ratio in (0.0, 1.0):
        assert {Sampler("traceidratio", ratio).takes(each, None) for each in (*TRACES, "f" * 32)} == {bool(ratio)}
