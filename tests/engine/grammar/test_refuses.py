"""A keyword that can't be enforced is refused with its name and place, never ignored; one that asserts nothing is
accepted."""

from __future__ import annotations

import json

import pytest

from engine.grammar.limits import MAX_SOURCE_BYTES
from engine.protocol import Grammar
from tests.engine.grammar.grammars import feed, matchers, refusal, schema

STRING = {"type": "string"}


def schema_of_a(value: object) -> dict[str, object]:
    return {"type": "object", "properties": {"a": value}}


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("not", schema_of_a({"not": STRING})),
        ("if", schema_of_a({"if": STRING, "then": {"minLength": 1}})),
        ("dependentRequired", {"dependentRequired": {"a": ["b"]}}),
        ("dependentSchemas", {"dependentSchemas": {"a": True}}),
        ("propertyNames", {"propertyNames": {"maxLength": 3}}),
        ("contains", {"type": "array", "contains": STRING}),
        ("uniqueItems", {"type": "array", "uniqueItems": True}),
        ("unevaluatedProperties", {"anyOf": [schema_of_a(STRING)], "unevaluatedProperties": False}),
        ("unevaluatedItems", {"allOf": [{"prefixItems": [STRING]}], "unevaluatedItems": False}),
        ("oneOf", {"oneOf": [{"minimum": 1}, {"maximum": 5}]}),
        ("format", schema_of_a({"type": "string", "format": "idn-email"})),
        ("pattern", {"type": "string", "pattern": r"[\w&&[^\d]]"}),
        ("pattern", {"type": "string", "pattern": r"^a\x01b$"}),
        ("const", {"const": "nul\x00"}),
        ("const", {"const": 2**53 + 1}),
        ("maximum", {"type": "integer", "maximum": 10**30}),
        ("enum", {"enum": []}),
        ("patternProperties", {"patternProperties": {"^a": STRING, "b$": {"type": "integer"}}}),
        ("properties", {"properties": {f"k{i}": STRING for i in range(300)}, "required": ["k0"]}),
        ("minProperties", {"type": "object", "minProperties": 2}),
        ("minProperties", {"properties": {"a": True, "b": True}, "minProperties": 1, "maxProperties": 2}),
        ("$ref", {"$ref": "https://example.com/schema"}),
        ("$ref", {"$ref": "#/$defs/missing"}),
        ("$id", schema_of_a({"$id": "other", "type": "string"})),
        ("$schema", {"$schema": "http://json-schema.org/draft-04/schema#", "type": "string"}),
        ("$dynamicRef", {"$dynamicRef": "#node"}),
        ("x-guidance", {"x-guidance": {"lenient": True}, "type": "string"}),
    ],
)
def test_a_schema_is_refused_by_the_name_of_what_cannot_be_enforced(keyword: str, value: object) -> None:
    assert keyword in refusal(schema(value))


@pytest.mark.parametrize("at", ["properties", "items", "$defs", "anyOf"])
def test_a_refused_keyword_is_found_wherever_it_stands(at: str) -> None:
    bad = {"not": STRING}
    value = {
        "properties": schema_of_a({"items": bad}),
        "items": {"prefixItems": [True, bad]},
        "$defs": {"$ref": "#/$defs/deep/items", "$defs": {"deep": {"items": bad}}},
        "anyOf": {"anyOf": [STRING, {"additionalProperties": bad}]},
    }[at]
    assert "'not'" in refusal(schema(value))


def test_names_in_data_are_no_keywords() -> None:
    assert refusal(schema(schema_of_a({"const": {"not": 1}}) | {"required": ["not"]})) == ""
    assert refusal(schema({"type": "object", "properties": {"not": STRING, "$ref": STRING, "$id": STRING}})) == ""


@pytest.mark.parametrize(
    ("value", "whole", "broken"),
    [
        ({"type": "array", "uniqueItems": False, "minContains": 3}, "[1,1]", "1"),
        ({"type": "string", "then": False, "$comment": "x", "title": "t", "unheard-of": 1}, '"a"', "1"),
        ({"type": "string", "maxLength": 1.0}, '"a"', '"ab"'),
        (schema_of_a(STRING) | {"unevaluatedProperties": False}, '{"a":"x"}', '{"b":1}'),
        ({"prefixItems": [STRING], "type": "array", "unevaluatedItems": False}, '["a"]', '["a",1]'),
        ({"prefixItems": [STRING], "type": "array", "additionalItems": False}, '["a",1]', "[1]"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "integer"}, "1", '"a"'),
    ],
)
def test_what_asserts_nothing_is_no_obstacle(value: object, whole: str, broken: str) -> None:
    make = matchers(schema(value))
    assert feed(make(), whole)
    assert not feed(make(), broken)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        (Grammar("json_schema", "{"), "not JSON"),
        (Grammar("json_schema", '{"maximum": NaN}'), "NaN"),
        (Grammar("json_schema", "[]"), "must be an object"),
        (Grammar("json_schema", "false"), "allows nothing"),
        (Grammar("json_schema", "[" * 100_000), "nested too deeply"),
        (Grammar("json_schema", '{"const":' + "[" * 500 + "]" * 500 + "}"), "recursion limit"),
        (Grammar("json_schema", '{"$ref": "#"}'), "no text matches"),
        (Grammar("json_schema", " " * (MAX_SOURCE_BYTES + 1)), "longer than"),
        (Grammar("regex", "(a"), "unclosed group"),
        (Grammar("regex", r"(a)\1"), "backreferences"),
        (Grammar("regex", "(?=a)b"), "look-ahead"),
        (Grammar("choice", "yes"), "not JSON"),
        (Grammar("choice", "[]"), "at least one"),
        (Grammar("choice", '["a", 1]'), "list of strings"),
        (Grammar("lark", "start: missing"), "missing"),
        (Grammar("lark", "root ::= ("), "not EBNF"),
        (Grammar("lark", 'start: %json {"not": {}}'), "%json"),
    ],
    ids=lambda value: value.kind if isinstance(value, Grammar) else value,
)
def test_bad_input_is_refused_with_a_reason(grammar: Grammar, reason: str) -> None:
    message = refusal(grammar)
    assert reason in message
    assert len(message) < 600
    assert "no_forcing" not in message


def test_a_lark_error_names_the_callers_own_line() -> None:
    assert "at 3(4)" in refusal(Grammar("lark", "start: a\na: b\nb: c c\n"))


def test_schemas_keep_the_order_of_their_properties() -> None:
    names = ["z", "a", "m"]
    value = {"type": "object", "properties": {name: {"const": 1} for name in names}, "required": names}
    assert feed(matchers(schema(value))(), json.dumps(dict.fromkeys(names, 1)))
