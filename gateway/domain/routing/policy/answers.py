"""Checks of answers: a text against a JSON schema, of which there is a part whose check takes bounded time.

Pure. A pattern would take a time that its writer chooses, so schemas have none; regular expressions are checked
elsewhere, by an engine whose time is linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

MAX_SCHEMA_DEPTH = 16
MAX_ANSWER_CHARS = 1 << 20
"""The most characters of an answer that is checked; a longer answer is rejected."""

MAX_COMPARISONS = 200_000
"""The most comparisons of one check of all choices of an answer; an answer that needs more is rejected."""

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_WORDS_ABOUT = ("title", "description", "default", "examples", "$schema", "$comment")
SCHEMA_WORDS = (
    "type",
    "enum",
    "const",
    "properties",
    "required",
    "additionalProperties",
    "items",
    "anyOf",
    *_COUNTS,
    *_NUMBERS,
    *_WORDS_ABOUT,
)
"""The keywords that a schema may have; the ones in `_WORDS_ABOUT` describe and check nothing."""


def schema_fault(schema: object, depth: int = 1) -> tuple[str, str] | None:
    """Return the path of the first fault of a schema and what is wrong there; None for one that can be checked.

    depth: how deep the schema is nested within the whole one, from 1 on.
    """
    if not isinstance(schema, dict):
        return "", "a schema is an object"
    if depth > MAX_SCHEMA_DEPTH:
        return "", f"schemas are nested more than {MAX_SCHEMA_DEPTH} deep"
    for word, value in schema.items():
        if (why := _fault_of(word, value)) is not None:
            return f".{word}", why
    for path, below in _subschemas(schema):
        if (fault := schema_fault(below, depth + 1)) is not None:
            return path + fault[0], fault[1]
    return None


def _fault_of(word: str, value: object) -> str | None:
    if word not in SCHEMA_WORDS:
        return "this keyword is not checked here"
    if word == "type":
        names = value if isinstance(value, list) else [value]
        is_good = bool(names) and all(isinstance(each, str) and each in _TYPES for each in names)
        return None if is_good else f"expected one or several of {', '.join(_TYPES)}"
    if word in ("enum", "anyOf"):
        return None if isinstance(value, list) and value else "expected a list that is not empty"
    if word == "required":
        is_good = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return None if is_good else "expected a list of names"
    if word == "properties":
        return None if isinstance(value, dict) else "expected an object"
    if word == "additionalProperties":
        return None if isinstance(value, bool | dict) else "expected a boolean or a schema"
    if word in _COUNTS:
        is_good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return None if is_good else "expected a whole number"
    if word in _NUMBERS:
        return None if isinstance(value, int | float) and not isinstance(value, bool) else "expected a number"
    return None


def _subschemas(schema: dict[str, Any]) -> list[tuple[str, object]]:
    """Return the direct subschemas of a schema, each with its path from there."""
    found: list[tuple[str, object]] = [(f".properties.{name}", each) for name, each in _dict(schema, "properties")]
    found += [(f".anyOf[{index}]", each) for index, each in enumerate(schema.get("anyOf", []))]
    if isinstance(schema.get("additionalProperties"), dict):
        found.append((".additionalProperties", schema["additionalProperties"]))
    if "items" in schema:
        found.append((".items", schema["items"]))
    return found


def _dict(schema: dict[str, Any], word: str) -> list[tuple[str, object]]:
    return list(schema.get(word, {}).items())


def all_match_schema(texts: Sequence[str], schema: dict[str, Any]) -> bool:
    """Tell whether each text is JSON that a schema without faults allows."""
    check = _Check()
    return all(_matches(check, text, schema) for text in texts)


def _matches(check: _Check, text: str, schema: dict[str, Any]) -> bool:
    if len(text) > MAX_ANSWER_CHARS:
        return False
    try:
        return check.allows(schema, msgspec.json.decode(text.strip().encode()))
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False


class _Check:
    """One check of an answer, with the number of comparisons that are left."""

    def __init__(self) -> None:
        self._num_left = MAX_COMPARISONS

    def allows(self, schema: dict[str, Any], value: object) -> bool:
        """Tell whether a schema without faults allows a decoded value."""
        self._num_left -= 1
        if self._num_left < 0:
            return False
        if "type" in schema:
            names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            if not any(_is_a(value, name) for name in names):
                return False
        if "const" in schema and not self._is_same(value, schema["const"]):
            return False
        if "enum" in schema and not any(self._is_same(value, each) for each in schema["enum"]):
            return False
        if "anyOf" in schema and not any(self.allows(each, value) for each in schema["anyOf"]):
            return False
        if isinstance(value, dict):
            return self._allows_object(schema, value)
        if isinstance(value, list):
            is_long_enough = _is_within(len(value), schema.get("minItems"), schema.get("maxItems"))
            return is_long_enough and all(self.allows(schema["items"], each) for each in value if "items" in schema)
        if isinstance(value, str):
            return _is_within(len(value), schema.get("minLength"), schema.get("maxLength"))
        if isinstance(value, int | float) and not isinstance(value, bool):
            low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
            is_inside = (low is None or value > low) and (high is None or value < high)
            return is_inside and _is_within(value, schema.get("minimum"), schema.get("maximum"))
        return True

    def _allows_object(self, schema: dict[str, Any], value: dict[str, Any]) -> bool:
        known = schema.get("properties", {})
        if any(name not in value for name in schema.get("required", ())):
            return False
        if not _is_within(len(value), schema.get("minProperties"), schema.get("maxProperties")):
            return False
        others = schema.get("additionalProperties", True)
        for name, each in value.items():
            if name in known:
                if not self.allows(known[name], each):
                    return False
            elif others is False or (isinstance(others, dict) and not self.allows(others, each)):
                return False
        return True

    def _is_same(self, one: object, other: object) -> bool:
        """Tell whether two values are the same in JSON, where 1 is 1.0 and not true."""
        self._num_left -= 1
        if self._num_left < 0:
            return False
        if isinstance(one, bool) or isinstance(other, bool):
            return one is other
        if isinstance(one, list) and isinstance(other, list):
            return len(one) == len(other) and all(map(self._is_same, one, other))
        if isinstance(one, dict) and isinstance(other, dict):
            return one.keys() == other.keys() and all(self._is_same(one[name], other[name]) for name in one)
        return one == other


def _is_a(value: object, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[name])


def _is_within(number: float, least: float | None, most: float | None) -> bool:
    return (least is None or number >= least) and (most is None or number <= most)
