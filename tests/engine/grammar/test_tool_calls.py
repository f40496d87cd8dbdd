"""Tool calls as a grammar: text, or calls to the letter whose arguments match their tool's schema."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from engine.grammar.worker import judge
from engine.protocol import ArgumentPieces, CallableTool, CallGrammar, Grammar
from tests.engine.grammar.grammars import EOS, RandomModel, allowed_ids, feed, matchers, next_characters, vocabulary

WORD = {"type": "string", "pattern": "^[a-z]{1,5}$"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "get": {"type": "object", "properties": {"q": WORD}, "required": ["q"], "additionalProperties": False},
    "get_all": {"properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False},
    "none": {"type": "object", "properties": {}, "additionalProperties": False},
}
CALL = '<tool_call>\n{"name": "get", "arguments": {"q": "ab"}}\n</tool_call>'
CALLED = re.compile(r'"name": "(\w+)", "arguments": (.*?)}\n</tool_call>', re.DOTALL)
OTHER = '<tool_call>\n{"name": "get_all", "arguments": {"n": 7}}\n</tool_call>'


def tools(schemas: dict[str, dict[str, Any]] = SCHEMAS, arguments: str = "arguments") -> list[CallableTool]:
    return [
        CallableTool(f'{{"name": "{name}", "{arguments}": ', schema, f"tools[{index}]")
        for index, (name, schema) in enumerate(schemas.items())
    ]


def grammar(**fields: Any) -> Grammar:
    hermes = {"tools": tools(), "trigger": "<tool_call>", "opening": "\n", "separator": "\n<tool_call>\n"}
    wanted = CallGrammar(**{**hermes, "end": "}\n</tool_call>", **fields})
    return Grammar("tool_calls", msgspec.json.encode(wanted).decode())


def test_text_may_come_and_calls_after_it() -> None:
    make = matchers(grammar(max_calls=2))
    for text in ("", "Hello.", "a < b\n{", f"Well.\n{CALL}", CALL, f"{CALL}\n{OTHER}", "\n\n" + CALL):
        assert feed(make(), text), text


@pytest.mark.parametrize(
    "text",
    [
        f"{CALL} and more",
        f"{CALL}\n{OTHER}\n{CALL}",
        "Hello <tool_call>",
        '<tool_call>\n{"name": "put", "arguments": {}}\n</tool_call>',
        '<tool_call>\n{"name": "get", "arguments": {"q": 1}}\n</tool_call>',
        '<tool_call>\n{"name": "get_all", "arguments": 7}\n</tool_call>',
        "<tool_call> or not",
    ],
)
def test_no_call_differs_from_the_format_or_the_schema(text: str) -> None:
    assert not feed(matchers(grammar(max_calls=2))(), text)


def test_where_a_call_must_come_there_is_no_text() -> None:
    make = matchers(grammar(must_call=True, max_calls=2))
    assert next_characters(make()) == {"<"}
    assert feed(make(), CALL) and feed(make(), f"{CALL}\n{OTHER}") and not feed(make(), f"So: {CALL}")


def test_one_call_ends_the_text_where_only_one_may_come() -> None:
    make = matchers(grammar(must_call=True, max_calls=1))
    assert feed(make(), CALL) and not feed(make(), f"{CALL}\n{OTHER}")


def test_text_of_a_schema_may_come_in_place_of_a_call() -> None:
    make = matchers(grammar(text_schema=SCHEMAS["get_all"]))
    assert feed(make(), '{"n": 3}') and feed(make(), CALL)
    assert not feed(make(), "three") and not feed(make(), '{"n": "x"}') and not feed(make(), f'{{"n": 3}}{CALL}')


def test_calls_without_a_trigger_are_the_whole_text() -> None:
    make = matchers(grammar(tools=tools(arguments="parameters"), trigger="", opening="", end="}", separator=""))
    call = '{"name": "get", "parameters": {"q": "ab"}}'
    for text in ("Hello.", call, '{"name": "get"}', f"Look: {call}"):
        assert feed(make(), text), text
    for text in ('{"name": "get", "parameters": {"q": 1}}', f"{call} and more"):
        assert not feed(make(), text), text


def test_a_trigger_may_be_a_special_token() -> None:
    trigger = 1  # <|im_start|>
    make = matchers(grammar(trigger=trigger, opening=" [", separator=", ", closing="]", end="}", max_calls=2))
    matcher = make()
    assert feed(matcher, "Look: ")
    assert {*range(17)} & set(allowed_ids(matcher).tolist()) == {trigger, *EOS}
    matcher.accept(trigger)
    assert feed(matcher, ' [{"name": "get", "arguments": {"q": "ab"}}, {"name": "none", "arguments": {}}]')
    spelled = make()  # the trigger's letters are text
    assert feed(spelled, "<|im") and feed(spelled, '_start|> [{"name": "get", "arguments": 1}]')


def test_special_tokens_may_be_within_calls() -> None:
    trigger, argument = 1, 3  # <|im_start|> and <repo_name>
    called = [CallableTool(f"{name}<repo_name>", schema, name) for name, schema in SCHEMAS.items()]
    pieces = {"trigger": trigger, "opening": "", "separator": "<|im_start|>", "end": "", "max_calls": 2}
    make = matchers(grammar(tools=called, marks={"<repo_name>": argument, "<|im_start|>": trigger}, **pieces))
    matcher = make()
    for special, letters in ((trigger, "none"), (argument, "{}"), (trigger, "get"), (argument, '{"q": "ab"}')):
        assert special in allowed_ids(matcher)
        matcher.accept(special)
        is_whole = feed(matcher, letters)
        assert is_whole == letters.startswith("{")
    assert trigger not in allowed_ids(matcher)  # two calls are the most
    spelled = make()
    spelled.accept(trigger)
    feed(spelled, "none")
    assert allowed_ids(spelled).tolist() == [argument]  # no token with its letters


@pytest.mark.parametrize("must_call", [True, False])
def test_what_a_random_model_calls_validates(must_call: bool) -> None:
    make, model, called = matchers(grammar(must_call=must_call, max_calls=3)), RandomModel(seed=3), set()
    for _ in range(12):
        matcher = make()
        prefix = "" if must_call else "Let me see. <tool_call>"
        feed(matcher, prefix)
        text = model.complete(matcher, max_tokens=256)
        assert text is not None
        for name, arguments in CALLED.findall(prefix + text):
            Draft202012Validator(SCHEMAS[name]).validate(json.loads(arguments))
            called.add(name)
    assert called == set(SCHEMAS)


def test_a_refusal_names_the_tool() -> None:
    bad = SCHEMAS | {"bad": {"type": "object", "properties": {"a": {"not": WORD}}}}
    verdict = judge(vocabulary(), grammar(tools=tools(bad)))
    assert verdict.label == "tools[3]" and "#/properties/a: 'not'" in (verdict.error or "")
    unknown = SCHEMAS | {"bad": {"type": "object", "properties": {"a": {"type": "string", "format": "iri"}}}}
    verdict = judge(vocabulary(), grammar(tools=tools(unknown)))
    assert verdict.label == "tools[3]" and "'format' can't be enforced" in (verdict.error or "")

    text = {"properties": {"a": {"not": WORD}}}
    verdict = judge(vocabulary(), grammar(text_schema=text, text_label="response_format"))
    assert verdict.label == "response_format" and "'not' can't be enforced" in (verdict.error or "")


def test_128_tools_compile_in_time() -> None:
    many = {f"tool_{index}": SCHEMAS["get"] for index in range(128)}
    make = matchers(grammar(tools=tools(many), max_calls=16))
    assert feed(make(), CALL.replace("get", "tool_127"))


PLACE = {"anyOf": [{"type": "string", "pattern": "^x+$"}, {"type": "null"}]}
SINGLY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "n": {"type": "integer"},
        "unit": {"type": "string", "enum": ["C", "dry F"]},
        "place": {"$ref": "#/$defs/place"},
    },
    "required": ["city"],
    "$defs": {"place": PLACE},
}


def singly(schema: dict[str, Any] = SINGLY, texts: tuple[str, ...] = ("city", "unit"), **fields: Any) -> Grammar:
    """Return a grammar of calls whose arguments are written one by one, as Qwen3-Coder does."""
    tool = CallableTool("<function=get>\n", schema, "tools[0]", fields.pop("input_lark", ""), list(texts))
    pieces = ArgumentPieces("<parameter=", ">\n", "\n</parameter>\n")
    return grammar(tools=[tool], end="</function>\n</tool_call>", argument_pieces=pieces, **fields)


def single_call(*arguments: tuple[str, str]) -> str:
    parameters = "".join(f"<parameter={name}>\n{value}\n</parameter>\n" for name, value in arguments)
    return f"<tool_call>\n<function=get>\n{parameters}</function>\n</tool_call>"


def test_arguments_may_be_written_one_by_one() -> None:
    make = matchers(singly(max_calls=2))
    for text in (
        single_call(("city", 'Nice, "so"\n</para')),
        f"Well. {single_call(('city', ''), ('n', '-3'), ('unit', 'dry F'), ('place', chr(34) + 'xx' + chr(34)))}",
        f"{single_call(('city', 'a'), ('place', 'null'))}\n{single_call(('city', 'b'))}",
    ):
        assert feed(make(), text), text
    for text in (
        single_call(),
        single_call(("n", "3"), ("city", "Nice")),
        single_call(("city", "Nice"), ("n", "three")),
        single_call(("city", "Nice"), ("unit", "K")),
        single_call(("city", "Nice"), ("place", '"y"')),
        single_call(("city", "Nice"), ("other", "1")),
        f"{single_call(('city', 'Nice'))} and more",
    ):
        assert not feed(make(), text), text


def test_a_tool_without_properties_has_no_arguments() -> None:
    make = matchers(singly({"type": "object"}, ()))
    assert feed(make(), single_call()) and not feed(make(), single_call(("x", "1")))
    unnamed = matchers(singly({"required": ["x"]}, ()))
    assert feed(unnamed(), single_call(("x", "[1]"))) and not feed(unnamed(), single_call())


def test_a_custom_tool_among_them_has_its_text_in_quotation_marks() -> None:
    make = matchers(singly(texts=(), input_lark=r"start: /[a-z\n]+/"))
    assert feed(make(), single_call(("input", json.dumps("a\nb")))) and not feed(make(), single_call(("input", "ab")))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, "#/anyOf"),
        ({"properties": {"a": {}}, "minProperties": 1}, "#/minProperties"),
        ({"properties": {"a": {"$ref": "#"}}}, "refer to definitions alone"),
        ({"properties": {"a>\nb": {}}}, "cannot write the name"),
        ({"properties": {"a": {}}, "maxProperties": 0}, "#/maxProperties"),
        ({"const": {}}, "#/const"),
        ({"properties": ["a"]}, "#/properties must be an object"),
        ({"properties": None}, "#/properties must be an object"),
        ({"required": 5}, "#/required must be a list of strings"),
        ({"required": [1]}, "#/required must be a list of strings"),
        ({"required": ["x"], "additionalProperties": False}, 'no value is allowed for "x"'),
        ({"properties": {"x": False}, "required": ["x"]}, 'no value is allowed for "x"'),
    ],
)
def test_what_is_said_of_all_arguments_together_is_refused_in_words(schema: dict[str, Any], reason: str) -> None:
    verdict = judge(vocabulary(), singly(schema, ()))
    assert reason in verdict.error and verdict.label == "tools[0]"


def test_a_required_argument_without_a_description_is_held_to_the_schema_of_additional_ones() -> None:
    make = matchers(singly({"required": ["x"], "additionalProperties": {"type": "integer"}}, ()))
    assert feed(make(), single_call(("x", "3"))) and not feed(make(), single_call(("x", "true")))


def test_an_example_that_looks_like_a_reference_is_none() -> None:
    schema = {"properties": {"a": {"type": "object", "default": {"$ref": "#/x"}}}, "minProperties": 0}
    assert feed(matchers(singly(schema, ()))(), single_call(("a", "{}")))


def test_definitions_are_repeated_only_for_arguments_that_use_them_and_not_without_end() -> None:
    definitions = {"d": {"type": "integer", "description": "x" * 100_000}}
    names = [f"p{index}" for index in range(300)]
    users: dict[str, Any] = {name: {"$ref": "#/$defs/d"} for name in names}
    few = users | {name: {"type": "integer"} for name in names[1:]}
    schema = {"properties": few, "required": names, "$defs": definitions}
    assert len(judge(vocabulary(), singly(schema, ())).text) < 300_000
    verdict = judge(vocabulary(), singly(schema | {"properties": users}, ()))
    assert verdict.error == "definitions are too long for the number of arguments that use them"


def test_the_error_of_one_argument_shows_no_rules() -> None:
    never = {"type": "integer", "minimum": 5, "maximum": 1}
    verdict = judge(vocabulary(), singly({"properties": {"a": never}}, ()))
    assert verdict.error == "Unsatisfiable schema: minimum (5) is greater than maximum (1)"
