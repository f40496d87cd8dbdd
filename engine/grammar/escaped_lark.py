"""A grammar in Lark for the content of a JSON string: each character that JSON escapes becomes its escape.

Custom tools are functions to a model, so that their input is written as a JSON string; clients write the grammar of the
input itself. The escapes are the shortest ones, so that each input has one form.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from engine.grammar.json_schema import Unenforceable

COMMON = {
    "LF": r"\n",
    "CR": r"\r",
    "NEWLINE": r"(\r?\n)+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"([0-9]+\.[0-9]*|\.[0-9]+)",
    "FLOAT": r"([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
    "NUMBER": r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[_A-Za-z][_A-Za-z0-9]*",
    "ESCAPED_STRING": r'"([^"\\\n]|\\.)*"',
}
"""Terminals of Lark's `common`."""

_SPECIAL = [*map(chr, range(0x20)), '"', "\\"]
_PLAIN = r"""--["\\\x00-\x1f]"""
_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|(?<![^\s])\#[^\n]*)
    |(?P<string>"(?:[^"\\\n]|\\.)*"(?P<string_flags>[a-z]*))
    |(?P<regex>/(?!/)(?:[^/\\\n]|\\.)+/(?P<regex_flags>[a-z]*))
    |(?P<imported>%import[ \t]+common[ \t]*(?:\.[ \t]*(?P<one>[A-Z_]+)|\((?P<several>[A-Z_,\s]+)\))[ \t]*(?=\n|$))
    |(?P<directive>%[a-zA-Z]\w*)
    |(?P<token><[^>\n]*>)
    |(?P<negation>~(?![ \t]*[0-9]))
    |(?P<range>"[^"\n]*"[ \t]*\.\.[ \t]*")
    |(?P<both>&)
    |(?P<terminal>\b_?[A-Z][A-Z0-9_]*\b)
    |(?P<word>\w+)
    |(?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_RANGE_GOES_ON = re.compile(r"\s*\.\.")
_REFUSED = {
    "directive": "the directive '{}' is not supported in the grammar of a tool's input",
    "token": "special tokens such as '{}' have no place in the grammar of a tool's input",
    "both": "'{}' is not supported in the grammar of a tool's input",
    "negation": "'{}' for what a terminal must not match is not supported in the grammar of a tool's input",
}


def escaped_lark(source: str) -> str:
    """Return the grammar of the JSON strings, without their quotes, of the texts that a grammar describes.

    Raises Unenforceable: for what cannot be said of escaped text.
    """
    parts = []
    for found in _TOKEN.finditer(source):
        kind, text = found.lastgroup, found[0]
        if found["comment"]:
            continue
        if found["string"]:
            if _RANGE_GOES_ON.match(source, found.end()):
                raise Unenforceable(
                    "ranges of characters are not supported in the grammar of a tool's input: use /[a-z]/"
                )
            parts.append(_string(text, found["string_flags"]))
        elif found["regex"]:
            flags = found["regex_flags"]
            parts.append(_regex(text[1 : len(text) - len(flags) - 1], flags))
        elif found["imported"]:
            names = found["one"] or found["several"]
            parts.append("\n".join(map(_common_rule, re.findall("[A-Z_]+", names))))
        elif found["terminal"]:
            parts.append(_rule_name(text))
        elif kind in _REFUSED:
            raise Unenforceable(_REFUSED[kind].format(text))
        else:
            parts.append(text)
    return "".join(parts)


def _common_rule(name: str) -> str:
    if name not in COMMON:
        raise Unenforceable(f"'common.{name}' is not known; known are {', '.join(COMMON)}")
    return f"{_rule_name(name)}: {_regex(COMMON[name], '')}"


def _rule_name(terminal: str) -> str:
    """Return the name of the rule that a terminal becomes.

    A lexer that takes the longest match cannot tell an escape of one terminal from the beginning of another's.
    """
    return f"terminal_{terminal.lower()}"


def _string(literal: str, flags: str) -> str:
    try:
        text: str = ast.literal_eval(literal[: len(literal) - len(flags)])
    except (ValueError, SyntaxError):
        raise Unenforceable(f"{literal[:40]} is not a string") from None
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    escaped = _escaped(text)
    if flags and (flags != "i" or escaped != text):
        raise Unenforceable(f"the flags '{flags}' of {literal[:40]} are not supported in the grammar of a tool's input")
    return json.dumps(escaped, ensure_ascii=False) + flags


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _regex(pattern: str, flags: str) -> str:
    """Return an expression of Lark for a regular expression, in which characters are escaped as in JSON.

    flags: "s" lets a dot stand for a line's end, too.

    Raises Unenforceable: when the expression cannot be read, or has other flags.
    """
    if flags not in ("", "s"):
        raise Unenforceable(
            f"the flags '{flags}' of /{pattern[:40]}/ are not supported in the grammar of a tool's input"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = _parser.parse(pattern.replace("\\/", "/"), re.DOTALL if flags else 0)
        return f"({_sequence(parsed, is_dotall=bool(flags)).as_rules})"
    except (re.error, OverflowError, RecursionError) as error:
        raise Unenforceable(f"/{pattern[:40]}/ cannot be read: {error}") from None


class _Expression(NamedTuple):
    """A part of a regular expression: as a regular expression if no character needs an escape, else as rules."""

    text: str
    is_regex: bool

    @property
    def as_rules(self) -> str:
        if not self.is_regex:
            return self.text
        return "/" + self.text.replace("/", "\\/") + "/" if self.text else '""'


def _sequence(parsed: Any, *, is_dotall: bool) -> _Expression:
    parts: list[_Expression] = []
    for operator, value in parsed:
        part = _escape_node(operator, value, is_dotall=is_dotall)
        if parts and parts[-1].is_regex and part.is_regex:
            parts[-1] = _Expression(parts[-1].text + part.text, True)
        else:
            parts.append(part)
    if len(parts) == 1:
        return parts[0]
    return _Expression(" ".join(part.as_rules for part in parts), False) if parts else _Expression("", True)


def _escape_node(operator: Any, value: Any, *, is_dotall: bool) -> _Expression:
    if operator is sre.LITERAL:
        return _Expression(re.escape(_escaped(chr(value))), True)
    if operator in (sre.NOT_LITERAL, sre.ANY, sre.IN):
        return _class(_items(operator, value, is_dotall=is_dotall), "")
    if operator is sre.BRANCH:
        branches = [_sequence(each, is_dotall=is_dotall) for each in value[1]]
        if all(each.is_regex for each in branches):
            return _Expression(f"(?:{'|'.join(each.text for each in branches)})", True)
        return _Expression(f"({' | '.join(each.as_rules for each in branches)})", False)
    if operator is sre.SUBPATTERN:
        _, added, removed, inner = value
        if (added | removed) & ~re.DOTALL:
            raise Unenforceable("only the flag 's' is supported in the grammar of a tool's input")
        found = _sequence(inner, is_dotall=(is_dotall or bool(added)) and not removed)
        return _Expression(f"(?:{found.text})", True) if found.is_regex else _Expression(f"({found.text})", False)
    if operator in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
        return _repeated(*value, is_dotall=is_dotall)
    raise Unenforceable(f"{str(operator).lower()} is not supported in regular expressions of a tool's input")


def _repeated(least: int, most: Any, inner: Any, *, is_dotall: bool) -> _Expression:
    is_open = most is sre.MAXREPEAT
    found = _sequence(inner, is_dotall=is_dotall)
    if is_open and least <= 1 and len(inner) == 1 and inner[0][0] in (sre.NOT_LITERAL, sre.ANY, sre.IN):
        run = _class(_items(*inner[0], is_dotall=is_dotall), "+")  # a run of plain characters is one lexeme
        if not run.is_regex:
            return _Expression(f"{run.text}{'+' if least else '*'}", False)
    bounds = f"{{{least},{'' if is_open else most}}}"
    if found.is_regex:
        return _Expression(f"(?:{found.text}){bounds}", True)
    return _Expression(f"({found.text}){bounds}", False)


def _items(operator: Any, value: Any, *, is_dotall: bool) -> Any:
    """Return the items of the character class that a part of a regular expression stands for.

    operator, value: the part as Python's parser of regular expressions gives it. is_dotall: True: a dot stands for a
    line's end, too.
    """
    if operator is sre.IN:
        return value
    if operator is sre.NOT_LITERAL:
        return [(sre.NEGATE, None), (sre.LITERAL, value)]
    return [(sre.NEGATE, None)] if is_dotall else [(sre.NEGATE, None), (sre.LITERAL, ord("\n"))]


def _class(items: Any, repeat: str) -> _Expression:
    """Return an expression of a class of characters: those that stay as they are, or the escapes of the others.

    items: the characters, as `_items` returns them. repeat: how often a character may occur, such as `*`; "": once.
    """
    is_negated = items[0][0] is sre.NEGATE
    inner = "".join(map(_item, items[is_negated:]))
    chars = f"[^{inner}]" if inner and is_negated else f"[{inner}]" if inner else r"[\x00-\U0010FFFF]"
    matches = re.compile(f"[{'^' if is_negated else ''}{inner}]" if inner else r"[\s\S]")
    escapes = [json.dumps(_escaped(each)) for each in _SPECIAL if matches.match(each)]
    if not escapes:
        return _Expression(chars + repeat, True)
    return _Expression(f"({' | '.join([f'/[{chars}{_PLAIN}]{repeat}/', *escapes])})", False)


def _item(item: tuple[Any, Any]) -> str:
    operator, value = item
    if operator is sre.LITERAL:
        return _char(value)
    if operator is sre.RANGE:
        return f"{_char(value[0])}-{_char(value[1])}"
    if operator is sre.CATEGORY and value in _CATEGORIES:
        return _CATEGORIES[value]
    raise Unenforceable("a class of characters has a form that the grammar of a tool's input does not support")


_CATEGORIES = {
    sre.CATEGORY_DIGIT: r"\d",
    sre.CATEGORY_NOT_DIGIT: r"\D",
    sre.CATEGORY_WORD: r"\w",
    sre.CATEGORY_NOT_WORD: r"\W",
    sre.CATEGORY_SPACE: r"\s",
    sre.CATEGORY_NOT_SPACE: r"\S",
}


def _char(code: int) -> str:
    """Return a character as both Python and Rust read it in a class."""
    return f"\\U{code:08X}"
