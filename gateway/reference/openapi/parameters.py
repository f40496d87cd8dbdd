"""The parameters of operations: those of the path, the query and the headers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gateway.reference.openapi.headers import EXPERIMENTS, IDEMPOTENCY_KEY
from gateway.reference.openapi.operations import Operation

QUERY: dict[str, dict[str, Any]] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "include_archived": {"type": "boolean", "default": False},
}
"""Schemas of query parameters that are not plain text, in every operation that has them."""

DESCRIPTIONS = {
    "order": "The order of the list: `asc` puts the oldest first, `desc` the newest.",
    "limit": "The most items that a page has.",
    "after": "The id after which the page begins: `last_id` of the page before.",
}


def parameters(each: Operation) -> list[dict[str, Any]]:
    """Return the parameters of an operation."""
    return [*_path_parameters(each), *_query_parameters(each), *_header_parameters(each)]


def _path_parameters(each: Operation) -> Iterator[dict[str, Any]]:
    for name in each.params:
        words = name.removesuffix("_id").replace("_", " ")
        description = f"Id of the {words}." if name.endswith("_id") else f"The {words}."
        yield {
            "name": name,
            "in": "path",
            "required": True,
            "description": description,
            "schema": {"type": "string", "minLength": 1},
        }


def _query_parameters(each: Operation) -> Iterator[dict[str, Any]]:
    known = QUERY | dict(each.shape.query)
    for name in each.access.query if each.access is not None else each.shape.query:
        described: dict[str, Any] = {"name": name, "in": "query", "schema": known.get(name, {"type": "string"})}
        if described["schema"].get("type") == "object":
            described |= {"style": "deepObject", "explode": True}  # metadata[topic]=birds
        if name in DESCRIPTIONS:
            described["description"] = DESCRIPTIONS[name]
        if name in each.shape.needed:
            described["required"] = True
        yield described


def _header_parameters(each: Operation) -> Iterator[dict[str, Any]]:
    for name in each.access.headers if each.access is not None else ():
        yield {"name": name, "in": "header", "required": True, "schema": {"type": "string"}}
    if each.shape.is_billed:
        yield IDEMPOTENCY_KEY
        yield from EXPERIMENTS
