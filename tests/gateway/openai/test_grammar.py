"""The grammar that the engine is asked for, by the request's fields."""

from __future__ import annotations

import msgspec
import pytest

from engine.protocol import Grammar
from gateway.domain.errors import InvalidRequest
from gateway.http.fields import MAX_DEPTH
from gateway.openai.shared.grammar import ResponseFormat, StructuredOutputs, requested_grammar

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"const": 1.0}}}
SCHEMA_TEXT = '{"type":"object","properties":{"b":{"type":"integer"},"a":{"const":1.0}}}'

FORMATS = [
    ({"type": "text"}, None),
    ({"type": "json_object"}, Grammar("json_object")),
    ({"type": "json_schema", "json_schema": {"name": "x"}}, Grammar("json_object")),
    ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, Grammar("json_schema", SCHEMA_TEXT)),
    (
        {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True, "description": "d"}},
        Grammar("json_schema", SCHEMA_TEXT),
    ),
]
STRUCTURES = [
    ({"json": SCHEMA}, Grammar("json_schema", SCHEMA_TEXT)),
    ({"json": SCHEMA_TEXT}, Grammar("json_schema", SCHEMA_TEXT)),
    ({"regex": "a+", "choice": None}, Grammar("regex", "a+")),
    ({"choice": ["yes", 'n"o']}, Grammar("choice", '["yes","n\\"o"]')),
    ({"grammar": "start: /a/"}, Grammar("lark", "start: /a/")),
    ({"json_object": True}, Grammar("json_object")),
]


@pytest.mark.parametrize(("given", "grammar"), FORMATS)
def test_a_response_format_is_a_grammar(given, grammar):
    wanted = msgspec.convert(given, ResponseFormat)
    field = "response_format.json_schema.schema" if "schema" in given.get("json_schema", {}) else "response_format"
    assert requested_grammar(wanted, None) == (grammar, field if grammar else None)


@pytest.mark.parametrize(("given", "grammar"), STRUCTURES)
def test_structured_outputs_are_a_grammar(given, grammar):
    wanted = msgspec.convert(given, StructuredOutputs)
    assert requested_grammar(ResponseFormat("text"), wanted) == (grammar, f"structured_outputs.{next(iter(given))}")


@pytest.mark.parametrize(
    "text", ["", "{", "true", "[]", "{} {}", '{"a":' * 3000, '{"a":' * MAX_DEPTH + "1" + "}" * MAX_DEPTH]
)
def test_a_schema_as_text_is_an_object_of_bounded_depth(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        requested_grammar(None, StructuredOutputs(json=text))
    assert (refused.value.param, refused.value.code) == ("structured_outputs.json", "invalid_value")
