"""Tool calls as a grammar in llguidance's Lark dialect: text, or calls whose arguments match their tool's schema."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from engine.grammar.escaped_lark import escaped_lark
from engine.grammar.json_schema import Unenforceable, prepare_schema
from engine.protocol import CallableTool, CallGrammar

ANY_TEXT = "/(?s:.*)/"

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
        rules.append(_arguments(tool, f"arguments_{index}", f"input_{index}"))
    return "\n".join(rules)


def call_parts(source: str) -> list[tuple[str, str]]:
    """Return (label, rules) of a `CallGrammar`'s schemas, each as a grammar of its own, to find the one at fault."""
    wanted = _grammar(source)
    found = [(tool.label, _arguments(tool, "start", "input")) for tool in wanted.tools]
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


def _arguments(tool: CallableTool, rule: str, input_rule: str) -> str:
    """Return the rule of a tool's arguments. input_rule: the name for a further rule that custom tools need."""
    if not tool.input_lark:
        return f"{rule}: %json {json.dumps(_arguments_schema(tool))}"
    try:
        inner = escaped_lark(tool.input_lark)
    except Unenforceable as error:
        raise Unenforceable(str(error), tool.label) from None
    before, after = json.dumps('{"input": "'), json.dumps('"}')
    return f"{rule}: {before} {input_rule} {after}\n{input_rule}: %lark {{\n{inner}\n}}"


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
