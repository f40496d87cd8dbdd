"""Answers are checked against schemas as JSON schema defines, in bounded time."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import jsonschema
import pytest

from gateway.domain.routing.policy.answers import MAX_ANSWER_CHARS, MAX_SCHEMA_DEPTH, all_match_schema, schema_fault

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 1.0, -2.5, "", "a", "abc"),
    *([], [1], ["a", None], {}, {"a": 1}, {"b": [0]}),
)


def random_schema(draw: random.Random, depth: int = 1) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    if draw.random() < 0.6:
        names = ("object", "array", "string", "number", "integer", "boolean", "null")
        schema["type"] = draw.choice((draw.choice(names), draw.sample(names, 2)))
    if draw.random() < 0.2:
        schema["enum"] = draw.sample(VALUES, 3)
    if draw.random() < 0.1:
        schema["const"] = draw.choice(VALUES)
    for word in ("minLength", "maxItems", "minProperties"):
        if draw.random() < 0.15:
            schema[word] = draw.randint(0, 2)
    for word in ("minimum", "exclusiveMaximum"):
        if draw.random() < 0.15:
            schema[word] = draw.choice((-1, 0.5, 1))
    if draw.random() < 0.2:
        schema["required"] = ["a"]
    if depth < 3 and draw.random() < 0.4:
        schema["properties"] = {name: random_schema(draw, depth + 1) for name in ("a", "b")}
        schema["additionalProperties"] = draw.choice((True, False, random_schema(draw, depth + 1)))
    if depth < 3 and draw.random() < 0.4:
        schema["items"] = random_schema(draw, depth + 1)
    if depth < 3 and draw.random() < 0.2:
        schema["anyOf"] = [random_schema(draw, depth + 1) for _ in range(2)]
    return schema


def test_random_schemas_allow_what_json_schema_says() -> None:
    draw, num_allowed = random.Random(5), 0
    for _ in range(2_000):
        schema, value = random_schema(draw), draw.choice(VALUES)
        assert schema_fault(schema) is None
        allowed = jsonschema.Draft202012Validator(schema).is_valid(value)
        assert all_match_schema([f" {json.dumps(value)}\n"], schema) == allowed, (schema, value)
        num_allowed += allowed
    assert 400 < num_allowed < 1_600  # both answers were given


@pytest.mark.parametrize("text", ["", "no json", "{} {}", "[" * 100_000, '"' + "a" * MAX_ANSWER_CHARS + '"'])
def test_an_answer_that_is_no_json_or_too_long_is_not_accepted(text: str) -> None:
    assert not all_match_schema([text], {})


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"type": "text"}, ".type"),
        ({"properties": {"a": {"items": {"pattern": "(a*)*"}}}}, ".properties.a.items.pattern"),
        ({"$ref": "#"}, ".$ref"),
        ({"anyOf": [{}, 1]}, ".anyOf[1]"),
        ({"minItems": -1}, ".minItems"),
        ({"required": "a"}, ".required"),
    ],
)
def test_a_schema_that_is_not_checked_here_is_refused_by_its_path(schema: dict[str, Any], path: str) -> None:
    fault = schema_fault(schema)
    assert fault is not None and fault[0] == path


def test_schemas_are_bounded_and_so_is_the_time_of_a_check() -> None:
    deep: dict[str, Any] = {}
    for _ in range(MAX_SCHEMA_DEPTH):
        deep = {"items": deep}
    assert schema_fault(deep) is not None
    wide = {"items": {"anyOf": [{"const": [1, 2, number]} for number in range(1_000)]}}
    text = json.dumps([[1, 2, -1]] * 50_000)
    started_s = time.process_time()
    assert not all_match_schema([text], wide)
    assert time.process_time() - started_s < 2.0


def test_all_choices_of_an_answer_share_the_comparisons_of_one_check() -> None:
    schema = {"items": {"enum": list(range(1_500))}}
    text = json.dumps([1_499] * 100)
    assert all_match_schema([text], schema)
    assert not all_match_schema([text, text], schema)
