"""Streams of server-sent events: each event by its name and by the JSON of its data.

OpenAPI 3.1 has no words for events. The schema of `text/event-stream` describes one event as OpenAPI 3.2's `itemSchema`
does: an object with the event's fields, whose `data` is a string of JSON with a schema of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from gateway.http.error_body import ErrorBody
from gateway.http.shape import Shape

STREAM = "text/event-stream"


def kinds_of(shape: Shape) -> tuple[Any, ...]:
    """Return the types of the data of a stream's events."""
    if shape.event is None:
        return ()
    return get_args(shape.event) or (shape.event, ErrorBody)


def event_schema(shape: Shape, schema_of: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of one event of a stream."""
    events = [_event(kind.__struct_config__.tag, schema_of[kind]) for kind in kinds_of(shape)]
    if shape.has_end_mark:
        events.append({"properties": {"data": {"const": "[DONE]"}}})
    return {"type": "object", "required": ["data"], "anyOf": events}


def _event(name: str | None, data: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one kind of event. name: None for events that have no name."""
    held = {"data": {"type": "string", "contentMediaType": "application/json", "contentSchema": data}}
    if name is None:
        return {"properties": held}
    return {"properties": {"event": {"const": name}} | held, "required": ["event"]}
