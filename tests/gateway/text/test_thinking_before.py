"""A grammar holds what follows the thinking of a model that may think, by its prompt's end and its vocabulary."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken

from engine.protocol import Delta, Thinking
from gateway.backends.text.calling_choice import CallingChoice, calling_choices
from gateway.backends.text.choices import Choice
from gateway.text.options import PLAIN, USUAL, Argument, Rendering
from gateway.text.thinking import ThinkingText
from gateway.text.tokenizer import Tokenizer
from gateway.text.tools.tool import NO_PARAMETERS, Tool, ToolUse
from tests.gateway.text import vocabularies
from tests.gateway.text.tools import templates

CHANNEL_MARKS = ("start", "channel", "message", "constrain", "end", "call", "return")
USER = {"role": "user", "content": "Why?"}
OPENS = templates.PLAIN.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
TOOL = Tool("f", NO_PARAMETERS, "f")


def tokenizer_of(template: str, *marks: str) -> Tokenizer:
    """Return a tokenizer with marks as tokens of their own, which are text."""
    backend = vocabularies.byte_level().backend
    backend.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return Tokenizer(backend, template)


def gpt_oss() -> Tokenizer:
    backend = vocabularies.byte_level().backend
    backend.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in CHANNEL_MARKS])
    return Tokenizer(backend, templates.GPT_OSS)


def before(tokenizer: Tokenizer, rendering: Rendering = USUAL, **last: Any) -> Thinking | None:
    """Return the thinking before an answer. last: a last message of the assistant's; without any the user asks."""
    messages = [USER, {"role": "assistant", **last}] if last else [USER]
    prompt = tokenizer.render_chat(messages, (), rendering)
    prompt_ids = tokenizer.encode_text(prompt, add_special_tokens=False)
    return tokenizer.thinking_before(prompt_ids, is_new_turn=rendering.add_generation_prompt)


def enabling(*, enable: bool) -> Rendering:
    return Rendering(arguments=(Argument("enable_thinking", enable, "enable_thinking"),))


def test_a_model_may_think_or_not_unless_its_prompt_says_so() -> None:
    qwen = tokenizer_of(templates.QWEN_3, "<think>", "</think>")
    begin, end = (qwen.backend.token_to_id(mark) for mark in ("<think>", "</think>"))
    assert before(qwen) == before(qwen, enabling(enable=True)) == Thinking(end=((end,),), begin=begin)
    assert before(qwen, enabling(enable=False)) is None
    opened = tokenizer_of(OPENS + "{# <think> #}", "<think>", "</think>")
    assert before(opened) == Thinking(end=((end,),))


def test_an_answer_that_goes_on_with_a_text_begins_with_no_thinking() -> None:
    continues = Rendering(add_generation_prompt=False, continue_final_message=True)
    qwen = tokenizer_of(templates.QWEN_3, "<think>", "</think>")
    assert before(qwen, continues, content="Because") is None
    assert before(gpt_oss(), continues, content="Because") is None


def test_a_model_that_answers_in_channels_thinks_until_the_header_of_its_answer_ends() -> None:
    tokenizer = gpt_oss()
    backend, thinking = tokenizer.backend, before(tokenizer)
    assert thinking is not None and thinking.begin is None
    final = [backend.token_to_id("<|channel|>"), *backend.encode("final", add_special_tokens=False).ids]
    assert thinking.end == (tuple(final), (backend.token_to_id("<|message|>"),))
    before_call = tokenizer.thinking_before([], is_new_turn=True, is_before_call=True)
    assert before_call == Thinking(end=((backend.token_to_id("<|end|>"),),))


@pytest.mark.parametrize("marks", [(), ("<think>",)])
def test_a_model_without_a_token_for_the_end_of_thinking_is_held_from_the_beginning(marks: tuple[str, ...]) -> None:
    assert before(tokenizer_of(templates.QWEN_3, *marks)) is None


def test_a_model_that_knows_no_thinking_has_none_whatever_its_vocabulary() -> None:
    assert before(tokenizer_of(templates.QWEN, "<think>", "</think>")) is None


@pytest.mark.parametrize("special", [False, True])
def test_the_tokens_around_thinking_are_text_whether_special_or_not(special: bool) -> None:
    backend = vocabularies.byte_level().backend
    added = [AddedToken(mark, special=special, normalized=False) for mark in ("<think>", "</think>")]
    (backend.add_special_tokens if special else backend.add_tokens)(added)
    said = "<think>Why?</think>four"
    ids = backend.encode(said, add_special_tokens=False).ids
    for template, shown in ((templates.QWEN_3, said), (templates.QWEN, "Why?four" if special else said)):
        choice = Choice(0, Tokenizer(backend, template), (), min_tokens=0)
        pieces = [choice.push(Delta("r", ids, len(ids))), choice.end("stop")]
        assert "".join(piece.text for piece in pieces if piece is not None) == shown


@pytest.mark.parametrize("must_call", [False, True])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_nothing_within_thinking_is_a_call(must_call: bool, size: int) -> None:
    tokenizer = tokenizer_of(templates.QWEN_3, "<think>", "</think>")
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    thought = f"<think>\nI could write {call}, é.\n</think>"
    use = ToolUse((TOOL,), frozenset({"f"}), must_call=must_call)
    (choice,) = calling_choices(1, tokenizer, use, (), min_tokens=0, style=PLAIN, thinking=before(tokenizer))
    ids = tokenizer.encode_text(f"{thought}\n\n{call}", add_special_tokens=False)
    parts = [ids[begin : begin + size] for begin in range(0, len(ids), size)]
    pieces = [choice.push(Delta("r", part, number)) for number, part in enumerate(parts)]
    pieces.append(choice.end("stop"))
    shown = [piece for piece in pieces if piece is not None]
    assert "".join(piece.text for piece in shown) == thought
    calls = [delta for piece in shown for delta in piece.calls]
    assert [delta.name for delta in calls if delta.name] == ["f"]
    assert "".join(delta.arguments for delta in calls) == "{}"


CALL_HEADER = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
WRITTEN = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("first", "thought"),
    [
        ("<|channel|>analysis<|message|>Why?", "Why?"),
        (f'{CALL_HEADER}{{"not": "held"}}', '{"not": "held"}'),
        ("<|channel|>final<|message|>Four.", "Four."),
        ("<|channel|>commentary<|message|>Now f.", "Now f."),
        (WRITTEN, WRITTEN),
    ],
)
def test_all_messages_in_channels_before_a_call_that_has_to_be_made_are_thinking(first: str, thought: str) -> None:
    tokenizer = gpt_oss()
    use = ToolUse((TOOL,), frozenset({"f"}), must_call=True)
    thinking = tokenizer.thinking_before([], is_new_turn=True, is_before_call=True)
    (choice,) = calling_choices(1, tokenizer, use, (), min_tokens=0, style=PLAIN, thinking=thinking)
    ids = tokenizer.encode_text(f"{first}<|end|><|start|>assistant{CALL_HEADER}{{}}", add_special_tokens=False)
    pieces = [*(choice.push(Delta("r", [each], number)) for number, each in enumerate(ids)), choice.end("stop")]
    shown = [piece for piece in pieces if piece is not None]
    assert "".join(piece.text for piece in shown).strip() == f"<think>\n{thought}\n</think>"
    calls = [delta for piece in shown for delta in piece.calls]
    assert [delta.name for delta in calls if delta.name] == ["f"]
    assert "".join(delta.arguments for delta in calls) == "{}"


def test_a_model_that_does_not_think_calls_at_once() -> None:
    tokenizer = tokenizer_of(templates.QWEN_3, "<think>", "</think>")
    use = ToolUse((TOOL,), frozenset({"f"}))
    (choice,) = calling_choices(1, tokenizer, use, (), min_tokens=0, style=PLAIN, thinking=before(tokenizer))
    written = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    piece = choice.push(Delta("r", tokenizer.encode_text(written, add_special_tokens=False), 1))
    assert piece is not None and [delta.name for delta in piece.calls if delta.name] == ["f"]


@pytest.mark.parametrize("tools", [None, ToolUse((TOOL,), frozenset({"f"}))])
@pytest.mark.parametrize("size", [1, 2, 1000])
@pytest.mark.parametrize("stop", [(), ("never",)])
def test_letters_of_the_end_within_thinking_do_not_end_it(
    tools: ToolUse | None, size: int, stop: tuple[str, ...]
) -> None:
    tokenizer = tokenizer_of(templates.QWEN_3, "<think>", "</think>")
    spelled = ["<think>", "A ", "</", "think", ">", " and <", "/th", "</think>", "{}"]
    ids = [token_id for part in spelled for token_id in tokenizer.encode_text(part, add_special_tokens=False)]
    thinking = before(tokenizer)
    choice: Choice | CallingChoice
    if tools is None:
        choice = Choice(0, tokenizer, stop, min_tokens=0, thinking=thinking)
    else:
        (choice,) = calling_choices(1, tokenizer, tools, stop, min_tokens=0, style=PLAIN, thinking=thinking)
    parts = [ids[begin : begin + size] for begin in range(0, len(ids), size)]
    pieces = [choice.push(Delta("r", part, number)) for number, part in enumerate(parts)]
    text = "".join(piece.text for piece in [*pieces, choice.end("stop")] if piece is not None)
    assert text == "<think>A <\\/think> and </th</think>{}"
    divided = ThinkingText(is_open=False)
    assert "".join(part for kind, part in divided.push(text) + divided.finish() if kind == "text") == "{}"
