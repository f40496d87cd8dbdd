"""Computes figures of traces: percentiles, rates while the engine was full, and the spread of times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from engine.bench.drive import Trace


class Window(msgspec.Struct, frozen=True):
    """A stretch of the monotonic clock, in seconds."""

    start_s: float
    end_s: float

    def __contains__(self, time_s: float) -> bool:
        return self.start_s <= time_s < self.end_s

    @property
    def seconds(self) -> float:
        """The length of the stretch in seconds."""
        return self.end_s - self.start_s


def full_window(traces: Sequence[Trace], num_streams: int) -> Window:
    """Return the window in which a closed loop was in full swing.

    It lasts from the end of the first num_streams requests, with which everything started cold and at once, to the
    sending of the last one.
    """
    ended = sorted(trace.ended_s for trace in traces)
    return Window(ended[num_streams - 1], traces[-1].sent_s)


def tokens_per_s(traces: Iterable[Trace], window: Window) -> float:
    """Return the rate of tokens that arrived within the window."""
    return sum(time_s in window for trace in traces for time_s in trace.arrived_s) / window.seconds


def tokens_per_s_of_batch(traces: Sequence[Trace]) -> float:
    """Return the tokens per second of requests that were sent at once, from then to the last token."""
    seconds = max(trace.ended_s for trace in traces) - traces[0].sent_s
    return sum(len(trace.token_ids) for trace in traces) / seconds


def ttfts_s(traces: Iterable[Trace], window: Window) -> list[float]:
    """Return the TTFTs of the requests sent within the window that got a token."""
    return [trace.ttft_s for trace in traces if trace.sent_s in window and trace.arrived_s]


def gaps_s(traces: Iterable[Trace], window: Window) -> list[float]:
    """Return the seconds between tokens of one request, both within the window."""
    return [
        gap
        for trace in traces
        for gap, time_s in zip(trace.gaps_s, trace.arrived_s, strict=False)
        if time_s in window and time_s + gap in window
    ]


def adapters_by_step(traces: Iterable[Trace], window: Window) -> list[set[str]]:
    """Return the distinct adapters of the tokens that each of the engine's turns within the window brought."""
    steps: dict[float, set[str]] = {}
    for trace in traces:
        for time_s in trace.arrived_s:
            if time_s in window:
                steps.setdefault(time_s, set()).update([trace.request.adapter] if trace.request.adapter else [])
    return list(steps.values())


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile of the values; NaN without values."""
    return float(np.percentile(values, percent)) if len(values) else float("nan")


def milliseconds(values_s: Sequence[float], percent: float) -> float:
    """Return a percentile of times in milliseconds, to a tenth."""
    return round(percentile(values_s, percent) * 1e3, 1)


def auc(smaller: Sequence[float], larger: Sequence[float]) -> float:
    """Return the chance that a random member of `smaller` is below one of `larger`, ties half.

    This is the area under the ROC curve of an observer that tells them apart by a threshold (Mann and Whitney, 1947).
    0.5 tells nothing.
    """
    ordered = np.sort(np.asarray(larger))
    values = np.asarray(smaller)
    num_above = len(ordered) - np.searchsorted(ordered, values, side="right")
    num_equal = np.searchsorted(ordered, values, side="right") - np.searchsorted(ordered, values, side="left")
    return float((num_above + num_equal / 2).sum() / (len(values) * len(ordered)))
