"""A snapshot of an engine as its backend shows it, and its speed over the last few seconds.

Knows neither tenants' names nor HTTP.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

from engine.protocol import STEP_BUCKETS_S, EngineLimits, EngineStats

State = Literal["ready", "draining", "unreachable"]

WINDOW = 11
"""Pictures that rates are taken over: one a second, so ten seconds."""


class EngineRates(msgspec.Struct, frozen=True):
    """Over the last seconds. tokens_per_s: generated ones. step_ms_p50: None where no step was taken."""

    steps_per_s: float = 0.0
    tokens_per_s: float = 0.0
    step_ms_p50: float | None = None


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """id: of the engine's process, "" before one was ever there. since: Unix seconds at which the state began. stats,
    limits: None while it is not there. device, dtype: as the engine says, "" where it does not."""

    id: str
    model: str
    state: State
    detail: str
    since: int
    stats: EngineStats | None = None
    limits: EngineLimits | None = None
    rates: EngineRates = EngineRates()
    device: str = ""
    dtype: str = ""
    fingerprint: str = ""


class Trend:
    """The latest snapshots of one engine."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, EngineStats]] = deque(maxlen=WINDOW)

    def add(self, now_s: float, stats: EngineStats) -> None:
        """now_s: of a monotonic clock."""
        self._seen.append((now_s, stats))

    def forget(self) -> None:
        """Another engine counts from zero."""
        self._seen.clear()

    @property
    def rates(self) -> EngineRates:
        if len(self._seen) < 2:
            return EngineRates()
        (began_s, first), (ended_s, last) = self._seen[0], self._seen[-1]
        elapsed_s = ended_s - began_s
        before = first.step_counts or [0] * len(last.step_counts)
        counts = [now - then for now, then in zip(last.step_counts, before, strict=True)]
        if elapsed_s <= 0 or min(counts, default=0) < 0:
            return EngineRates()
        tokens = last.generation_tokens_total - first.generation_tokens_total
        return EngineRates(sum(counts) / elapsed_s, tokens / elapsed_s, step_ms_p50(counts))


def step_ms_p50(counts: list[int]) -> float | None:
    """The median of steps counted by STEP_BUCKETS_S, read off a straight line within its bucket; None of no steps."""
    total, seen, floor_s = sum(counts), 0, 0.0
    if total == 0:
        return None
    for count, ceiling_s in zip(counts, STEP_BUCKETS_S, strict=False):
        if seen + count >= total / 2:
            return 1e3 * (floor_s + (ceiling_s - floor_s) * (total / 2 - seen) / count)
        seen, floor_s = seen + count, ceiling_s
    return 1e3 * floor_s
