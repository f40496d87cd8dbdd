"""The engines' own numbers as Prometheus metrics, as of their last heartbeat; vLLM's names where vLLM has one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.protocol import STEP_BUCKETS_S, EngineStats, TenantStats
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


def _gauge(name: str, doc: str, value: Callable[[EngineStats], float]) -> _Number:
    return _Number(GaugeMetricFamily, name, doc, value)


def _counter(name: str, doc: str, value: Callable[[EngineStats], float]) -> _Number:
    """The exposition adds `_total` to the name."""
    return _Number(CounterMetricFamily, name, doc, value)


_NUMBERS = (
    _gauge("vllm:num_requests_running", "Choices in the batch.", lambda s: s.num_running),
    _gauge("vllm:num_requests_waiting", "Choices that wait.", lambda s: s.num_waiting),
    _gauge(
        "vllm:kv_cache_usage_perc",
        "KV cache in use; 1 is all of it.",
        lambda s: s.kv_blocks_used / max(1, s.kv_blocks_total),
    ),
    _counter("vllm:num_preemptions", "Preemptions.", lambda s: s.preemptions_total),
    _counter(
        "vllm:prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda s: s.prefix_query_tokens_total,
    ),
    _counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.", lambda s: s.prefix_hit_tokens_total),
    _counter("vllm:spec_decode_num_draft_tokens", "Tokens drafted.", lambda s: s.draft_tokens_total),
    _counter(
        "vllm:spec_decode_num_accepted_tokens",
        "Drafted tokens that became part of a completion.",
        lambda s: s.accepted_draft_tokens_total,
    ),
    _counter(
        "lorikeet_engine_prompt_tokens",
        "Prompt tokens computed, those computed again after a preemption included.",
        lambda s: s.prompt_tokens_total,
    ),
    _counter("lorikeet_engine_generation_tokens", "Tokens generated.", lambda s: s.generation_tokens_total),
    _gauge("lorikeet_adapter_slots_used", "Adapters on the device.", lambda s: s.adapter_slots_used),
    _gauge("lorikeet_adapter_slots", "Adapters the device has room for.", lambda s: s.adapter_slots_total),
    _gauge("lorikeet_adapter_used_bytes", "Device memory that adapters take.", lambda s: s.adapter_bytes_used),
    _gauge("lorikeet_adapter_limit_bytes", "Device memory that they may take.", lambda s: s.adapter_bytes_total),
    _gauge("lorikeet_adapter_host_bytes", "Adapters in host memory.", lambda s: s.adapter_host_bytes),
    _gauge("lorikeet_adapters_waiting", "Adapters in line for a slot, or loading.", lambda s: s.adapters_waiting),
    _counter("lorikeet_adapter_loads", "Adapters brought onto the device.", lambda s: s.adapter_loads_total),
    _counter("lorikeet_adapter_load_bytes", "Their bytes.", lambda s: s.adapter_load_bytes_total),
    _counter(
        "lorikeet_adapter_load_seconds", "Time of all loads, failed ones too.", lambda s: s.adapter_load_seconds_total
    ),
    _counter(
        "lorikeet_adapter_host_hits",
        "Loads that found it in host memory.",
        lambda s: s.adapter_host_hits_total,
    ),
    _counter("lorikeet_adapter_evictions", "Adapters that gave way to others.", lambda s: s.adapter_evictions_total),
    _gauge("lorikeet_grammars_compiling", "Requests that wait for their grammar.", lambda s: s.grammars_compiling),
    _counter("lorikeet_grammars_compiled", "Requests that got their grammar.", lambda s: s.grammars_compiled_total),
    _counter(
        "lorikeet_grammars_refused", "Requests whose grammar can't be enforced.", lambda s: s.grammars_refused_total
    ),
    _counter("lorikeet_grammar_wait_seconds", "How long both waited.", lambda s: s.grammar_wait_seconds_total),
    _gauge("lorikeet_usage_unacknowledged", "Usage no gateway has recorded.", lambda s: s.unacked_usage),
    _counter(
        "lorikeet_engine_ended_prompt_tokens",
        "Prompt tokens of requests that have ended.",
        lambda s: s.ended_prompt_tokens_total,
    ),
    _counter(
        "lorikeet_engine_ended_completion_tokens",
        "Completion tokens of requests that have ended, discarded ones too.",
        lambda s: s.ended_completion_tokens_total,
    ),
    _counter("lorikeet_usage_dropped", "Usage the engine could not keep.", lambda s: s.dropped_usage_total),
)

_TENANT_NUMBERS = (
    _TenantNumber("lorikeet_tenant_requests_running", "A tenant's choices in the batch.", lambda t: t.num_running),
    _TenantNumber("lorikeet_tenant_requests_waiting", "A tenant's choices that wait.", lambda t: t.num_waiting),
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
        steps = HistogramMetricFamily(
            "lorikeet_engine_step_seconds",
            "Time of a step: what a choice that decodes waits for its next token.",
            labels=labels,
        )
        for pool in self._pools:
            for index, backend in enumerate(pool.backends):
                health, key = backend.health(), [pool.name, str(index)]
                up.add_metric(key, float(health.ready))
                if health.stats is None:
                    continue
                for number, family in zip(_NUMBERS, families, strict=True):
                    family.add_metric(key, number.value(health.stats))
                steps.add_metric(key, _cumulative(health.stats.step_counts), health.stats.step_seconds_total)
                for tenant, stats in health.stats.tenants.items():
                    for each, gauge in zip(_TENANT_NUMBERS, by_tenant, strict=True):
                        gauge.add_metric([*key, tenant], each.value(stats))
        return [up, *families, steps, *by_tenant]


def _cumulative(step_counts: Sequence[int]) -> list[tuple[str, float]]:
    """As Prometheus has buckets: each counts those below it, too."""
    bounds = [*(str(bound) for bound in STEP_BUCKETS_S), "+Inf"]
    counts = step_counts or [0] * len(bounds)
    return list(zip(bounds, accumulate(counts), strict=True))
