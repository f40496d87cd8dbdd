"""Quantiles, such as the 95th percentile of a latency, with intervals that hold at every look.

A quantile is compared by counts: of t units, those at most as high as the true p-quantile are a count with share p
(`counts`; Howard and Ramdas, Bernoulli 28(3), 2022, arXiv 1906.09712). That needs one value for each unit. Counts in
buckets with fixed edges keep it exact, rounded outwards to an edge.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from gateway.domain.experiments.statistics.counts import log_e

FIRST_EDGE_MS = 0.1
LAST_EDGE_MS = 600_000.0
EDGE_FACTOR = 1.02
EDGES_MS = tuple(
    FIRST_EDGE_MS * EDGE_FACTOR**index
    for index in range(math.ceil(math.log(LAST_EDGE_MS / FIRST_EDGE_MS) / math.log(EDGE_FACTOR)) + 1)
)
"""The upper edges, in ms, of the buckets in which times are counted; one more bucket has no upper edge."""


class QuantileInterval(msgspec.Struct, frozen=True):
    """The interval of a quantile, between edges of buckets; 0 and infinity where nothing bounds it."""

    low: float
    high: float
    estimate: float
    """The upper edge of the bucket that holds the sample's quantile."""


def bucket_of(value_ms: float) -> int:
    """Return the index of the bucket of a time: the first whose edge is not below it."""
    return bisect_left(EDGES_MS, value_ms)


def rank_bounds(num_units: int, p: float, concentration: float, alpha: float) -> tuple[int, int]:
    """Return the least and the highest number of units below the p-quantile that level alpha does not refute.

    The interval of the quantile is [x of rank least, x of rank highest + 1], ranks from 1.

    p: the quantile, between 0 and 1. concentration: as for `counts.log_e`.
    """
    limit, shares = -math.log(alpha), (p, 1 - p)

    def held(below: int) -> bool:
        return log_e((below, num_units - below), shares, concentration) < limit

    centre = min(num_units, max(0, round(num_units * p)))
    low, refuted = centre, -1
    while low - refuted > 1:
        middle = (low + refuted) // 2
        low, refuted = (middle, refuted) if held(middle) else (low, middle)
    high, refuted = centre, num_units + 1
    while refuted - high > 1:
        middle = (high + refuted) // 2
        high, refuted = (middle, refuted) if held(middle) else (high, middle)
    return low, high


def quantile_interval(counts: Sequence[int], p: float, concentration: float, alpha: float) -> QuantileInterval:
    """Return the interval of the p-quantile of one arm.

    counts: units by bucket, of which there is one more than `EDGES_MS`. For the difference of two arms give alpha / 2
    to each. p: the quantile, between 0 and 1. concentration: as for `counts.log_e`. alpha: the level of the interval.
    """
    total = sum(counts)
    if not total:
        return QuantileInterval(0.0, math.inf, math.nan)
    low, high = rank_bounds(total, p, concentration, alpha)
    lower = _bucket_of_rank(counts, low) - 1 if low >= 1 else -1
    upper = _bucket_of_rank(counts, high + 1) if high + 1 <= total else len(EDGES_MS)
    middle = _bucket_of_rank(counts, max(1, math.ceil(total * p)))
    return QuantileInterval(EDGES_MS[lower] if lower >= 0 else 0.0, _edge(upper), _edge(middle))


def difference(control: QuantileInterval, treatment: QuantileInterval) -> tuple[float, float]:
    """Return the interval of the treatment's quantile minus the control's, at the sum of both intervals' levels."""
    return treatment.low - control.high, treatment.high - control.low


def _bucket_of_rank(counts: Sequence[int], rank: int) -> int:
    for index, count in enumerate(counts):
        rank -= count
        if rank <= 0:
            return index
    raise ValueError("there are fewer units than the rank")


def _edge(bucket: int) -> float:
    return EDGES_MS[bucket] if bucket < len(EDGES_MS) else math.inf
