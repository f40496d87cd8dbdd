"""Grammars made to hurt: to take minutes or all memory when they compile, or to make every token expensive."""

from __future__ import annotations

import json

from engine.protocol import Grammar
from tests.engine.grammar.grammars import schema


def nested_text(opening: str, closing: str, depth: int) -> str:
    return opening * depth + "{}" + closing * depth


DOUBLING = "\n".join(f"a{i}: a{i + 1} a{i + 1}" for i in range(40))
REFERENCES = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{(i * 3 + j) % 300}"} for j in range(4)]} for i in range(300)}
NEVER_COMPILES = {
    "alternating automata": Grammar("lark", "start: T\nT: " + " & ".join(f"/(.*a.{{{k}}}b)*/" for k in range(3, 30))),
    "multiples": schema({"type": "integer", "multipleOf": 99_999_989}),
    "intersections": schema({"allOf": [{"type": "string", "pattern": f"a.{{{i}}}b"} for i in range(3, 25)]}),
    "nested arrays": Grammar("json_schema", nested_text('{"type":"array","items":', "}", 10_000)),
    "nested properties": Grammar("json_schema", nested_text('{"properties":{"a":', "}}", 10_000)),
    "nested groups": Grammar("regex", "(" * 10_000 + "a" + ")" * 10_000),
    "five megabytes": schema({"enum": ["x" * 5_000_000]}),
    "references without end": schema({"$defs": REFERENCES, "$ref": "#/$defs/d0"}),
    "overflowing stack": Grammar(
        "lark", "start: a0 a1\n" + "\n".join(f'a{i}: "x{i}" | a{(i + 1) % 5000}' for i in range(5000))
    ),
    "doubling terminals": Grammar("lark", f'start: A0\n{DOUBLING.upper()}\nA40: "x" | "y"'),
}
COMPILES = {
    "exponential regex": Grammar("regex", "(?s:.*)a(?s:.){20}"),
    "exponential letters": Grammar("regex", "(a|b)*a(a|b){16}"),
    "million times": Grammar("regex", "x{1,1000000}"),
    "repeated repetition": Grammar("regex", "(a{1000}){1000}"),
    "complement": Grammar("lark", "start: T\nT: ~/(.*a.{15}b)*/"),
    "ambiguous": Grammar("lark", 'start: a\na: a a | "x" | "y" |\n'),
    "doubling rules": Grammar("lark", f'start: a0\n{DOUBLING}\na40: "x" | "y" |'),
    "enum": schema({"enum": [f"value {i}" for i in range(15_000)]}),
    "choices": Grammar("choice", json.dumps([f"{i * 7919 % 100_003:x}" for i in range(10_000)])),
    "many rules": Grammar(
        "lark",
        "start: ("
        + " | ".join(f"r{i}" for i in range(2000))
        + ")+\n"
        + "\n".join(f'r{i}: /[a-z]+/ r{i * 7 % 2000} | "x"' for i in range(2000)),
    ),
    "optional properties": schema(
        {
            "type": "object",
            "properties": {f"k{i}": {"type": "string", "pattern": f".*a.{{{i % 30}}}b"} for i in range(256)},
        }
    ),
}
