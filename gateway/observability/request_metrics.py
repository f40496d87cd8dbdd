"""Metrics of what requests used and how long they took, overall and by tenant; vLLM's names where vLLM has one.

Adapters are too many for a label. So are tenants: the first ones get a label of their own, the rest share one.
"""

from __future__ import annotations

import collections
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from operator import attrgetter

from prometheus_client import CollectorRegistry, Counter, Histogram

from engine.protocol import Usage
from gateway.db.ledger.usage import UsageEvent
from gateway.domain.billing.book import SHADOW_TIER

MAX_TENANT_LABELS = 100
OTHER_TENANTS = "other"

_FIRST_TOKEN_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40)
_LATENCY_BUCKETS_S = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 60, 120, 240, 480)
_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5)
_TENANT_BUCKETS_S = (0.01, 0.05, 0.1, 0.5, 1, 5, 20)


class TenantLabels:
    """Bounds the values of a label: only the first tenants get a label of their own, which they keep.

    Busy tenants come early, and a counter whose label changed would count backwards.
    """

    def __init__(self, max_labels: int = MAX_TENANT_LABELS) -> None:
        self._max_labels = max_labels
        self._own: set[str] = set()

    def label(self, tenant: str) -> str:
        """Return the label of a tenant: its own, as long as there is room for labels."""
        if len(self._own) < self._max_labels:
            self._own.add(tenant)
        return tenant if tenant in self._own else OTHER_TENANTS


class BatchHistogram(Histogram):
    """A histogram that counts many observations with one addition to each bucket."""

    def observe_all(self, values: Sequence[float]) -> None:
        """Count values, as `observe` counts each of them."""
        self._sum.inc(math.fsum(values))
        for place, number in collections.Counter(bisect_left(self._upper_bounds, value) for value in values).items():
            self._buckets[place].inc(number)


class _Histogram:
    """Gathers the observations of one batch of requests by the label's value, and counts them at once."""

    def __init__(self, metric: BatchHistogram) -> None:
        self._metric = metric
        self._children: dict[str, BatchHistogram] = {}
        self._values: dict[str, list[float]] = {}

    def observe(self, label: str, value: float) -> None:
        self._values.setdefault(label, []).append(value)

    def flush(self) -> None:
        for label, values in self._values.items():
            child = self._children.get(label)
            if child is None:
                child = self._children[label] = self._metric.labels(label)
            child.observe_all(values)
        self._values.clear()


class _Counter:
    """Adds up the counts of one batch of requests by the labels' values, and counts them at once.

    The children of the counter are held here, since finding one again in prometheus_client costs more than counting.
    """

    def __init__(self, metric: Counter) -> None:
        self._metric = metric
        self._children: dict[tuple[str, ...], Counter] = {}
        self._sums: dict[tuple[str, ...], float] = {}

    def add(self, amount: float, *labels: str) -> None:
        self._sums[labels] = self._sums.get(labels, 0.0) + amount

    def flush(self) -> None:
        for labels, amount in self._sums.items():
            child = self._children.get(labels)
            if child is None:
                child = self._children[labels] = self._metric.labels(*labels)
            child.inc(amount)
        self._sums.clear()


class _Phases:
    """Gathers the usages of one batch of requests by the label's value, and counts the tokens of each phase at once."""

    def __init__(self, metric: Counter) -> None:
        self._metric = metric
        self._children: dict[str, list[tuple[Counter, Callable[[Usage], int]]]] = {}
        self._usages: dict[str, list[Usage]] = {}

    def add(self, label: str, usage: Usage) -> None:
        self._usages.setdefault(label, []).append(usage)

    def flush(self) -> None:
        for label, usages in self._usages.items():
            children = self._children.get(label)
            if children is None:
                children = [(self._metric.labels(label, phase), tokens) for phase, tokens in _PHASES.items()]
                self._children[label] = children
            for child, tokens in children:
                child.inc(sum(map(tokens, usages)))
        self._usages.clear()


_PHASES: dict[str, Callable[[Usage], int]] = {
    "prompt": attrgetter("prompt_tokens"),
    "cached": attrgetter("cached_tokens"),
    "generation": attrgetter("completion_tokens"),
    "discarded": attrgetter("discarded_tokens"),
    "draft": attrgetter("draft_tokens"),
    "accepted": attrgetter("accepted_draft_tokens"),
}


class _Overall:
    """The metrics of requests by base model, for all tenants together."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.gathered: list[_Counter | _Histogram | _Phases] = []

        def counter(name: str, doc: str, *labels: str) -> _Counter:
            made = _Counter(Counter(name, doc, ["model_name", *labels], registry=registry))
            self.gathered.append(made)
            return made

        def histogram(name: str, doc: str, buckets: tuple[float, ...] = _LATENCY_BUCKETS_S) -> _Histogram:
            made = _Histogram(BatchHistogram(name, doc, ["model_name"], buckets=buckets, registry=registry))
            self.gathered.append(made)
            return made

        self._prompt_tokens = counter("vllm:prompt_tokens", "Prompt tokens of recorded requests.")
        self._generation_tokens = counter("vllm:generation_tokens", "Completion tokens of recorded requests.")
        self._success = counter(
            "vllm:request_success", "Recorded requests, by the reason for which the request ended.", "finished_reason"
        )
        self._tokens = _Phases(
            Counter(
                "lorikeet_tokens",
                "Tokens of recorded requests, by phase; cached tokens are prompt tokens too.",
                ["model_name", "phase"],
                registry=registry,
            )
        )
        self.gathered.append(self._tokens)
        self._first_token_s = histogram(
            "vllm:time_to_first_token_seconds",
            "Seconds from submitting a request to the first token.",
            _FIRST_TOKEN_BUCKETS_S,
        )
        self._latency_s = histogram(
            "vllm:e2e_request_latency_seconds", "Seconds from submitting a request to the last token."
        )
        self._per_token_s = histogram(
            "vllm:request_time_per_output_token_seconds",
            "Seconds per completion token after the first token, over all choices of a request.",
            _TOKEN_BUCKETS_S,
        )
        self._queue_s = histogram(
            "vllm:request_queue_time_seconds", "Seconds that a request waited in the engine's queue."
        )
        self._prefill_s = histogram(
            "vllm:request_prefill_time_seconds", "Seconds from the end of queueing to the first token."
        )
        self._decode_s = histogram("vllm:request_decode_time_seconds", "Seconds from the first token to the last.")
        self._adapter_wait_s = histogram(
            "lorikeet_request_adapter_wait_seconds",
            "Seconds of queueing that a request spent waiting only for an adapter to load.",
        )

    def count(self, event: UsageEvent, usage: Usage) -> None:
        base = event.model.partition(":")[0]
        self._prompt_tokens.add(usage.prompt_tokens, base)
        self._generation_tokens.add(usage.completion_tokens, base)
        self._success.add(1, base, event.finish_reason)
        self._tokens.add(base, usage)
        if event.service_tier == SHADOW_TIER:
            return  # nobody waits for a copy of a request
        self._queue_s.observe(base, usage.queue_ms / 1e3)
        self._prefill_s.observe(base, usage.prefill_ms / 1e3)
        self._decode_s.observe(base, usage.decode_ms / 1e3)
        if event.adapter_digest is not None:
            self._adapter_wait_s.observe(base, usage.adapter_wait_ms / 1e3)
        if event.latency_ms is not None:
            self._latency_s.observe(base, event.latency_ms / 1e3)
        if event.ttft_ms is not None:
            self._first_token_s.observe(base, event.ttft_ms / 1e3)
        if (per_token_s := _per_token_s(event, usage)) is not None:
            self._per_token_s.observe(base, per_token_s)


class _ByTenant:
    """The metrics of requests by tenant."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.gathered: list[_Counter | _Histogram | _Phases] = []

        def counter(name: str, doc: str, *labels: str) -> _Counter:
            made = _Counter(Counter(name, doc, ["tenant", *labels], registry=registry))
            self.gathered.append(made)
            return made

        def histogram(name: str, doc: str, buckets: tuple[float, ...]) -> _Histogram:
            made = _Histogram(BatchHistogram(name, doc, ["tenant"], buckets=buckets, registry=registry))
            self.gathered.append(made)
            return made

        self._labels = TenantLabels()
        self._requests = counter(
            "lorikeet_tenant_requests",
            "Recorded requests of a tenant, by the reason for which the request ended.",
            "finished_reason",
        )
        self._tokens = _Phases(
            Counter(
                "lorikeet_tenant_tokens",
                "Tokens of a tenant's recorded requests, by phase.",
                ["tenant", "phase"],
                registry=registry,
            )
        )
        self.gathered.append(self._tokens)
        self._queue_s = counter(
            "lorikeet_tenant_queue_seconds", "Seconds that a tenant's requests waited in the engine's queue."
        )
        self._adapter_wait_s = counter(
            "lorikeet_tenant_adapter_wait_seconds",
            "Seconds that a tenant's requests waited only for an adapter to load.",
        )
        self._first_token_s = histogram(
            "lorikeet_tenant_time_to_first_token_seconds",
            "Seconds from submitting a tenant's request to the first token.",
            _TENANT_BUCKETS_S,
        )
        self._per_token_s = histogram(
            "lorikeet_tenant_time_per_output_token_seconds",
            "Seconds per completion token after the first token, for a tenant's requests.",
            _TOKEN_BUCKETS_S[::3],
        )

    def count(self, event: UsageEvent, usage: Usage) -> None:
        tenant = self._labels.label(event.project_id)
        self._requests.add(1, tenant, event.finish_reason)
        self._tokens.add(tenant, usage)
        if event.service_tier == SHADOW_TIER:
            return  # nobody waits for a copy of a request
        self._queue_s.add(usage.queue_ms / 1e3, tenant)
        if event.adapter_digest is not None:
            self._adapter_wait_s.add(usage.adapter_wait_ms / 1e3, tenant)
        if event.ttft_ms is not None:
            self._first_token_s.observe(tenant, event.ttft_ms / 1e3)
        if (per_token_s := _per_token_s(event, usage)) is not None:
            self._per_token_s.observe(tenant, per_token_s)


class RequestMetrics:
    """Counters and histograms of one process. The label model_name is the base model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._views = (_Overall(registry), _ByTenant(registry))

    def count(self, requests: Sequence[tuple[UsageEvent, Usage]]) -> None:
        """Count requests whose usage is in the ledger now."""
        for view in self._views:
            for event, usage in requests:
                view.count(event, usage)
            for metric in view.gathered:
                metric.flush()


def _per_token_s(event: UsageEvent, usage: Usage) -> float | None:
    """Return the seconds per token after the first; None where there is no such token."""
    if event.ttft_ms is None or event.latency_ms is None or usage.completion_tokens <= 1:
        return None
    return (event.latency_ms - event.ttft_ms) / 1e3 / (usage.completion_tokens - 1)
