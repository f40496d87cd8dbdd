"""Calls in replies, whole and streamed, as the official client reads them. The engine here repeats its prompt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.gateway.conftest import House

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("f", "g")]
FUNCTIONS = [tool["function"] for tool in TOOLS]
ARGUMENTS = '{"a": "}<é\\"", "b": [{}]}'
FIRST = f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
END = "~"
END_ID = ord(END) - ord("!")
"""The token id of END in a byte-level alphabet, in which the printable characters come first."""


@pytest.fixture
def client(house: House) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key=house.acme.key, max_retries=0) as client:
        yield client


def ask(client: openai.OpenAI, says: str, **fields: Any) -> Any:
    """Return a completion whose text is `says`: its last character ends it, where it ends by itself."""
    asked = {"tools": TOOLS, "max_tokens": 300, "extra_body": {"stop_token_ids": [END_ID]}, **fields}
    if "functions" in fields:
        del asked["tools"]
    return client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": says + END}], **asked)


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


def test_a_call_is_told_from_what_was_said(client: openai.OpenAI):
    reply: ChatCompletion = ask(client, f"Let me see.\n{FIRST}\n{SECOND}")
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert calls_of(choice.message) == [("f", ARGUMENTS), ("g", "{}")]
    assert choice.message.refusal is None and choice.message.annotations == []
    ids = [call.id for call in choice.message.tool_calls or ()]
    assert len(set(ids)) == 2 and all(each.startswith("call_") and len(each) == 29 for each in ids)
    assert ask(client, FIRST).choices[0].message.content is None


def test_a_reply_without_a_call_is_an_ordinary_reply(client: openai.OpenAI):
    reply = ask(client, "Let me see. <tool_call")
    assert reply.choices[0].message.content == "Let me see. <tool_call"
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "says", [f"Let me see.\n{FIRST}\n{SECOND}", FIRST, "Nothing.", f"{FIRST}\n", "a <tool_call>\n{"]
)
@pytest.mark.parametrize("num_choices", [1, 2])
def test_streamed_calls_equal_those_of_a_whole_reply(client: openai.OpenAI, says: str, num_choices: int):
    whole = ask(client, says, n=num_choices)
    with client.chat.completions.stream(
        model="tiny",
        messages=[{"role": "user", "content": says + END}],
        tools=TOOLS,  # type: ignore[arg-type]
        n=num_choices,
        max_tokens=300,
        extra_body={"stop_token_ids": [END_ID]},
    ) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion()
    for mine, theirs in zip(streamed.choices, whole.choices, strict=True):
        assert (mine.finish_reason, mine.message.content) == (theirs.finish_reason, theirs.message.content)
        assert calls_of(mine.message) == calls_of(theirs.message)


def test_a_stream_begins_a_call_by_its_name_and_goes_on_by_its_arguments(client: openai.OpenAI):
    chunks = list(ask(client, f"So.\n{FIRST}\n{SECOND}", stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert (deltas[0].role, deltas[0].content, deltas[0].tool_calls) == ("assistant", None, None)
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    begun = [(call.index, call.type, call.function.name, call.function.arguments) for call in calls if call.id]
    assert begun == [(0, "function", "f", ""), (1, "function", "g", "")]
    assert all(call.type is None and call.function.name is None for call in calls if not call.id)
    assert len([call for call in calls if call.index == 0]) > 5
    assert "".join(call.function.arguments for call in calls if call.index == 0) == ARGUMENTS
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_functions_are_answered_as_they_were(client: openai.OpenAI, stream: bool):
    reply = ask(client, FIRST, functions=FUNCTIONS, stream=stream)
    if stream:
        chunks = [chunk.choices[0] for chunk in reply]
        called = [chunk.delta.function_call for chunk in chunks if chunk.delta.function_call]
        assert (called[0].name, called[0].arguments) == ("f", "")
        assert "".join(call.arguments for call in called) == ARGUMENTS
        assert chunks[-1].finish_reason == "function_call"
    else:
        (choice,) = reply.choices
        assert (choice.message.function_call.name, choice.message.function_call.arguments) == ("f", ARGUMENTS)
        assert choice.message.content is None and choice.message.tool_calls is None
        assert choice.finish_reason == "function_call"


def test_a_named_tool_ends_with_stop_as_openai_has_it(client: openai.OpenAI):
    named = ask(client, FIRST, tool_choice={"type": "function", "function": {"name": "f"}})
    assert named.choices[0].finish_reason == "stop" and calls_of(named.choices[0].message) == [("f", ARGUMENTS)]
    named = ask(client, FIRST, functions=FUNCTIONS, function_call={"name": "f"})
    assert named.choices[0].finish_reason == "stop" and named.choices[0].message.function_call.name == "f"


def test_a_call_that_is_cut_off_shows_what_there_is_of_it(client: openai.OpenAI):
    (choice,) = ask(client, FIRST, max_tokens=len(FIRST) - 30).choices
    assert choice.finish_reason == "length"
    ((name, arguments),) = calls_of(choice.message)
    assert name == "f" and arguments and ARGUMENTS.startswith(arguments) and arguments != ARGUMENTS


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_had_to_come_and_was_cut_off_before_its_name_is_no_text(client: openai.OpenAI, stream: bool):
    reply = ask(client, FIRST, tool_choice="required", max_tokens=1, stream=stream)
    if stream:
        assert all(chunk.choices[0].delta.content is None for chunk in reply)
    else:
        (choice,) = reply.choices
        assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (None, None, "length")


def test_stop_strings_end_what_is_said_and_never_a_call(client: openai.OpenAI):
    said = ask(client, f"One. Two.\n{FIRST}", stop="Two").choices[0]
    assert (said.message.content, said.message.tool_calls, said.finish_reason) == ("One. ", None, "stop")
    for stop in ("<", "tool", "}", '"name"', ARGUMENTS[3:9]):
        called = ask(client, f"One.\n{FIRST}", stop=stop).choices[0]
        assert (called.message.content, calls_of(called.message)) == ("One.", [("f", ARGUMENTS)]), stop
        assert called.finish_reason == "tool_calls"


def test_a_stop_string_of_white_space_is_found_at_once(client: openai.OpenAI):
    for says in ("Hello\n\nAnd more.", f"Hello\n\n{FIRST}"):
        reply = ask(client, says, stop="\n\n")
        assert (reply.choices[0].message.content, reply.choices[0].message.tool_calls) == ("Hello", None)
        assert reply.choices[0].finish_reason == "stop"
        assert reply.usage.completion_tokens == ask(client, "Hello\n", max_tokens=300).usage.completion_tokens


def test_log_probabilities_are_those_of_the_content(client: openai.OpenAI):
    whole = ask(client, f"One two.\n{FIRST}", logprobs=True).choices[0]
    assert "".join(token.token for token in whole.logprobs.content) == "One two."
    chunks = [chunk.choices[0] for chunk in ask(client, f"One two.\n{FIRST}", logprobs=True, stream=True)]
    tokens = [token for chunk in chunks if chunk.logprobs for token in chunk.logprobs.content]
    assert tokens == whole.logprobs.content
    assert ask(client, FIRST, logprobs=True).choices[0].logprobs.content == []
    plain = ask(client, "One two.", logprobs=True).choices[0]
    assert "".join(token.token for token in plain.logprobs.content) == "One two."


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids_are_those_of_content_and_calls(client: openai.OpenAI, house: House, stream: bool):
    extra = {"stop_token_ids": [END_ID], "return_token_ids": True}
    reply = ask(client, f"One.\n{FIRST}", stream=stream, extra_body=extra)
    choices = [chunk.choices[0] for chunk in reply] if stream else reply.choices
    ids = [token_id for choice in choices for token_id in getattr(choice, "token_ids", None) or ()]
    text = httpx.post(
        f"{house.url}/detokenize",
        json={"model": "tiny", "tokens": ids},
        headers={"authorization": f"Bearer {house.acme.key}"},
    )
    assert text.json()["prompt"] == f"One.\n{FIRST}{END}", "with the token that ended it"
    usage = ask(client, f"One.\n{FIRST}").usage
    assert (len(ids), ids[-1]) == (usage.completion_tokens, END_ID)
    extra["include_stop_str_in_output"] = True
    stopped = ask(client, f"One. Two. {FIRST}", stop="Two", extra_body=extra).choices[0]
    assert (stopped.message.content, stopped.message.tool_calls) == ("One. Two", None)
    assert len(stopped.token_ids) == ask(client, "One. Two", max_tokens=300).usage.completion_tokens - 1


def test_there_are_as_many_token_ids_as_are_billed_however_a_reply_ends(client: openai.OpenAI):
    extra = {"stop_token_ids": [END_ID], "return_token_ids": True}
    for says, fields in (
        (FIRST, {"max_tokens": 9}),
        (f"One. Two. {FIRST}", {"stop": "Tw", "n": 2}),
        ("One. Two.", {"stop": "o."}),
        ("One.", {"stop": f".{END}"}),
    ):
        reply = ask(client, says, extra_body=extra, **fields)
        assert sum(len(choice.token_ids) for choice in reply.choices) == reply.usage.completion_tokens, (says, fields)


def test_calls_cost_what_their_tokens_do(client: openai.OpenAI):
    usage = ask(client, FIRST).usage
    assert usage.completion_tokens == usage.prompt_tokens  # the engine has repeated the whole prompt


def test_without_a_choice_nothing_is_called(client: openai.OpenAI):
    reply = ask(client, FIRST, tool_choice="none", max_tokens=20)
    assert reply.choices[0].message.tool_calls is None
