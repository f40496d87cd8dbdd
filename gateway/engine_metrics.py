"""The engines' own numbers as Prometheus metrics, as of their last heartbeat; vLLM's names where vLLM has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.protocol import EngineStats, TenantStats
from gateway.backends.pool import Pool

Family = type[CounterMetricFamily] | type[GaugeMetricFamily]


class _Number(msgspec.Struct, frozen=True):
    """One metric of an engine, with the labels model_name and engine."""

    family: Family
    name: str
    doc: str
    value: Callable[[EngineStats], float]


class _TenantNumber(msgspec.Struct, frozen=True):
    """One gauge of each of the engine's busiest tenants, with the label tenant besides."""

    name: str
    doc: str
    value: Callable[[TenantStats], float]


_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily

_NUMBERS = (
    _Number(_GAUGE, "vllm:num_requests_running", "Sequences in the batch.", lambda s: s.num_running),
    _Number(_GAUGE, "vllm:num_requests_waiting", "Requests that wait.", lambda s: s.num_waiting),
    _Number(
        _GAUGE,
        "vllm:kv_cache_usage_perc",
        "KV cache in use; 1 is all of it.",
        lambda s: s.kv_blocks_used / max(1, s.kv_blocks_total),
    ),
    _Number(_COUNTER, "vllm:num_preemptions", "Preemptions.", lambda s: s.preemptions_total),
    _Number(
        _COUNTER,
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda s: s.prefix_query_tokens_total,
    ),
    _Number(
        _COUNTER,
        "vllm:prefix_cache_hits",
        "Prompt tokens found in the prefix cache.",
        lambda s: s.prefix_hit_tokens_total,
    ),
    _Number(_COUNTER, "vllm:spec_decode_num_draft_tokens", "Tokens drafted.", lambda s: s.draft_tokens_total),
    _Number(
        _COUNTER,
        "vllm:spec_decode_num_accepted_tokens",
        "Drafted tokens that became part of a completion.",
        lambda s: s.accepted_draft_tokens_total,
    ),
    _Number(_COUNTER, "lorikeet_engine_steps", "Steps computed.", lambda s: s.steps_total),
    _Number(_GAUGE, "lorikeet_adapter_slots_used", "Adapters on the device.", lambda s: s.adapter_slots_used),
    _Number(_GAUGE, "lorikeet_adapter_slots", "Adapters the device has room for.", lambda s: s.adapter_slots_total),
    _Number(_COUNTER, "lorikeet_adapter_loads", "Adapters brought onto the device.", lambda s: s.adapter_loads_total),
    _Number(_COUNTER, "lorikeet_adapter_load_bytes", "Their bytes.", lambda s: s.adapter_load_bytes_total),
    _Number(_COUNTER, "lorikeet_adapter_load_seconds", "Their time.", lambda s: s.adapter_load_seconds_total),
    _Number(
        _COUNTER, "lorikeet_adapter_evictions", "Adapters taken off the device.", lambda s: s.adapter_evictions_total
    ),
    _Number(_GAUGE, "lorikeet_usage_unacknowledged", "Usage no gateway has recorded.", lambda s: s.unacked_usage),
    _Number(_COUNTER, "lorikeet_usage_dropped", "Usage the engine could not keep.", lambda s: s.dropped_usage_total),
)

_TENANT_NUMBERS = (
    _TenantNumber("lorikeet_tenant_requests_running", "A tenant's sequences in the batch.", lambda t: t.num_running),
    _TenantNumber("lorikeet_tenant_requests_waiting", "A tenant's requests that wait.", lambda t: t.num_waiting),
    _TenantNumber("lorikeet_tenant_service", "A tenant's virtual token counter.", lambda t: t.service),
)


class EngineCollector(Collector):
    """Asks the pools at each scrape. An engine names its busiest tenants alone, which bounds the tenant label."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = pools

    def collect(self) -> Iterable[Metric]:
        labels = ["model_name", "engine"]
        up = GaugeMetricFamily("lorikeet_engine_up", "Whether the engine is ready.", labels=labels)
        families = [number.family(number.name, number.doc, labels=labels) for number in _NUMBERS]
        by_tenant = [GaugeMetricFamily(n.name, n.doc, labels=[*labels, "tenant"]) for n in _TENANT_NUMBERS]
        for pool in self._pools:
            for index, backend in enumerate(pool.backends):
                health, key = backend.health(), [pool.name, str(index)]
                up.add_metric(key, float(health.ready))
                if health.stats is None:
                    continue
                for number, family in zip(_NUMBERS, families, strict=True):
                    family.add_metric(key, number.value(health.stats))
                for tenant, stats in health.stats.tenants.items():
                    for each, gauge in zip(_TENANT_NUMBERS, by_tenant, strict=True):
                        gauge.add_metric([*key, tenant], each.value(stats))
        return [up, *families, *by_tenant]
