"""A snapshot of an engine for operators, and its speed over the last few seconds.

Knows neither tenants' names nor HTTP.
"""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

from engine.protocol import STEP_BUCKETS_S, EngineLimits, EngineStats

State = Literal["ready", "draining", "unreachable"]

WINDOW = 11
"""The number of heartbeats from which rates are computed: ten seconds lie between the first and the last."""


class EngineRates(msgspec.Struct, frozen=True):
    """The pace of an engine over the last seconds."""

    steps_per_s: float = 0.0
    tokens_per_s: float = 0.0
    """Generated tokens per second."""
    step_ms_p50: float | None = None
    """The median milliseconds of a step; None where no step was taken."""


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one engine at one moment, as operators see it."""

    id: str
    """The id of the engine's process; "" before one was ever there."""
    model: str
    """The public name of the base model."""
    state: State
    detail: str
    """The reason for the state, in words; "" where there is none."""
    since: int
    """Unix seconds at which the state began."""
    stats: EngineStats | None = None
    """The last heartbeat; None while the engine is not there."""
    limits: EngineLimits | None = None
    """The limits of the engine; None while it is not there."""
    rates: EngineRates = EngineRates()
    device: str = ""
    """The device, as the engine names it; "" where the engine names none."""
    dtype: str = ""
    """The number format that the engine computes in, as the engine names it; "" where the engine names none."""
    fingerprint: str = ""
    """The value of `system_fingerprint` in replies, as the engine names it; "" where the engine names none."""


class HeartbeatTrend:
    """The latest heartbeats of one engine."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, EngineStats]] = deque(maxlen=WINDOW)

    def add(self, now_s: float, stats: EngineStats) -> None:
        """Add a heartbeat. now_s: the time on a monotonic clock."""
        self._seen.append((now_s, stats))

    def forget(self) -> None:
        """Forget all heartbeats: another engine counts from zero."""
        self._seen.clear()

    @property
    def rates(self) -> EngineRates:
        """The pace between the first and the last heartbeat that are kept."""
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
    """Return the median milliseconds of steps, interpolated within its bucket of STEP_BUCKETS_S.

    None: no step was counted.
    """
    total, seen, floor_s = sum(counts), 0, 0.0
    if total == 0:
        return None
    for count, ceiling_s in zip(counts, STEP_BUCKETS_S, strict=False):
        if seen + count >= total / 2:
            return 1e3 * (floor_s + (ceiling_s - floor_s) * (total / 2 - seen) / count)
        seen, floor_s = seen + count, ceiling_s
    return 1e3 * floor_s
