"""Each request is counted in the metrics, and tenants cannot make the metrics grow without bound."""

from __future__ import annotations

import datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from engine.protocol import Usage
from gateway.db.ledger.usage import UsageEvent
from gateway.observability.request_metrics import MAX_TENANT_LABELS, OTHER_TENANTS, BatchHistogram, RequestMetrics

NOW = datetime.datetime.now(datetime.UTC)
USAGE = Usage(
    prompt_tokens=20,
    completion_tokens=5,
    cached_tokens=16,
    discarded_tokens=2,
    queue_ms=250,
    prefill_ms=20,
    decode_ms=400,
    adapter_wait_ms=100,
    draft_tokens=4,
    accepted_draft_tokens=3,
)
EVENT = UsageEvent(
    request_id="req_1",
    attempt=0,
    organization_id="org",
    project_id="proj_1",
    api_key_id="key",
    endpoint="/v1/completions",
    model="tiny:pirate",
    adapter_id="a",
    adapter_version=1,
    adapter_digest="d",
    stream=True,
    prompt_tokens=20,
    cached_tokens=16,
    completion_tokens=5,
    discarded_tokens=2,
    finish_reason="stop",
    queue_ms=250,
    prefill_ms=1,
    decode_ms=1,
    ttft_ms=300,
    latency_ms=700,
    adapter_load_bytes=0,
    created_at=NOW,
    finished_at=NOW,
)


def test_a_request_counts_by_phase_and_time_overall_and_for_its_tenant() -> None:
    registry = CollectorRegistry()
    RequestMetrics(registry).count([(EVENT, USAGE)])
    phases = {"prompt": 20, "cached": 16, "generation": 5, "discarded": 2, "draft": 4, "accepted": 3}
    for phase, expected in phases.items():
        overall, own = {"model_name": "tiny", "phase": phase}, {"tenant": "proj_1", "phase": phase}
        assert registry.get_sample_value("lorikeet_tokens_total", overall) == expected
        assert registry.get_sample_value("lorikeet_tenant_tokens_total", own) == expected
    model, tenant = {"model_name": "tiny"}, {"tenant": "proj_1"}
    sums = {
        ("vllm:time_to_first_token_seconds_sum", 0.3),
        ("vllm:e2e_request_latency_seconds_sum", 0.7),
        ("vllm:request_queue_time_seconds_sum", 0.25),
        ("vllm:request_prefill_time_seconds_sum", 0.02),
        ("vllm:request_decode_time_seconds_sum", 0.4),
        ("vllm:request_time_per_output_token_seconds_sum", 0.1),
        ("lorikeet_request_adapter_wait_seconds_sum", 0.1),
    }
    for name, expected in sums:
        assert registry.get_sample_value(name, model) == expected, name
    assert registry.get_sample_value("lorikeet_tenant_queue_seconds_total", tenant) == 0.25
    assert registry.get_sample_value("lorikeet_tenant_time_to_first_token_seconds_sum", tenant) == 0.3


def test_tenants_beyond_the_bound_share_a_label_and_nothing_is_lost() -> None:
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry)
    for number in range(MAX_TENANT_LABELS + 7):
        metrics.count([(msgspec.structs.replace(EVENT, project_id=f"proj_{number}"), USAGE)] * 2)
    values = {
        sample.labels["tenant"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "lorikeet_tenant_requests_total"
    }
    assert len(values) == MAX_TENANT_LABELS + 1
    assert values[OTHER_TENANTS] == 14
    assert sum(values.values()) == 2 * (MAX_TENANT_LABELS + 7)


@given(st.lists(st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0, 1.5, float("inf")]), max_size=20))
def test_values_that_are_counted_at_once_count_as_those_that_are_counted_one_by_one(values: list[float]) -> None:
    bounds = (0.1, 0.5, 1.0)
    together = BatchHistogram("seconds", "Of a batch.", ["name"], buckets=bounds, registry=None)
    single = Histogram("seconds", "Of a batch.", ["name"], buckets=bounds, registry=None)
    together.labels("a").observe_all(values)
    for value in values:
        single.labels("a").observe(value)
    single.labels("a")
    [found], [expected] = together.collect(), single.collect()
    for mine, theirs in zip(found.samples, expected.samples, strict=True):
        if not mine.name.endswith("_created"):
            assert (mine.name, mine.labels) == (theirs.name, theirs.labels)
            assert mine.value == pytest.approx(theirs.value)
