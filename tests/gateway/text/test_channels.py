"""Replies in channels, as gpt-oss writes them, become thinking, content and calls as other models write them."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from engine.protocol import Delta, FinishReason, TokenLogprobs
from gateway.backends.text.calling_choice import calling_choices
from gateway.text.detokenizer import Detokenizer
from gateway.text.options import PLAIN, Argument, Rendering
from gateway.text.thinking import ThinkingText
from gateway.text.tokenizer import Tokenizer
from gateway.text.tools.formats import HERMES
from gateway.text.tools.tool import NO_PARAMETERS, Tool, ToolUse
from tests.gateway.text import vocabularies
from tests.gateway.text.tools import templates

NAMES = ("start", "channel", "message", "constrain", "end", "call", "return")
TOOLS = tuple(Tool(name, NO_PARAMETERS, name) for name in ("get_weather", "get_time"))
USE = ToolUse(TOOLS, frozenset(tool.name for tool in TOOLS))
USER = {"role": "user", "content": "Hot in Nice?"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    backend = vocabularies.byte_level().backend
    backend.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in NAMES])
    return Tokenizer(backend, templates.GPT_OSS)


def shown(tokenizer: Tokenizer, reply: str, size: int = 1, *, with_special: bool = False, follows: bool = False) -> str:
    """Return the text of a reply whose tokens come `size` at a time."""
    ids = tokenizer.encode_text(reply)
    detokenizer = Detokenizer(tokenizer, with_special=with_special, follows_prompt=follows)
    text = "".join(detokenizer.push(ids[at : at + size]) for at in range(0, len(ids), size))
    return text + detokenizer.finish()


def called(tokenizer: Tokenizer, reply: str, stop: tuple[str, ...] = ()) -> tuple[str, list[tuple[str, str]]]:
    """Return the content and the calls (name, arguments) of a reply that may call tools.

    A special token at the reply's end ends it, as one that stops a completion does; a reply without is cut off.
    """
    (choice,) = calling_choices(1, tokenizer, USE, stop, min_tokens=0, style=PLAIN)
    ids = tokenizer.encode_text(reply)
    ended = ids.pop() if ids[-1] in tokenizer.special_ids else None
    pieces = [choice.push(Delta("r", [each], number + 1)) for number, each in enumerate(ids)]
    reason: FinishReason = "length" if ended is None else "stop"
    pieces.append(choice.push(Delta("r", [], len(ids), finish_reason=reason, stop_token_id=ended)))
    content, calls = "", dict[int, list[str]]()
    for piece in pieces:
        content += piece.text if piece else ""
        for call in piece.calls if piece else ():
            name, arguments = calls.setdefault(call.index, ["", ""])
            calls[call.index] = [name + (call.name or ""), arguments + call.arguments]
    return content, [(name, arguments) for name, arguments in calls.values()]


def message(channel: str, content: str, to: str = "", *, is_first: bool = False) -> str:
    return f"{'' if is_first else '<|start|>assistant'}<|channel|>{channel}{to}<|message|>{content}"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_thinking_and_answer_are_written_as_by_models_that_think(tokenizer: Tokenizer, size: int) -> None:
    reply = message("analysis", "Is it 4?", is_first=True) + "<|end|>" + message("final", "It is 4 é.")
    assert shown(tokenizer, reply, size) == "<think>\nIs it 4?\n</think>\n\nIt is 4 é."
    assert tokenizer.thinks
    thinking = ThinkingText(is_open=False)
    parts = thinking.push(shown(tokenizer, reply)) + thinking.finish()
    assert parts == [("thinking", "Is it 4?"), ("text", "It is 4 é.")]


def test_thinking_goes_on_in_a_further_message_and_is_left_out_after_the_answer(tokenizer: Tokenizer) -> None:
    reply = "<|end|>".join(
        [
            message("analysis", "One.", is_first=True),
            message("analysis", "Two."),
            message("commentary", "I look."),
            message("analysis", "Three."),
            message("final", "Done."),
        ]
    )
    assert shown(tokenizer, reply) == "<think>\nOne.\nTwo.\n</think>\n\nI look.\n\nDone."


@pytest.mark.parametrize(
    "header",
    [
        "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
        "<|start|>assistant to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>",
        "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>",
        "<|start|>assistant<|channel|>analysis to=functions.get_weather code<|message|>\n",
        "<|start|>assistant<|channel|>commentary to=get_weather<|constrain|>json<|message|> ",
    ],
)
@pytest.mark.parametrize("end", ["<|call|>", "<|call|><|return|>", ""])
def test_a_message_to_a_function_is_a_call(tokenizer: Tokenizer, header: str, end: str) -> None:
    reply = message("analysis", "Ask.", is_first=True) + "<|end|>" + header + '{"city":"Nice"}' + end
    content, calls = called(tokenizer, reply)
    assert calls == [("get_weather", '{"city":"Nice"}')]
    assert content.strip() == "<think>\nAsk.\n</think>"


@pytest.mark.parametrize("space", ["", " "])
def test_a_reply_may_begin_with_the_recipient_of_a_call(tokenizer: Tokenizer, space: str) -> None:
    """The prompt ends with the header's role: a model that calls without thinking goes on with the recipient."""
    header = f"{space}to=functions.get_weather<|channel|>commentary json<|message|>"
    assert called(tokenizer, header + '{"city":"Nice"}<|call|>') == ("", [("get_weather", '{"city":"Nice"}')])
    for text in (" to be", " t", "to=", "{}"):  # nothing of it was a header after all
        assert shown(tokenizer, text) == text
        assert called(tokenizer, f"{text}<|return|>") == (text, [])


@pytest.mark.parametrize("end", ["<|call|>", "<|call|><|return|>", "<|end|>"])
def test_a_call_without_arguments_has_an_empty_object(tokenizer: Tokenizer, end: str) -> None:
    head = message("commentary", "", " to=functions.get_time", is_first=True)
    assert called(tokenizer, head + end) == ("", [("get_time", "{}")])
    assert called(tokenizer, head) == ("", [("get_time", "")])  # cut off: nobody knows what it would have asked for


@pytest.mark.parametrize("arguments", ['{"q": "say "hi"}', '{"n": 1', "hello", '{"a": "</tool_call>"}'])
def test_arguments_end_where_their_message_ends_however_wrong(tokenizer: Tokenizer, arguments: str) -> None:
    calls = [message("commentary", f"{arguments} \n", f" to=functions.{tool.name}") + "<|call|>" for tool in TOOLS]
    content, found = called(tokenizer, "".join(calls) + message("final", "Done.") + "<|return|>")
    assert found == [(tool.name, arguments) for tool in TOOLS]
    assert content.strip() == "Done."


def test_a_call_that_is_quoted_is_none(tokenizer: Tokenizer) -> None:
    quoted = HERMES.write([("get_weather", "{}")])
    for channel in ("final", "commentary", "analysis"):
        content, calls = called(tokenizer, message(channel, f"It says {quoted}", is_first=True) + "<|return|>")
        assert calls == []
        assert quoted in content
    assert called(tokenizer, f"{quoted}<|return|>") == ("", [("get_weather", "{}")])  # as a grammar has it


@pytest.mark.parametrize("size", [1, 1000])
def test_the_end_of_thinking_within_thinking_ends_nothing(tokenizer: Tokenizer, size: int) -> None:
    reply = message("analysis", "They ask of </think> tags </th", is_first=True) + "<|end|>" + message("final", "Ok.")
    text = shown(tokenizer, reply, size)
    assert text == "<think>\nThey ask of <\\/think> tags </th\n</think>\n\nOk."


def test_stop_strings_are_looked_for_in_what_the_model_wrote_alone(tokenizer: Tokenizer) -> None:
    reply = message("analysis", "Hm.", is_first=True) + "<|end|>" + message("final", "One\n\nTwo")
    stopped = "<think>\nHm.\n</think>\n\nOne"
    assert called(tokenizer, reply, ("\n\n",)) == (stopped, [])
    detokenizer = Detokenizer(tokenizer, ("\n\n",))
    assert detokenizer.push(tokenizer.encode_text(reply)) + detokenizer.finish() == stopped


def test_log_probabilities_are_of_content_alone(tokenizer: Tokenizer) -> None:
    reply = message("analysis", "Hm.", is_first=True) + message("commentary", '{"n": 1}', " to=functions.get_time")
    (choice,) = calling_choices(1, tokenizer, USE, (), min_tokens=0, style=PLAIN)
    ids = tokenizer.encode_text(f"{reply}<|call|>")
    scores = [TokenLogprobs(-1.0, 1, [])]
    pieces = [choice.push(Delta("r", [each], number, logprobs=scores)) for number, each in enumerate(ids, 1)]
    pieces.append(choice.push(Delta("r", [], len(ids), finish_reason="stop")))
    shown_ids = [token.token_id for piece in pieces if piece for token in piece.tokens]
    assert [tokenizer.decode([each]) for each in shown_ids if each not in tokenizer.special_ids] == ["H", "m", "."]


def test_turns_that_a_model_invents_are_left_out(tokenizer: Tokenizer) -> None:
    reply = message("final", "Hi.", is_first=True) + "<|end|><|start|>user<|message|>And?<|end|>"
    assert shown(tokenizer, reply) == "Hi."
    assert shown(tokenizer, message("final", "Hi.", " to=user", is_first=True)) == "Hi."


def test_a_header_without_an_end_takes_no_memory(tokenizer: Tokenizer) -> None:
    detokenizer = Detokenizer(tokenizer)
    ids = tokenizer.encode_text("<|channel|>x")
    tracemalloc.start()
    try:
        assert not any(detokenizer.push(ids) for _ in range(50_000))
        kept = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/gateway/text/*")])
        sizes = [line.size for line in kept.statistics("lineno")]  # of this code: other threads allocate, too
        assert sum(sizes) < 100_000
    finally:
        tracemalloc.stop()
    assert detokenizer.push(tokenizer.encode_text(message("final", "Ok."))) == "Ok."


def test_calls_that_follow_one_another_are_read_in_order(tokenizer: Tokenizer) -> None:
    calls = [message("commentary", '{"n": 1}', f" to=functions.{tool.name}") + "<|call|>" for tool in TOOLS]
    assert called(tokenizer, "".join(calls))[1] == [(tool.name, '{"n": 1}') for tool in TOOLS]


def test_a_call_that_is_cut_off_has_the_arguments_so_far(tokenizer: Tokenizer) -> None:
    reply = message("commentary", '{"city": "Ni', " to=functions.get_weather", is_first=True)
    assert called(tokenizer, reply) == ("", [("get_weather", '{"city": "Ni')])


def test_messages_to_others_than_functions_are_left_out(tokenizer: Tokenizer) -> None:
    reply = message("commentary", '{"query": "x"}', " to=browser.search", is_first=True) + "<|call|>"
    assert shown(tokenizer, reply + message("final", "No.")) == "No."
    assert called(tokenizer, reply) == ("", [])


def test_a_call_of_no_known_tool_is_content(tokenizer: Tokenizer) -> None:
    reply = message("commentary", "{}", " to=functions.launch", is_first=True) + "<|call|>"
    assert called(tokenizer, reply) == (HERMES.write([("launch", "{}")]), [])


def test_a_reply_without_channels_stays_as_it_is(tokenizer: Tokenizer) -> None:
    assert shown(tokenizer, '{"answer": 4}<|return|>') == '{"answer": 4}'


def test_special_tokens_that_are_asked_for_stay_and_a_text_goes_on_as_text(tokenizer: Tokenizer) -> None:
    reply = message("analysis", "Why?", is_first=True)
    assert shown(tokenizer, reply, with_special=True) == reply
    assert shown(tokenizer, " to=x", follows=True) == " to=x"
    assert shown(tokenizer, "and on<|end|>" + message("final", "So."), follows=True) == "and on\n\nSo."


def test_other_vocabularies_have_no_channels() -> None:
    plain = vocabularies.byte_level()
    assert plain.channels is None
    assert not plain.thinks


@settings(deadline=None, max_examples=300)
@given(
    pieces=st.lists(st.sampled_from([f"<|{name}|>" for name in NAMES] + ["final", "analysis", " to=functions.x", "é "]))
)
def test_no_reply_however_garbled_loses_text_outside_headers(tokenizer: Tokenizer, pieces: Sequence[str]) -> None:
    """Text after a `<|message|>` without a recipient in its header is shown, unless it is thinking after an answer."""
    whole = "".join(pieces)
    assert shown(tokenizer, whole) == shown(tokenizer, whole, 1000)
    assert shown(tokenizer, f"{whole}<|start|><|channel|>final<|message|>end").endswith("end")


def answered(*names: str, said: str = "") -> list[dict[str, Any]]:
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": {"n": 1}}} for name in names]
    results = [{"role": "tool", "content": f"of {name}", "tool_call_id": name} for name in names]
    return [USER, {"role": "assistant", "content": said, "tool_calls": calls}, *results]


def test_each_call_of_an_earlier_turn_is_followed_by_its_result(tokenizer: Tokenizer) -> None:
    rendered = tokenizer.render_chat(answered("get_weather", "get_time", said="<think>\nAsk.\n</think>\n\n"), TOOLS)
    assert rendered == (
        "<|start|>system<|message|>Reasoning: medium<|end|>"
        "<|start|>developer<|message|> get_weather get_time<|end|>"
        "<|start|>user<|message|>Hot in Nice?<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Ask.<|end|>"
        '<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{"n": 1}<|call|>'
        '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"of get_weather"<|end|>'
        '<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{"n": 1}<|call|>'
        '<|start|>functions.get_time to=assistant<|channel|>commentary<|message|>"of get_time"<|end|>'
        "<|start|>assistant"
    )


def test_thinking_before_an_earlier_answer_is_not_shown_to_the_model(tokenizer: Tokenizer) -> None:
    given = [USER, {"role": "assistant", "content": "<think>\nWarm?\n</think>\n\nYes.", "reasoning_content": "x"}, USER]
    assert "Warm?" not in tokenizer.render_chat(given)
    assert "<|channel|>final<|message|>Yes.<|end|>" in tokenizer.render_chat(given)


def test_thinking_and_a_remark_before_a_call_are_shown_together(tokenizer: Tokenizer) -> None:
    """The template refuses content and thinking of one call."""
    history = answered("get_time", said="I look.")
    history[1]["reasoning_content"] = "Ask."
    assert "<|channel|>analysis<|message|>Ask.\n\nI look.<|end|>" in tokenizer.render_chat(history, TOOLS)


def test_results_belong_to_the_calls_right_before_them(tokenizer: Tokenizer) -> None:
    """Clients may give calls of several turns one id."""
    history = [*answered("get_time", "get_weather"), *answered("get_time")]
    history[2]["content"], history[-1]["content"] = "NOON", "NIGHT"
    rendered = tokenizer.render_chat(history, TOOLS)
    assert 0 < rendered.index('"NOON"') < rendered.index('"of get_weather"') < rendered.index('"NIGHT"')


def test_a_message_that_goes_on_keeps_its_thinking(tokenizer: Tokenizer) -> None:
    messages = [USER, {"role": "assistant", "content": "<think>\nHm"}]
    goes_on = Rendering(add_generation_prompt=False, continue_final_message=True)
    assert tokenizer.render_chat(messages, rendering=goes_on).endswith("<think>\nHm")


def test_later_system_messages_and_further_efforts_reach_the_model(tokenizer: Tokenizer) -> None:
    late = [{"role": "system", "content": "A"}, USER, {"role": "system", "content": "SECOND"}]
    effort = Rendering(arguments=(Argument("reasoning_effort", "xhigh", "reasoning_effort"),))
    rendered = tokenizer.render_chat(late, rendering=effort)
    assert "SECOND" in rendered
    assert "Reasoning: high" in rendered


def test_the_tokens_are_those_of_the_vocabulary(tokenizer: Tokenizer) -> None:
    assert tokenizer.channels is not None
    ids = msgspec.structs.astuple(tokenizer.channels)
    assert [tokenizer.decode([each], with_special=True) for each in ids] == [f"<|{name}|>" for name in NAMES]
