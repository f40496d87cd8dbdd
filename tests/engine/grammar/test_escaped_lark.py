"""Grammars of a custom tool's input in Lark: they match, in JSON's escapes, exactly what the plain grammar matches."""

from __future__ import annotations

import json
import random

import pytest

from engine.grammar.escaped_lark import escaped_lark
from engine.grammar.json_schema import Unenforceable
from engine.protocol import CallableTool, Grammar
from engine.sequence import MatcherError
from tests.engine.grammar.grammars import feed, matchers
from tests.engine.grammar.test_tool_calls import grammar
from tests.patience import TRIES

PATCH = """
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF  // the first line
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

%import common.LF
"""
PATCHES = [
    "*** Begin Patch\n*** Add File: a.txt\n+hello\n*** End Patch",
    '*** Begin Patch\n*** Add File: a "b" \\ c\n+say "hi"\n+\ttab \\ é 😀 \x0b\n*** Delete File: /b\n*** End Patch\n',
]
NO_PATCHES = [
    "",
    "*** Begin Patch\n*** End Patch",
    "*** Begin Patch\n*** Add File: \n+x\n*** End Patch",
    PATCHES[0] + "!",
]


def accepts(source: str, text: str) -> bool:
    return feed(matchers(Grammar("lark", escaped_lark(source)))(), json.dumps(text, ensure_ascii=False)[1:-1])


def test_a_patch_is_within_the_processor_time_of_a_completion() -> None:
    """The first masks are the dearest, and cost more on a busy machine: one of a few completions has to be within."""
    make = matchers(Grammar("lark", escaped_lark(PATCH)), is_bounded=True)

    def is_within() -> bool:
        try:
            return feed(make(), json.dumps(PATCHES[1], ensure_ascii=False)[1:-1])
        except MatcherError:
            return False

    assert any(is_within() for _ in range(TRIES))


def test_a_patch_matches_and_nothing_else_does() -> None:
    for text in PATCHES:
        assert accepts(PATCH, text), text
    for text in NO_PATCHES:
        assert not accepts(PATCH, text), text


@pytest.mark.parametrize(
    ("pattern", "texts", "others"),
    [
        (r"a.c", ['a"c', "a\\c", "abc", "a\tc"], ["a\nc", "ac"]),
        (r"[^x]{2}", ['"\\', "\n\r", "ab", "\x00é"], ["ax", "a"]),
        (r"[\s\d]+", [" \t\n9", "7"], ["a", '"']),
        (r"\w+/\S", ["ab/c", 'a/"'], ["ab/ ", "a c"]),
        (r"(?s:a.)|b?", ["a\n", "b", ""], ["a", "c"]),
        (r'["\\]', ['"', "\\"], ["a", "/", "\n"]),
        (r"(ab|cd){2,3}?", ["abcd", "cdcdab"], ["ab", "abababab"]),
        (r"[a-z]*\d", ["7", "a7", "abc7"], ["", "abc", "A7"]),
        (r"[a-z]+\d", ["a7", "abc7"], ["7"]),
    ],
)
def test_regular_expressions_mean_the_text_before_it_is_escaped(
    pattern: str, texts: list[str], others: list[str]
) -> None:
    source = f"start: X\nX: /{pattern.replace('/', chr(92) + '/')}/"
    assert all(accepts(source, text) for text in texts)
    assert not any(accepts(source, text) for text in others)


def test_strings_of_any_characters_match_themselves_alone() -> None:
    rng = random.Random(0)
    for _ in range(50):
        text = "".join(rng.choices(["a", '"', "\\", "\n", "\x01", "/", "é", "😀", "<"], k=rng.randrange(1, 6)))
        source = f"start: {json.dumps(text)}"
        assert accepts(source, text) and not accepts(source, text + "a")


def test_names_of_one_letter_and_terminals_that_begin_with_an_underscore_are_known() -> None:
    source = "start: CNAME _NL CNAME\n_NL: CR? LF\n%import common (CNAME, CR, LF)"
    assert accepts(source, "a\nb1") and accepts(source, "long_name\r\n_")
    assert not accepts(source, "a b") and not accepts(source, "1\na")


@pytest.mark.parametrize(
    "source",
    [
        "start: <|im_start|>",
        "start: %json {}",
        "start: A\nA: ~/a/",
        'start: "a".."z"',
        'start: "\\n"i',
        "start: /a/i",
        "start: /(?=a)b/",
        "start: /^a/",
        "start: /(/",
        "%import common.NOTHING\nstart: NOTHING",
        "%declare X\nstart: X",
        '%ignore " "\nstart: "a"',
        "start: A\nA: /a/ & /b/",
    ],
)
def test_what_cannot_be_said_of_escaped_text_is_refused(source: str) -> None:
    with pytest.raises(Unenforceable):
        escaped_lark(source)


def test_the_input_of_a_call_is_held_to_its_grammar() -> None:
    tool = CallableTool(
        '{"name": "apply_patch", "arguments": ', {"type": "object"}, "tools[0].format.definition", PATCH
    )
    make = matchers(grammar(tools=[tool]))
    called = '<tool_call>\n{"name": "apply_patch", "arguments": %s}\n</tool_call>'
    for text in PATCHES:
        assert feed(make(), called % json.dumps({"input": text}, ensure_ascii=False)), text
    for text in NO_PATCHES:
        assert not feed(make(), called % json.dumps({"input": text}, ensure_ascii=False)), text
