"""Grammars enforce what gateway/README.md lists: a continuation that would violate it is masked off."""

from __future__ import annotations

import json

import pytest

from engine.grammar.limits import MAX_CHOICES, MAX_OPTIONAL_PROPERTIES
from engine.protocol import Grammar
from tests.engine.grammar.grammars import EOS, allowed_ids, feed, matchers, next_characters, schema

CLOSED = {"type": "object", "additionalProperties": False}
INTEGER = {"type": "integer"}
LINKED = CLOSED | {"properties": {"next": {"$ref": "#"}}}

# (schema, text so far, what may begin the rest, what may not); "" is the end
MUST_ENFORCE = {
    "type": ({"type": ["boolean", "null"]}, "", "tn", '"1{['),
    "objects": ({"type": "object"}, "", "{", '"1['),
    "required": (CLOSED | {"properties": {"a": INTEGER}, "required": ["a"]}, "{", '"', "}"),
    "properties": (CLOSED | {"properties": {"a": INTEGER}}, '{"a":', "1-", '"{t'),
    "additionalProperties: false": (CLOSED | {"properties": {"a": INTEGER}}, '{"a":1', "}", ","),
    "additionalProperties: a schema": ({"type": "object", "additionalProperties": INTEGER}, '{"b":', "1", '"t'),
    "patternProperties": (CLOSED | {"patternProperties": {"^x-[a-z]+$": INTEGER}}, '{"', "x", "y"),
    "minProperties": ({"type": "object", "minProperties": 1}, "{", '"', "}"),
    "maxProperties": ({"type": "object", "maxProperties": 1}, '{"a":1', "}", ","),
    "items": ({"type": "array", "items": INTEGER}, "[", "1]", '"['),
    "prefixItems": ({"type": "array", "prefixItems": [INTEGER, {"type": "boolean"}]}, "[1,", "tf", "1"),
    "minItems": ({"type": "array", "items": INTEGER, "minItems": 2}, "[1", ",", "]"),
    "maxItems": ({"type": "array", "items": INTEGER, "maxItems": 2}, "[1,2", "]", ","),
    "enum": ({"enum": ["red", "green", 7]}, '"', "rg", "b7"),
    "const": ({"const": {"a": [1]}}, '{"a":[1', "]", ",2"),
    "anyOf": ({"anyOf": [INTEGER, {"type": "boolean"}]}, "", "1tf", '"n'),
    "allOf": ({"allOf": [INTEGER, {"minimum": 5}]}, "", "5", "-0"),
    "oneOf": ({"oneOf": [INTEGER, {"type": "string"}]}, "", '1"', "t"),
    "$ref": ({"$ref": "#/$defs/n~1m", "$defs": {"n/m": INTEGER}}, "", "1", '"'),
    "recursion": (LINKED, '{"next":{"next":', "{", "1n"),
    "pattern": ({"type": "string", "pattern": "^[a-c]+$"}, '"a', 'b"', "d "),
    "minLength": ({"type": "string", "minLength": 2}, '"a', "b", '"'),
    "maxLength": ({"type": "string", "maxLength": 2}, '"ab', '"', "c"),
    "format": ({"type": "string", "format": "date"}, '"2024-0', "12", "0x"),
    "minimum": ({"type": "integer", "minimum": 10, "maximum": 19}, "1", "09", ".e"),
    "maximum": ({"type": "integer", "minimum": 10, "maximum": 19}, "", "1", "2-"),
    "exclusiveMinimum": ({"type": "integer", "exclusiveMinimum": 4, "maximum": 6}, "", "56", "47"),
    "exclusiveMaximum": ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "", "0", "1"),
    "multipleOf": ({"type": "integer", "multipleOf": 5, "minimum": 10, "maximum": 99}, "1", "05", "12"),
}


@pytest.mark.parametrize("name", MUST_ENFORCE)
def test_a_violating_continuation_is_masked_off(name: str) -> None:
    value, so_far, lawful, unlawful = MUST_ENFORCE[name]
    matcher = matchers(schema(value))()
    feed(matcher, so_far)
    following = next_characters(matcher)
    assert set(lawful) <= following
    assert not set(unlawful) & following


@pytest.mark.parametrize(
    ("value", "incomplete", "whole"),
    [
        (INTEGER | {"minimum": 10, "maximum": 19}, "1", "12"),
        ({"type": "string", "minLength": 1}, '"', '"x"'),
        (CLOSED | {"properties": {"a": INTEGER}, "required": ["a"]}, '{"a":1', '{"a":1}'),
        ({"type": "array"}, "[[]", "[[]]"),
    ],
)
def test_the_end_is_allowed_when_the_text_is_whole_and_not_before(value: object, incomplete: str, whole: str) -> None:
    make = matchers(schema(value))
    assert not feed(make(), incomplete)
    assert feed(make(), whole)


def test_once_nothing_but_the_end_may_follow_only_the_end_is_allowed() -> None:
    matcher = matchers(Grammar("json_object"))()
    assert feed(matcher, '{"a": [1]}')
    assert matcher.is_complete
    assert sorted(allowed_ids(matcher)) == sorted(EOS)


def test_a_property_cannot_be_evaded_by_spelling_its_name_with_escapes() -> None:
    make = matchers(
        schema({"type": "object", "properties": {"a": INTEGER}, "additionalProperties": {"type": "string"}})
    )
    assert feed(make(), '{"b":"x"}')
    assert not feed(make(), '{"\\u0061":"x"}')


def test_whitespace_is_one_space_or_one_line_break_with_its_indentation() -> None:
    make = matchers(Grammar("json_object"))
    assert feed(make(), json.dumps({"a": [1, {"b": None}]}))
    assert feed(make(), json.dumps({"a": [1, {"b": None}]}, indent=2))
    assert feed(make(), '{"a":[1,2]}')
    for endless in ('{  "a":1}', '{\n\n"a":1}', ' {"a":1}', '{"a":1}\n', "{\n" + " " * 25 + '"a":1}'):
        assert not feed(make(), endless)


def test_as_many_choices_and_optional_properties_as_are_accepted_can_be_followed() -> None:
    choices = [f"{number * 7919 % 100_003:x}" for number in range(MAX_CHOICES)]
    make = matchers(Grammar("choice", json.dumps(choices)))
    assert feed(make(), choices[0]) and feed(make(), choices[-1])
    properties = {f"key {number}": INTEGER for number in range(MAX_OPTIONAL_PROPERTIES)}
    make = matchers(schema({"type": "object", "properties": properties}))
    assert feed(make(), json.dumps(dict.fromkeys(list(properties)[::9], 1)))


@pytest.mark.parametrize(
    ("grammar", "whole", "broken"),
    [
        (Grammar("lark", 'root ::= "yes" | "no" item*\nitem ::= [a-z]+ ","\n'), ["yes", "noa,bc,"], ["yesa", "noa"]),
        (Grammar("regex", r"(ab|c)+\d{2}"), ["ab12", "cabc00"], ["ab1", "ab123", "ab١٢", "12"]),
        (Grammar("regex", r"^a/b\n\"$"), ['a/b\n"'], ["a/b"]),
        (Grammar("choice", '["yes", "yes please"]'), ["yes", "yes please"], ["no", "yes "]),
        (
            Grammar("choice", json.dumps(['a "quote"\n\\', "é😀\x01", "/"])),
            ['a "quote"\n\\', "é😀\x01", "/"],
            ["a", ""],
        ),
        (Grammar("json_object"), ["{}", '{"a":{"b":[]}}'], ["[]", "1", ""]),
        (
            Grammar("lark", 'start: pair ("," pair)*\npair: KEY "=" /[0-9]+/\nKEY: /[a-z]+/'),
            ["a=1", "a=1,b=2"],
            ["a", "a=1,"],
        ),
    ],
    ids=[
        "ebnf",
        "regex",
        "regex with delimiters",
        "choice and its prefix",
        "choice of odd strings",
        "json_object",
        "lark",
    ],
)
def test_grammars_other_than_schemas_allow_their_texts_and_no_others(
    grammar: Grammar, whole: list[str], broken: list[str]
) -> None:
    make = matchers(grammar)
    assert all(feed(make(), text) for text in whole)
    assert not any(feed(make(), text) for text in broken)
