"""The choice of the requests that are traced, by the samplers that OpenTelemetry's `OTEL_TRACES_SAMPLER` names.

Without a parent that decides, a request is chosen by its trace's id alone: all processes of one ratio choose the same.
"""

from __future__ import annotations

from typing import Literal

from gateway.domain.tracing.parent import Parent

SamplerName = Literal[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
]

OF_PARENT = "parentbased_"
RATIO_BITS = 64
"""The number of bits at the end of a trace's id that are compared with the ratio."""


class Sampler:
    """The rule that selects the requests to trace, by the caller's span and the trace's id."""

    def __init__(self, name: SamplerName, ratio: float) -> None:
        """Prepare the sampler. ratio: the share of traces, from 0 to 1, that the samplers `traceidratio` choose."""
        self._asks_parent = name.startswith(OF_PARENT)
        share = {"always_on": 1.0, "always_off": 0.0, "traceidratio": ratio}[name.removeprefix(OF_PARENT)]
        self._below = round(share * (1 << RATIO_BITS))

    def takes(self, trace_id: str, parent: Parent | None) -> bool:
        """Tell whether a request is to be traced. parent: the span of the caller, if there is one."""
        if parent is not None and self._asks_parent:
            return parent.is_sampled
        return int(trace_id[-RATIO_BITS // 4 :], 16) < self._below
