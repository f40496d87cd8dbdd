"""Completions of a random model under a grammar: each that ends is valid, and with enough tokens each ends.

By hand `make long-grammar SUITE=...` runs the JSON-Schema-Test-Suite's schemas of draft 2020-12 (its folder
tests/draft2020-12).
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from engine.protocol import Grammar
from tests.engine.grammar.grammars import RandomModel, matchers, refusal, schema

SUITE_TOKENS = (512, 4096, 32768)
INTEGER = {"type": "integer"}
WORD = {"type": "string", "pattern": "^[a-z]{1,8}$"}
DATE, UUID = {"type": "string", "format": "date"}, {"type": "string", "format": "uuid"}
ADDRESS = {
    "type": "object",
    "properties": {"street": WORD, "number": {"type": "integer", "minimum": 1, "maximum": 999}},
    "required": ["street", "number"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "number": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 99.25},
    "integers": {"type": "array", "items": INTEGER, "minItems": 2, "maxItems": 6},
    "tuple": {"prefixItems": [WORD, INTEGER], "items": False, "type": "array", "minItems": 2},
    "enum": {"enum": ["red", 'dark "blue"', 3, None, [1, {"a": 2}]]},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 12},
    "multiples": {"type": "array", "items": {"type": "number", "multipleOf": 0.5}, "maxItems": 4},
    "formats": {"type": "array", "prefixItems": [DATE, UUID], "items": False},
    "object": ADDRESS,
    "optional": ADDRESS | {"required": ["number"]},
    "patterns": {"type": "object", "patternProperties": {"^x-[a-z]{1,5}$": INTEGER}, "additionalProperties": False},
    "anyOf": {"anyOf": [ADDRESS, WORD, {"type": "array", "items": WORD, "maxItems": 2}]},
    "allOf": {"allOf": [INTEGER, {"minimum": 3}, {"maximum": 300}, {"multipleOf": 7}]},
    "$ref": {"$defs": {"address": ADDRESS}, "type": "array", "items": {"$ref": "#/$defs/address"}, "maxItems": 2},
    "recursion": {
        "type": "object",
        "properties": {"value": INTEGER, "left": {"$ref": "#"}},
        "required": ["value"],
        "additionalProperties": False,
    },
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_random_model_ends_and_what_it_wrote_validates(name: str) -> None:
    make, model, validator = matchers(schema(SCHEMAS[name])), RandomModel(seed=1), Draft202012Validator(SCHEMAS[name])
    texts = [model.complete(make(), max_tokens=512) for _ in range(8)]
    assert None not in texts
    for text in texts:
        validator.validate(json.loads(text or ""))
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    ("grammar", "expression"),
    [
        (Grammar("regex", r"(ab|c)+\d{2}"), r"(ab|c)+[0-9]{2}"),
        (Grammar("choice", '["yes", "no", "no idea"]'), "yes|no|no idea"),
        (
            Grammar("lark", 'start: pair ("," pair)*\npair: KEY "=" /[0-9]+/\nKEY: /[a-z]{1,5}/'),
            "[a-z]{1,5}=[0-9]+(,[a-z]{1,5}=[0-9]+)*",
        ),
    ],
    ids=lambda value: value.kind if isinstance(value, Grammar) else "",
)
def test_grammars_other_than_schemas_hold_a_random_model_too(grammar: Grammar, expression: str) -> None:
    make, model = matchers(grammar), RandomModel(seed=2)
    for _ in range(8):
        text = model.complete(make(), max_tokens=512)
        assert text is not None and re.fullmatch(expression, text)


def test_the_schema_test_suite_is_enforced_or_refused_by_name(full: bool) -> None:
    """At least 169 of its schemas are accepted, and every refusal names one of the schema's keywords.

    Free strings take long: a random model closes one with every 400th token, so few of them fit 512 tokens.
    """
    if not full:
        pytest.skip("runs with --full and JSON_SCHEMA_SUITE")
    cases = _suite_schemas(Path(os.environ["JSON_SCHEMA_SUITE"]))
    refused = {name: reason for name, value in cases.items() if (reason := refusal(schema(value)))}
    unnamed = {name: reason for name, reason in refused.items() if not _names_a_keyword(reason, cases[name])}
    assert not unnamed
    assert len(cases) - len(refused) >= 169

    accepted = {name: value for name, value in cases.items() if name not in refused}
    model, invalid, lengths = RandomModel(seed=3), [], []
    for name, value in accepted.items():
        if r"\p{" in json.dumps(value):
            continue  # Unicode classes, which the validator's regular expressions lack
        make, validator = matchers(schema(value)), Draft202012Validator(value)
        for _ in range(3):
            text, length = model.complete_counted(make(), SUITE_TOKENS[-1])
            lengths.append(length)
            if text is not None and not validator.is_valid(json.loads(text)):
                invalid.append((name, text))
    ended = {bound: sum(length <= bound for length in lengths) / len(lengths) for bound in SUITE_TOKENS}
    shares = ", ".join(f"{share:.1%} within {bound} tokens" for bound, share in ended.items())
    print(f"{len(accepted)} of {len(cases)} schemas accepted; of {len(lengths)} completions ended {shares}")
    assert not invalid
    assert ended[SUITE_TOKENS[-1]] >= 0.95


def _suite_schemas(folder: Path) -> dict[str, Any]:
    return {
        f"{path.stem}: {case['description']}": case["schema"]
        for path in sorted(folder.glob("*.json"))
        for case in json.loads(path.read_text())
    }


def _names_a_keyword(reason: str, value: object) -> bool:
    keywords = re.findall(r'"(\$?\w+)":', json.dumps(value)) or ["false"]
    return any(keyword in reason for keyword in [*keywords, "false"])
