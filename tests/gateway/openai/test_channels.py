"""A model that answers in channels, over HTTP: thinking before the answer, and messages to functions as calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import AddedToken

from tests.gateway.openai.echo import EchoClient, echoing

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
THOUGHT = "<|channel|>analysis<|message|>Why?<|end|><|start|>assistant"
ANSWER = f"{THOUGHT}<|channel|>final<|message|>Four."
CALL = f'{THOUGHT}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"n": 4}}'
TEMPLATE = "{# <|channel|>commentary <|call|> #}{% if tools %}{% endif %}{{ messages[-1].content }}"


@pytest.fixture(scope="module")
def client(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoClient]:
    names = ("start", "channel", "message", "constrain", "end", "call")
    marks = [AddedToken(f"<|{name}|>", special=True) for name in names]
    with echoing(module_dsn, tmp_path_factory.mktemp("channels"), TEMPLATE, marks) as client:
        yield client


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS}])
def test_an_answer_follows_its_thinking(client: EchoClient, fields: dict[str, Any]) -> None:
    reply = client.ask(ANSWER, **fields)
    (choice,) = reply.choices
    assert (choice.message.content, choice.finish_reason) == ("Four.", "stop")
    assert choice.message.reasoning_content == "Why?"
    assert choice.message.tool_calls is None
    options = {"include_usage": True}
    *chunks, last = client.ask(ANSWER, stream=True, stream_options=options, **fields)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "Four."
    assert "".join(getattr(delta, "reasoning_content", "") for delta in deltas) == "Why?"
    for usage in (reply.usage, last.usage):
        assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens


@pytest.mark.parametrize("tool_choice", ["auto", "required"])
def test_a_message_to_a_function_is_a_call(client: EchoClient, tool_choice: Any) -> None:
    (choice,) = client.ask(CALL, tools=TOOLS, tool_choice=tool_choice).choices
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("f", '{"n": 4}')
    assert choice.finish_reason == "tool_calls"
    assert (choice.message.content, choice.message.reasoning_content) == (None, "Why?")


REMARK = "<|channel|>commentary<|message|>Here it is.<|end|><|start|>assistant"
UNASKED = "<|channel|>commentary to=functions.g<|message|>{}<|end|><|start|>assistant"


@pytest.mark.parametrize("fields", [{}, {"response_format": {"type": "json_object"}}])
@pytest.mark.parametrize("before", [REMARK, UNASKED])
def test_a_call_that_has_to_be_made_follows_thinking_alone(
    client: EchoClient, before: str, fields: dict[str, Any]
) -> None:
    says = f'{before}<|channel|>commentary to=functions.f <|constrain|>json<|message|>{{"n": 4}}'
    message = client.ask(says, tools=TOOLS, tool_choice="required", **fields).choices[0].message
    ((call,), content) = (message.tool_calls, message.content)
    assert (call.function.name, call.function.arguments, content) == ("f", '{"n": 4}', None)
    assert message.reasoning_content.strip()


@pytest.mark.parametrize("before", ["Well, ", REMARK, THOUGHT + REMARK, THOUGHT + UNASKED, REMARK + THOUGHT])
def test_an_answer_that_is_held_to_json_is_json_alone(client: EchoClient, before: str) -> None:
    says = f'{before}<|channel|>final <|constrain|>json<|message|>{{"n": 4}}'
    message = client.ask(says, response_format={"type": "json_object"}).choices[0].message
    assert message.content == '{"n": 4}'
    assert message.reasoning_content.strip()
    chunks = client.ask(says, response_format={"type": "json_object"}, stream=True)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == '{"n": 4}'


def test_a_message_to_a_function_without_tools_is_content(client: EchoClient) -> None:
    (choice,) = client.ask(CALL).choices
    assert choice.message.content == '<tool_call>\n{"name": "f", "arguments": {"n": 4}}\n</tool_call>'


def test_special_tokens_are_shown_where_they_are_asked_for(client: EchoClient) -> None:
    extra = {"skip_special_tokens": False, "ignore_eos": True}
    (choice,) = client.ask(ANSWER, max_tokens=4, extra_body=extra).choices
    assert choice.message.content.startswith("<|channel|>")
    assert not hasattr(choice.message, "reasoning_content")


def test_messages_have_thinking_in_a_block_of_its_own_whether_asked_for_or_not(client: EchoClient) -> None:
    num_tokens = len(client.tokenizer.encode(ANSWER).ids)
    content = client.message(ANSWER, num_tokens)["content"]
    assert [(block["type"], block.get("thinking", block.get("text"))) for block in content] == [
        ("thinking", "Why?"),
        ("text", "Four."),
    ]


def test_responses_have_thinking_and_calls_as_items(client: EchoClient) -> None:
    num_tokens = len(client.tokenizer.encode(CALL).ids)
    tools: Any = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}]
    reply = client.responses.create(model="tiny", input=CALL, tools=tools, max_output_tokens=num_tokens)
    assert [item.type for item in reply.output] == ["reasoning", "function_call"]
    assert (reply.output[1].name, reply.output[1].arguments) == ("f", '{"n": 4}')
