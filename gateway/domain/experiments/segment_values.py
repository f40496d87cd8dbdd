"""Segments of an experiment's units, by the API key, the endpoint, streaming, the service tier and the gateway.

A unit is in the segments of its first request, which its arm could not change yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, get_args

import msgspec

Kind = Literal["api_key", "endpoint", "stream", "service_tier", "gateway"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MAX_VALUES = 20
"""The most values of each kind that are counted separately; units of further ones are counted as `OTHER`."""
OTHER = "other"

Values = tuple[str, ...]
"""The value of each kind of segments, in the order of the kinds; empty if the unit's first request has none."""


class Origin(msgspec.Struct, frozen=True):
    """The facts about a request that were known before its arm was chosen."""

    api_key_id: str
    endpoint: str
    stream: bool
    service_tier: str
    gateway: str
    """The id of the journal of the gateway that got the request."""


def segments_of(values: Values, known: Mapping[Kind, set[str]]) -> list[tuple[Kind, str]]:
    """Return the segments that a unit is in. known: the values of each kind that are counted apart."""
    if not values:
        return []
    return [(kind, value if value in known.get(kind, ()) else OTHER) for kind, value in zip(KINDS, values, strict=True)]


def add_segment_values(known: dict[Kind, set[str]], all_values: Iterable[Values]) -> None:
    """Count these values separately as well, up to MAX_VALUES of each kind.

    A value is never taken away again, so that a unit stays in its segments.
    """
    for values in all_values:
        for kind, value in zip(KINDS, values, strict=False):
            own = known.setdefault(kind, set())
            if len(own) < MAX_VALUES:
                own.add(value)
