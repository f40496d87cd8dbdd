"""However a text with tool calls comes, its content and its calls are the same."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.text.tools.arguments import text_arguments
from gateway.text.tools.content_text import MAX_HELD_SPACE, ContentText
from gateway.text.tools.formats import GLM, GRANITE, HERMES, LLAMA, MINISTRAL, MISTRAL, QWEN_CODER, CallFormat
from gateway.text.tools.parser import CallParser

FORMATS = {"hermes": HERMES, "llama": LLAMA, "mistral": MISTRAL, "granite": GRANITE, "glm": GLM, "ministral": MINISTRAL}
NAMES = ("get", "get_weather", "a-1")
TEXTS = dict.fromkeys(NAMES, ("said", "x"))
"""The arguments of each tool that are text, where a format has each argument on its own."""
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(st.sampled_from('a"\\{}[]é🦜 \n<>/'), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('ab"{}\\', max_size=3), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.sampled_from(["name", "x", '"}']), VALUES, max_size=3).map(json.dumps)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), ARGUMENTS), min_size=1, max_size=3)
CONTENT = st.text(st.sampled_from('ab <tol_c>[TOOL]{"name\n'), max_size=20).map(str.rstrip)
SIZES = st.lists(st.integers(0, 5), max_size=40)


class Read(msgspec.Struct):
    """The output of a parser: the content, and the name and the arguments of each call."""

    content: str
    calls: list[tuple[str, str]]


def read(form: CallFormat, text: str, sizes: list[int], *, must_call: bool = False) -> Read:
    """Return the output of a parser for a text in pieces of these sizes, then character by character.

    must_call: True: the text has to be a call.
    """
    parser = CallParser(form, TEXTS, ContentText(), must_call=must_call)
    pieces = []
    for size in sizes:
        pieces.append(text[:size])
        text = text[size:]
    found = Read("", [])
    for parsed in [*map(parser.push, [*pieces, *text]), parser.finish()]:
        found.content += parsed.content
        for delta in parsed.calls:
            if delta.name is not None:
                assert delta.index == len(found.calls)
                found.calls.append((delta.name, ""))
            name, arguments = found.calls[delta.index]
            found.calls[delta.index] = (name, arguments + delta.arguments)
    return found


@pytest.mark.parametrize("name", FORMATS)
@given(calls=CALLS, content=CONTENT, sizes=SIZES)
@settings(deadline=None, max_examples=40)
def test_written_calls_and_content_are_read(name: str, calls: list[tuple[str, str]], content: str, sizes: list[int]):
    form = FORMATS[name]
    if not form.parallel:
        calls = calls[:1]
    said = content if form.trigger else ""
    assert read(form, said + form.write(calls), sizes) == Read(said, calls)
    assert read(form, form.write(calls), sizes, must_call=True) == Read("", calls)


@pytest.mark.parametrize("name", FORMATS)
@given(calls=CALLS, content=CONTENT, cut=st.integers(0, 200), sizes=SIZES)
@settings(deadline=None, max_examples=40)
def test_any_text_is_read_alike_in_any_pieces(name: str, calls, content: str, cut: int, sizes: list[int]):
    text = (content + FORMATS[name].write(calls) + content)[:cut]
    assert read(FORMATS[name], text, sizes) == read(FORMATS[name], text, [len(text)])


@pytest.mark.parametrize("name", FORMATS)
@given(text=CONTENT.filter(lambda text: not text.endswith(("<tool_call>", "[TOOL_CALLS]"))))
@settings(deadline=None, max_examples=40)
def test_text_without_a_call_is_content(name: str, text: str):
    assert read(FORMATS[name], text, []) == Read(text, [])


def test_a_call_to_nobody_is_content():
    text = HERMES.write([("get_money", "{}")])
    assert read(HERMES, text, []) == Read(text, [])


@pytest.mark.parametrize("name", FORMATS)
def test_a_call_that_is_cut_off_has_the_part_that_was_written(name: str):
    form = FORMATS[name]
    head, arguments = f"{form.trigger}{form.opening}{form.head('get')}", '{"x": "}", "y": {"z": 1}}'
    for size in range(len(head) + 2):
        calls = [("get", "{")] if size > len(head) else []
        assert read(form, (head + arguments)[:size], [], must_call=True) == Read("", calls)
    for size in range(1, len(arguments) + 1):
        assert read(form, head + arguments[:size], []) == Read("", [("get", arguments[:size])])
    for size in range(len(form.end)):
        assert read(form, head + arguments + form.end[:size], []) == Read("", [("get", arguments)])


def test_white_space_between_content_and_a_call_is_of_neither():
    text = f"Let me see. \n\n{HERMES.write([('get', '{}')])}"
    assert read(HERMES, text, []) == Read("Let me see.", [("get", "{}")])
    assert read(HERMES, "Let me see. \n", []) == Read("Let me see. \n", [])
    assert read(HERMES, f"\n{HERMES.write([('get', '{}')])}", []) == Read("", [("get", "{}")])


def test_white_space_that_does_not_end_is_shown():
    parser, shown = CallParser(HERMES, TEXTS, ContentText()), ""
    for _ in range(100):
        shown += parser.push(" \n" * 8).content
    assert len(shown) == 1600 - MAX_HELD_SPACE
    called = parser.push(HERMES.write([("get", "{}")]))
    assert called.content == "" and called.calls[0].name == "get"


def test_letters_of_a_trigger_that_is_a_token_begin_no_call():
    written = MISTRAL.write([("get", "{}")])
    parser = CallParser(MISTRAL, TEXTS, ContentText(), is_trigger_token=True)
    spelled = [parser.push(char) for char in written]
    assert ("".join(parsed.content for parsed in spelled), [parsed.calls for parsed in spelled if parsed.calls]) == (
        written,
        [],
    )
    assert parser.push(MISTRAL.trigger, is_trigger=True).content == ""
    assert parser.push(written.removeprefix(MISTRAL.trigger)).calls[0].name == "get"


LINES = st.text(st.sampled_from('a"\\\n<>/=é🦜pram'), max_size=12)
SINGLE = st.dictionaries(st.sampled_from(["said", "x", "n", 'b"']), VALUES, max_size=4)


def written_singly(name: str, arguments: dict[str, object]) -> str:
    """Return a call as Qwen3-Coder writes it: texts as they are, all other values as JSON."""
    shown = {key: value if key in TEXTS[name] else json.dumps(value) for key, value in arguments.items()}
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in shown.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


@given(
    calls=st.lists(st.tuples(st.sampled_from(NAMES), SINGLE, LINES, LINES), min_size=1, max_size=3),
    content=CONTENT,
    sizes=SIZES,
)
@settings(deadline=None, max_examples=200)
def test_arguments_that_are_written_one_by_one_become_an_object(calls, content: str, sizes: list[int]):
    made = [
        (name, {key: {"said": said, "x": x}.get(key, value) for key, value in others.items()})
        for name, others, said, x in calls
    ]
    text = content + "\n".join(written_singly(name, arguments) for name, arguments in made)
    found = read(QWEN_CODER, text, sizes)
    assert (found.content, [name for name, _ in found.calls]) == (content, [name for name, _ in made])
    assert [json.loads(arguments) for _, arguments in found.calls] == [arguments for _, arguments in made]
    cut = text[: sum(sizes)]
    assert read(QWEN_CODER, cut, sizes) == read(QWEN_CODER, cut, [len(cut)])


@pytest.mark.parametrize(
    ("value", "argument"),
    [
        ("3", 3),
        (" [1, 2] ", [1, 2]),
        ("True", True),
        ("None", None),
        ('"3"', "3"),
        ("NaN", "NaN"),
        ("two words", "two words"),
        ('{"a": tru', '{"a": tru'),
        ("", ""),
        ("1e400", float("inf")),
        ("9" * 4000, int("9" * 4000)),
    ],
)
def test_a_value_that_is_no_text_is_json_and_if_it_is_none_a_string(value: str, argument: object):
    written = f"<tool_call>\n<function=get>\n<parameter=n>\n{value}\n</parameter>\n</function>\n</tool_call>"
    (called,) = read(QWEN_CODER, written, []).calls
    assert json.loads(called[1]) == {"n": argument}


def test_arguments_that_break_off_or_off_the_form_end_there():
    begun = "<tool_call>\n<function=get>\n<parameter=x>\na\nb"
    assert read(QWEN_CODER, begun, []) == Read("", [("get", '{"x": "a\\nb')])
    assert read(QWEN_CODER, f"{begun}\n</param", []) == Read("", [("get", '{"x": "a\\nb')])
    whole = f"{begun}\n</parameter>\n"
    assert read(QWEN_CODER, f"{whole}<parameter=n>\n12", []) == Read("", [("get", '{"x": "a\\nb", "n": ')])
    assert read(QWEN_CODER, f"{whole}So.", []) == Read("So.", [("get", '{"x": "a\\nb"}')])
    assert read(QWEN_CODER, "<tool_call>\n<function=get>\nSo.", []) == Read("<tool_call>\n<function=get>\nSo.", [])


def test_texts_are_strings_that_nothing_but_an_enum_holds():
    schemas = {
        "any": {"type": "string", "description": "d"},
        "of": {"type": "string", "enum": ["a", "b c"]},
        "ends": {"type": "string", "enum": ["a\n</parameter>"]},
        "broken": {"type": "string", "enum": ["a\n</parameter>\n"]},
        "dated": {"type": "string", "format": "date"},
        "short": {"type": "string", "maxLength": 3},
        "either": {"type": ["string", "null"]},
        "referred": {"$ref": "#/$defs/s"},
        "number": {"type": "number"},
        "whatever": True,
    }
    pieces = QWEN_CODER.argument_pieces
    assert pieces is not None
    assert text_arguments({"type": "object", "properties": schemas}, pieces) == ["any", "of"]
    assert text_arguments({"type": "object"}, pieces) == text_arguments({"properties": []}, pieces) == []


def test_a_value_that_is_nested_too_deeply_to_be_checked_is_passed_on():
    value = "[" * 3000 + "]" * 3000
    written = f"<tool_call>\n<function=get>\n<parameter=n>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert read(QWEN_CODER, written, []).calls == [("get", f'{{"n": {value}}}')]
