"""The smallest body that a schema takes, for routes that give no example of their own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TEXTS = {"name": "support", "email": "ann@example.com", "url": "https://example.com/hook", "reason": "an outage"}
"""Realistic values of text fields, by the name of the field."""


def example(schema: dict[str, Any], document: Mapping[str, Any], name: str = "") -> Any:
    """Return an example value of a schema. name: the name of the field that the example is for."""
    if "$ref" in schema:
        component = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return example(component, document, name)
    if "default" in schema:
        return schema["default"]
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return example(schema[choice][0], document, name)
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {each: example(properties[each], document, each) for each in schema.get("required", ())}
        case "array":
            return [example(schema["items"], document, name)] if schema.get("minItems") else []
        case "string":
            return TEXTS.get(name, "…"[: schema.get("maxLength", 1)] * max(1, schema.get("minLength", 1)))
        case "integer" | "number":
            return schema.get("minimum", 1) or 1
        case "boolean":
            return True
    return None
