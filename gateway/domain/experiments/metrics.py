"""The built-in metrics, which the ledger alone gives, and the parsing of a metric's name."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import msgspec


class Metric(msgspec.Struct, frozen=True):
    """The way in which a metric is computed from sums."""

    better: Literal["increase", "decrease"]
    per_request: bool = False
    """True if the metric is a ratio over the unit's requests: y is a sum over the requests, d is their number."""
    has_quantiles: bool = False
    is_error: bool = False
    """True if units with at least one such request are counted, and compared by an exact test (`counts`) that holds
    however the rate changes over the day."""
    needs_equal_weights: bool = False
    """True if the metric is lower where the cache of prompts is warmer, as it is for an arm with more requests."""


METRICS: dict[str, Metric] = {
    "cost_nanos": Metric("decrease"),
    "prompt_tokens": Metric("decrease"),
    "completion_tokens": Metric("decrease", per_request=True),
    "ttft_ms": Metric("decrease", per_request=True, has_quantiles=True, needs_equal_weights=True),
    "time_per_token_ms": Metric("decrease", per_request=True, has_quantiles=True),
    "queue_ms": Metric("decrease", per_request=True, has_quantiles=True),
    "engine_ms": Metric("decrease", per_request=True, has_quantiles=True, needs_equal_weights=True),
    "error_rate": Metric("decrease", is_error=True),
    "refusal_rate": Metric("decrease", is_error=True),
    "length_rate": Metric("decrease", per_request=True),
    "answer_rate": Metric("increase"),
}
"""The built-in metrics by name.

length_rate: the part of requests that ended at their most tokens. answer_rate: the part of units with any feedback.
"""

QUANTILES: dict[str, float] = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


class MetricName(msgspec.Struct, frozen=True):
    """The parts of a metric's name, such as `ttft_ms.p95`."""

    name: str
    metric: Metric | None
    """The built-in metric; None for a metric of the project's own."""
    quantile: float | None = None
    """The quantile that the name ends with, between 0 and 1; None for a name without one."""


def read_metric(text: str, own: Collection[str] = ()) -> MetricName | None:
    """Return the metric that a name such as `ttft_ms.p95` stands for; None for an unknown name.

    own: names of the project's metrics.
    """
    if text in own:
        return MetricName(text, None)
    name, dot, suffix = text.partition(".")
    metric = METRICS.get(name)
    if metric is None or (dot and (suffix not in QUANTILES or not metric.has_quantiles)):
        return None
    return MetricName(name, metric, QUANTILES[suffix] if dot else None)


def needs_equal_weights(text: str) -> bool:
    """Tell whether a metric, such as `ttft_ms.p95`, is compared between arms of equal weight alone."""
    read = read_metric(text)
    return read is not None and read.metric is not None and read.metric.needs_equal_weights
