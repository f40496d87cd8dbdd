"""JSON schemas in words: "text of 1 to 512 characters", "list of ChatMessage". Pure.

Knows JSON Schema as far as our document uses it (draft 2020-12), and nothing about what fields mean.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

JsonSchema = dict[str, Any]

MANY_VALUES = 12
"""The number of allowed values above which a type is not described by listing them."""


class TypePart(msgspec.Struct, frozen=True):
    """A part of a type's description."""

    text: str
    schema: str = ""
    """The name of the component that the word links to; "" for none."""
    is_value: bool = False
    """True: the word is a JSON value."""


def type_words(schema: JsonSchema) -> list[TypePart]:
    """Return the type as words to be read one after another, spaces included."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return [TypePart(shown_name(name), schema=name)]
    if "enum" in schema or "const" in schema:
        return _values(schema.get("enum", [schema.get("const")]))
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return list(_alternatives([type_words(each) for each in schema[choice]]))
    match schema.get("type"):
        case "array":
            return [TypePart(f"list{_bounds(schema, 'minItems', 'maxItems')}"), *type_words(schema.get("items", {}))]
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            bounds = _bounds(schema, "minProperties", "maxProperties")
            return [TypePart(f"object{bounds}"), *type_words(schema["additionalProperties"])]
        case "string":
            return [TypePart(f"text{_length(schema)}{_pattern(schema)}")]
        case "integer" | "number" as kind:
            return [TypePart(f"{'whole number' if kind == 'integer' else 'number'}{_range(schema)}")]
        case "boolean":
            return [TypePart("true", is_value=True), TypePart(" or "), TypePart("false", is_value=True)]
        case "null":
            return [TypePart("null", is_value=True)]
        case "object":
            return [TypePart("object")]
    return [TypePart("any JSON")]


def without_null(schema: JsonSchema) -> JsonSchema:
    """Return a field's schema without null, if null means the same as leaving the field out."""
    left = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if not left or len(left) == len(schema["anyOf"]):
        return schema
    return left[0] if len(left) == 1 else {"anyOf": left}


def shown_name(name: str) -> str:
    """Return a component's name as people say the name: `Page_ApiKey_` is a page of ApiKey."""
    head, _, rest = name.partition("_")
    return f"{head} of {rest.rstrip('_')}" if rest else name


def _alternatives(choices: list[list[TypePart]]) -> Iterator[TypePart]:
    for place, choice in enumerate(choices):
        if place:
            yield TypePart(" or ")
        yield from choice


def _values(values: list[Any]) -> list[TypePart]:
    shown = [[TypePart(json.dumps(value), is_value=True)] for value in values[:MANY_VALUES]]
    more = len(values) - len(shown)
    return [*_alternatives(shown), *([TypePart(f" and {more} more")] if more else [])]


def _length(schema: JsonSchema) -> str:
    if schema.get("format") == "binary":
        return " of bytes"
    least, most = schema.get("minLength"), schema.get("maxLength")
    if least is None and most is None:
        return ""
    if least == most:
        return f" of {least} characters"
    if most is None:
        return "" if least == 1 else f" of {least} characters or more"
    return f" of {f'{least} to' if least else 'up to'} {most:,} characters"


def _pattern(schema: JsonSchema) -> str:
    return f" that matches {schema['pattern']}" if "pattern" in schema else ""


def _range(schema: JsonSchema) -> str:
    least, most, over = schema.get("minimum"), schema.get("maximum"), schema.get("exclusiveMinimum")
    parts = []
    if over is not None:
        parts.append(f"over {_number(over)}")
    elif least is not None:
        parts.append(f"{_number(least)} or more" if most is None else f"{_number(least)} to {_number(most)}")
    if most is not None and (over is not None or least is None):
        parts.append(f"up to {_number(most)}")
    return f", {', '.join(parts)}" if parts else ""


_LIMITS = {2**31 - 1: "2³¹ − 1", 2**32: "2³²", 2**63 - 1: "2⁶³ − 1", -(2**63): "−2⁶³"}


def _number(value: float) -> str:
    if value in _LIMITS:
        return _LIMITS[int(value)]
    return f"{value:,}".replace("-", "−")


def _bounds(schema: JsonSchema, least: str, most: str) -> str:
    """Return the words for the allowed number of items, before the word for the items' type."""
    low, high = schema.get(least), schema.get(most)
    if high is None:
        return " of "
    return f" of {f'{low} to' if low else 'up to'} {high:,}, each "
