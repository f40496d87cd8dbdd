"""A request's grammar, of any kind, as one text in llguidance's Lark dialect."""

from __future__ import annotations

import json
import re

import llguidance
from llguidance.gbnf_to_lark import gbnf_to_lark

from engine.grammar.json_schema import Unenforceable, parse_schema
from engine.grammar.limits import MAX_CHOICES, MAX_SOURCE_BYTES
from engine.grammar.tool_calls import call_rules
from engine.protocol import Grammar

# llguidance would write out at every mask all text that can't be otherwise, at the cost of its length, and then allow
# one tokenization of it alone. The model finds its own.
NO_FORCING = '%llguidance {"no_forcing": true}'
EBNF_START = re.compile(r"^\s*root\s*::=", re.MULTILINE)  # the dialect called GBNF
MAX_ERROR_CHARS = 500
# Words of llguidance, and the words by which clients know the same.
REWORDED = {
    "failed to compile JSON schema: ": "",
    "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf": (
        "'oneOf' can't be enforced unless its schemas plainly exclude each other, by type or by a constant they require"
    ),
    "patternProperty regexes": "'patternProperties' must match different names:",
    "min/maxProperties only supported": "'minProperties' and 'maxProperties' can be enforced only",
    "Invalid URI reference": "'$ref' is no URI reference:",
    "Unknown format:": "'format' can't be enforced:",
    "Unable to determine if regex is empty:": "'pattern' is too complex beside the other keywords:",
}


def lark_source(grammar: Grammar) -> str:
    """Return a grammar in Lark. The text may still not compile.

    Raises Unenforceable: when the grammar is too long, nested too deeply, or cannot be enforced.
    """
    if len(grammar.source.encode()) > MAX_SOURCE_BYTES:
        raise Unenforceable(f"longer than {MAX_SOURCE_BYTES} bytes")
    try:
        return _translate(grammar)
    except RecursionError:
        raise Unenforceable("nested too deeply") from None


def _translate(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            return _rule("%json " + json.dumps(parse_schema(grammar.source)))
        case "json_object":
            return _rule("%json " + json.dumps(parse_schema('{"type": "object"}')))
        case "regex":
            # \d and \w are ASCII, as in a schema's pattern.
            return _rule(f"/{llguidance.regex_to_lark(grammar.source, 'dw')}/")
        case "choice":
            # All choices are one terminal: thousands of them are one automaton to the lexer, and as many rules to the
            # parser.
            return _rule("CHOICE\nCHOICE: " + " | ".join(json.dumps(choice) for choice in _choices(grammar.source)))
        case "tool_calls":
            return f"{NO_FORCING}\n{call_rules(grammar.source)}\n"
        case "lark":
            # The option stands last, so that errors name the caller's own line numbers.
            return f"{_lark_or_ebnf(grammar.source)}\n{NO_FORCING}\n"


def error_message(grammar: Grammar, error: str) -> str:
    """Return llguidance's error in the caller's terms, without the text around it that the caller didn't write."""
    if "NoExtension" in error:
        return "no text matches it"
    if grammar.kind == "lark":
        ours = rf"\n +\d+ \| {re.escape(NO_FORCING)}.*"
    else:
        ours = r"^at \d+\(\d+\): |\n +(?:1 \| |\d+ \| input_\d).*"
    error = re.sub(rf"{ours}|\n<non-verbose/>.*", "", error, flags=re.DOTALL).strip()
    for theirs, plain in REWORDED.items():
        error = error.replace(theirs, plain)
    return error if len(error) <= MAX_ERROR_CHARS else error[:MAX_ERROR_CHARS] + "..."


def _rule(body: str) -> str:
    return f"{NO_FORCING}\nstart: {body}\n"


def _lark_or_ebnf(source: str) -> str:
    if "%json" in source:
        raise Unenforceable("%json is not supported in a grammar; send the schema as json_schema")
    if not EBNF_START.search(source):
        return source
    try:
        return gbnf_to_lark(source)
    except Exception as error:  # it raises nothing more precise
        raise Unenforceable(f"not EBNF: {error}") from None


def _choices(source: str) -> list[str]:
    try:
        choices = json.loads(source)
    except ValueError as error:
        raise Unenforceable(f"not JSON: {error}") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise Unenforceable("must be a list of strings, with at least one")
    if len(choices) > MAX_CHOICES:
        raise Unenforceable(f"more than {MAX_CHOICES} choices")
    return choices
