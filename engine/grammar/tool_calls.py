"""Tool calls as a grammar in llguidance's Lark dialect: text, or calls whose arguments match their tool's schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from engine.grammar.escaped_lark import escaped_lark
from engine.grammar.json_schema import Unenforceable, prepare_schema, resolve, subschemas
from engine.grammar.limits import MAX_ARGUMENT_SCHEMAS_CHARS
from engine.protocol import ArgumentPieces, CallableTool, CallGrammar

ANY_TEXT = "/(?s:.*)/"
NOTHING = '""'
DEFINITIONS = ("$defs", "definitions")
ABOUT_ALL_ARGUMENTS = (
    *("allOf", "anyOf", "oneOf", "$ref", "const", "enum", "patternProperties", "minProperties", "maxProperties"),
)
"""The keywords that assert something of an object as a whole."""
ASSERT_NOTHING: dict[str, Any] = {"minProperties": 0, "patternProperties": {}}
"""The values with which such keywords assert nothing."""

_decode = msgspec.json.Decoder(CallGrammar).decode


def call_rules(source: str) -> str:
    """Return the rules of a `CallGrammar`.

    Raises Unenforceable: when the parameters of a tool cannot be enforced; the error has the tool's label.
    """
    wanted = _grammar(source)
    rules = [_start(wanted), _calls(wanted)]
    for index, tool in enumerate(wanted.tools):
        head, end = (_literal(each, wanted.marks) for each in (tool.head, wanted.end))
        rules.append(f"call_{index}: {head} arguments_{index} {end}")
        rules.append(_arguments(tool, f"arguments_{index}", f"input_{index}", wanted.argument_pieces))
    return "\n".join(rules)


def call_parts(source: str) -> list[tuple[str, str]]:
    """Return (label, rules) of a `CallGrammar`'s schemas, each as a grammar of its own, to find the one at fault."""
    wanted = _grammar(source)
    found = [(tool.label, _arguments(tool, "start", "input", wanted.argument_pieces)) for tool in wanted.tools]
    if wanted.text_schema is not None:
        schema = _schema(wanted.text_schema, wanted.text_label)
        found.append((wanted.text_label, f"start: %json {json.dumps(schema)}"))
    return found


def _grammar(source: str) -> CallGrammar:
    try:
        return _decode(source)
    except msgspec.DecodeError as error:
        raise Unenforceable(f"not a grammar of tool calls: {error}") from None


def _start(wanted: CallGrammar) -> str:
    """Return the start rule, which says where calls and other text may come.

    No text can be read as both, so that a reader of the text knows what it is.
    """
    trigger = wanted.trigger
    calls = f"<[{trigger}]> calls" if isinstance(trigger, int) else f"{_text(trigger)} calls"
    if wanted.must_call:
        return f"start: {calls}"
    if wanted.text_schema is not None:
        schema = _schema(wanted.text_schema, wanted.text_label)
        return f"start: text | {calls}\ntext: %json {json.dumps(schema)}"
    if isinstance(trigger, int):  # which no text can hold: its letters are text like any other
        return f"start: TEXT ({calls})?\nTEXT: {ANY_TEXT}"
    if trigger:
        no_trigger = f"{ANY_TEXT} & ~({ANY_TEXT} {_text(trigger)} {ANY_TEXT})"
        return f"start: TEXT | before calls\nTEXT: {no_trigger}\nbefore[lazy]: {ANY_TEXT} {_text(trigger)}"
    heads = " | ".join(_text(wanted.opening + tool.head) for tool in wanted.tools)
    return f"start: TEXT | calls\nTEXT: {ANY_TEXT} & ~(({heads}) {ANY_TEXT})"


def _calls(wanted: CallGrammar) -> str:
    more = wanted.max_calls - 1
    opening, separator, closing = (
        _literal(each, wanted.marks) for each in (wanted.opening, wanted.separator, wanted.closing)
    )
    repeated = f"({separator} call){{0,{more}}}" if more else ""
    call = " | ".join(f"call_{index}" for index in range(len(wanted.tools)))
    return f"calls: {opening} call {repeated} {closing}\ncall: {call}"


def _arguments(tool: CallableTool, rule: str, part: str, pieces: ArgumentPieces | None) -> str:
    """Return the rule of a tool's arguments.

    part: the name for a further rule, and the beginning of the names of others. pieces: the letters around each
    argument; None: the arguments are a JSON object.
    """
    if not tool.input_lark:
        return _json_arguments(tool, rule) if pieces is None else _single_arguments(tool, rule, part, pieces)
    try:
        inner = escaped_lark(tool.input_lark)
    except Unenforceable as error:
        raise Unenforceable(str(error), tool.label) from None
    around = ('{"input": "', '"}') if pieces is None else (f'{pieces.before}input{pieces.after}"', f'"{pieces.end}')
    before, after = map(json.dumps, around)
    return f"{rule}: {before} {part} {after}\n{part}: %lark {{\n{inner}\n}}"


def _json_arguments(tool: CallableTool, rule: str) -> str:
    return f"{rule}: %json {json.dumps(_arguments_schema(tool))}"


def _single_arguments(tool: CallableTool, rule: str, part: str, pieces: ArgumentPieces) -> str:
    """Return the rules of arguments that are written one by one, in the order of the schema's properties.

    Arguments that the schema requires without describing them follow. No others are allowed, even if the schema
    allows more.

    Raises Unenforceable: when the schema asserts something about the arguments together, or requires an argument that
    no value fits.
    """
    schema = _arguments_schema(tool)
    _check_is_flat(schema, tool.label, pieces)
    required, properties = dict.fromkeys(schema.get("required", [])), schema.get("properties", {})
    undescribed = [name for name in required if name not in properties]
    arguments = properties | dict.fromkeys(undescribed, schema.get("additionalProperties", True))
    end, wanted, rules, num_chars = json.dumps(pieces.end), [], [], 0
    for index, (name, value) in enumerate(arguments.items()):
        if value is False:
            if name in required:
                raise Unenforceable(f"#/required: no value is allowed for {json.dumps(name)}", tool.label)
            continue
        before = json.dumps(f"{pieces.before}{name}{pieces.after}")
        rules.append(f"{part}_{index}: {before} {part}_{index}_value")
        if name not in tool.texts:
            described = _value_schema(value, schema, tool.label)
            num_chars += len(described)
            if num_chars > MAX_ARGUMENT_SCHEMAS_CHARS:
                raise Unenforceable("definitions are too long for the number of arguments that use them", tool.label)
            rules += [f"{part}_{index}_value: {part}_{index}_json {end}", f"{part}_{index}_json: %json {described}"]
        elif "enum" in value:
            texts = " | ".join(json.dumps(f"{text}{pieces.end}") for text in value["enum"])
            rules.append(f"{part}_{index}_value: {texts}")
        else:
            rules.append(f"{part}_{index}_value[lazy]: {ANY_TEXT} {end}")
        wanted.append(f"{part}_{index}" if name in required else f"{part}_{index}?")
    return "\n".join([f"{rule}: {' '.join(wanted) or NOTHING}", *rules])


def _check_is_flat(schema: dict[str, Any], label: str, pieces: ArgumentPieces) -> None:
    """Check that each of the arguments can be written on its own.

    Raises Unenforceable: when a keyword is about several of the arguments, or an argument's name cannot be written.
    """
    for keyword in ABOUT_ALL_ARGUMENTS:
        if keyword in schema and (keyword not in ASSERT_NOTHING or schema[keyword] != ASSERT_NOTHING[keyword]):
            raise Unenforceable(f"#/{keyword} is not supported by this model, which writes arguments one by one", label)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        raise Unenforceable("#/properties must be an object", label)
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise Unenforceable("#/required must be a list of strings", label)
    for name in [*properties, *required]:
        if pieces.after in name:
            raise Unenforceable(f"#/properties: this model cannot write the name {json.dumps(name)}", label)


def _value_schema(value: Any, schema: dict[str, Any], label: str) -> str:
    """Return the JSON schema of one argument as a schema of its own, with the definitions that it needs.

    value: the argument's schema within `schema`, that of all arguments.

    Raises Unenforceable: when a reference leads to another place than a definition.
    """
    definitions: dict[str, Any] = {}
    waiting, followed = [value], set()
    while waiting:
        each = waiting.pop()
        if not isinstance(each, dict):
            continue
        waiting += [inner for _, inner in subschemas("#", each)]
        reference = each.get("$ref")
        if reference is None or reference in followed:
            continue
        followed.add(reference)
        keyword, _, place = unquote(reference.removeprefix("#/")).partition("/")
        if keyword not in DEFINITIONS or not place:
            reason = f"$ref {json.dumps(reference)}: this model's arguments may refer to definitions alone"
            raise Unenforceable(reason, label)
        definitions[keyword] = schema[keyword]
        waiting.append(resolve("#", reference, schema))
    own = {} if value is True else value
    return json.dumps({**own, **definitions, "x-guidance": schema["x-guidance"]})


def _arguments_schema(tool: CallableTool) -> dict[str, Any]:
    """Return the schema of a tool's arguments, which are an object, whether or not their schema says so."""
    return {"type": "object"} | _schema(tool.parameters, tool.label)


def _schema(schema: dict[str, Any], label: str) -> dict[str, Any]:
    try:
        return prepare_schema(schema)
    except Unenforceable as error:
        raise Unenforceable(str(error), label) from None


def _literal(letters: str, marks: Mapping[str, int]) -> str:
    """Return a text of the grammar in which the letters of special tokens are those tokens."""
    parts = re.split(f"({'|'.join(map(re.escape, marks))})", letters) if marks else [letters]
    return " ".join(f"<[{marks[part]}]>" if part in marks else _text(part) for part in parts if part)


def _text(literal: str) -> str:
    """Return a literal of the grammar; "" for an empty text, which has no literal."""
    return json.dumps(literal) if literal else ""
