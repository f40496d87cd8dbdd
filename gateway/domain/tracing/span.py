"""A span: a piece of work with its times, its place in a trace and its attributes. Plain data."""

from __future__ import annotations

from typing import Literal

import msgspec

Value = str | int | float | bool | list[str]
Attributes = dict[str, Value]

Kind = Literal["internal", "server", "client"]
Service = Literal["gateway", "engine"]
"""The process that did the work."""


class SpanEvent(msgspec.Struct, frozen=True):
    """Something that happened at one moment of a span."""

    name: str
    at_ns: int
    """The moment in Unix nanoseconds."""
    attributes: Attributes = {}


class Span(msgspec.Struct, eq=False):
    """A span that is recorded, from its beginning to its end. Times are Unix nanoseconds."""

    trace_id: str
    span_id: str
    parent_id: str
    """The id of the span that this one is a part of; "" for the first of a trace."""
    name: str
    kind: Kind
    start_ns: int
    end_ns: int = 0
    """The end of the span; 0 while the work goes on."""
    service: Service = "gateway"
    attributes: Attributes = {}
    events: list[SpanEvent] = []
    is_error: bool = False
    """True where the work failed by a fault that is not the caller's."""
