"""What a request adds to the metrics, and that tenants cannot make them grow without bound."""

from __future__ import annotations

import datetime

import msgspec
from prometheus_client import CollectorRegistry

from engine.protocol import EngineStats, TenantStats, Usage
from gateway.backends.base import Health
from gateway.db.usage import UsageEvent
from gateway.engine_metrics import EngineCollector
from gateway.request_metrics import MAX_TENANT_LABELS, OTHER_TENANTS, RequestMetrics

NOW = datetime.datetime.now(datetime.UTC)
USAGE = Usage(
    prompt_tokens=20,
    completion_tokens=5,
    cached_tokens=16,
    discarded_tokens=2,
    queue_ms=250,
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
    RequestMetrics(registry).count(EVENT, USAGE)
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
        for _ in range(2):
            metrics.count(msgspec.structs.replace(EVENT, project_id=f"proj_{number}"), USAGE)
    values = {
        sample.labels["tenant"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "lorikeet_tenant_requests_total"
    }
    assert len(values) == MAX_TENANT_LABELS + 1
    assert values[OTHER_TENANTS] == 14
    assert sum(values.values()) == 2 * (MAX_TENANT_LABELS + 7)


class OneEngine:
    """A pool of one engine whose last heartbeat is known."""

    name = "tiny"

    def __init__(self, stats: EngineStats | None) -> None:
        self.backends = [self]
        self._stats = stats

    def health(self) -> Health:
        return Health(self._stats is not None, "", self._stats)


def test_an_engines_numbers_are_those_of_its_last_heartbeat() -> None:
    registry = CollectorRegistry()
    stats = EngineStats(
        kv_blocks_used=3, kv_blocks_total=12, prefix_hit_tokens_total=48, tenants={"t": TenantStats(2, 1, 7.5)}
    )
    registry.register(EngineCollector([OneEngine(stats)]))
    engine = {"model_name": "tiny", "engine": "0"}
    assert registry.get_sample_value("vllm:kv_cache_usage_perc", engine) == 0.25
    assert registry.get_sample_value("vllm:prefix_cache_hits_total", engine) == 48
    assert registry.get_sample_value("lorikeet_tenant_service", {**engine, "tenant": "t"}) == 7.5


def test_an_engine_that_is_away_has_no_numbers_but_that() -> None:
    registry = CollectorRegistry()
    registry.register(EngineCollector([OneEngine(None)]))
    assert [sample.value for metric in registry.collect() for sample in metric.samples] == [0.0]
