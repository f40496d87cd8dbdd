"""Chats of a model that thinks: reasoning apart from content, whole and streamed, before JSON and before calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tokenizers import AddedToken

from tests.gateway.openai.echo import END, EchoClient, echoing

TEMPLATE = (
    "{# <think> <tool_call> arguments #}{% if tools %}{% endif %}"
    "{% for message in messages %}{% if message.reasoning_content %}[{{ message.reasoning_content }}]{% endif %}"
    "{{ message.content }}{% endfor %}"
)
THOUGHT = "<think>\nWhy?\n</think>\n\n"
JSON: Any = {"type": "json_object"}
SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"n": 4}}\n</tool_call>'


@pytest.fixture(scope="module")
def client(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EchoClient]:
    marks = [AddedToken(mark, special=False, normalized=False) for mark in ("<think>", "</think>")]
    with echoing(module_dsn, tmp_path_factory.mktemp("thinks"), TEMPLATE, marks) as client:
        yield client


def streamed(client: EchoClient, says: str, **fields: Any) -> tuple[str, str]:
    """Return the reasoning and the content of a stream, in which no reasoning follows any content."""
    deltas = [choice.delta for chunk in client.ask(says, stream=True, **fields) for choice in chunk.choices]
    reasoning = [getattr(delta, "reasoning_content", "") for delta in deltas]
    contents = [delta.content or "" for delta in deltas]
    assert not any(reasoning[next((at for at, text in enumerate(contents) if text), len(contents)) :])
    return "".join(reasoning), "".join(contents)


@pytest.mark.parametrize("fields", [{}, {"response_format": JSON}, {"response_format": SCHEMA}, {"tools": TOOLS}])
def test_reasoning_is_apart_from_the_answer(client: EchoClient, fields: dict[str, Any]) -> None:
    says = f'{THOUGHT}{{"n": 4}}'
    reply = client.ask(says, **fields)
    message = reply.choices[0].message
    assert (message.reasoning_content, message.content) == ("Why?", '{"n": 4}')
    assert streamed(client, says, **fields) == ("Why?", '{"n": 4}')
    num_thought = len(client.tokenizer.encode(THOUGHT.rstrip()).ids)
    assert reply.usage.completion_tokens_details.reasoning_tokens == num_thought


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_call_follows_reasoning_in_which_nothing_is_a_call(client: EchoClient, choice: Any) -> None:
    says = f"<think>\nNot {CALL} yet.\n</think>\n\n{CALL}"
    message = client.ask(says, tools=TOOLS, tool_choice=choice, max_tokens=300).choices[0].message
    assert (message.content, message.reasoning_content) == (None, f"Not {CALL} yet.")
    (call,) = message.tool_calls
    assert (call.function.name, call.function.arguments) == ("f", '{"n": 4}')


def test_an_answer_without_reasoning_has_no_field_for_it(client: EchoClient) -> None:
    message = client.ask("4").choices[0].message
    assert message.content == "4" and not hasattr(message, "reasoning_content")
    assert streamed(client, "4") == ("", "4")


def test_reasoning_that_was_cut_off_is_no_content(client: EchoClient) -> None:
    choice = client.ask("<think>Why, and how, and when?", max_tokens=4).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("length", "")
    assert choice.message.reasoning_content.startswith("Why")


def test_log_probabilities_are_of_the_content_alone(client: EchoClient) -> None:
    says = f"{THOUGHT}Four."
    tokens = [each.token for each in client.ask(says, logprobs=True).choices[0].logprobs.content]
    assert "".join(tokens) == "Four."
    chunks = [choice for chunk in client.ask(says, logprobs=True, stream=True) for choice in chunk.choices]
    shown = [each.token for choice in chunks if choice.logprobs for each in choice.logprobs.content]
    assert shown == tokens


def test_choices_are_divided_each_by_itself(client: EchoClient) -> None:
    choices = client.ask(f"{THOUGHT}Four.", n=2).choices
    assert choices[0].message.reasoning_content == "Why?"
    assert choices[1].message.content.startswith("\nWhy?"), "it begins with the second token, which begins no thinking"


@pytest.mark.parametrize("fields", [{"response_format": JSON}, {"tools": TOOLS}])
def test_no_stop_string_ends_the_thinking_before_what_has_to_be_written(
    client: EchoClient, fields: dict[str, Any]
) -> None:
    message = client.ask(f"{THOUGHT}[1, 2]", stop=["hy", ", "], **fields).choices[0].message
    assert (message.reasoning_content, message.content) == ("Why?", "[1")
    message = client.ask(f"{THOUGHT}[1, 2]", stop=["hy", ", "]).choices[0].message
    assert (message.reasoning_content, message.content) == ("W", "")


def test_a_message_may_have_reasoning_alone_and_empty_reasoning_says_nothing(client: EchoClient) -> None:
    turns = [
        {"role": "user", "content": "2", "reasoning_content": ""},
        {"role": "assistant", "content": None, "reasoning_content": "even"},
        {"role": "user", "content": f"!{END}"},
    ]
    assert client.ask("", messages=turns).choices[0].message.content == "2[even]!"


def test_earlier_reasoning_is_shown_to_the_chat_template(client: EchoClient) -> None:
    turns = [{"role": "assistant", "content": "4", "reasoning_content": "even"}, {"role": "user", "content": f"!{END}"}]
    assert client.ask("", messages=turns).choices[0].message.content == "[even]4!"


def test_reasoning_belongs_to_the_assistant(client: EchoClient) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.ask("", messages=[{"role": "user", "content": "4", "reasoning_content": "even"}])
    assert caught.value.param == "messages[0].reasoning_content"


def test_a_conversation_goes_on_from_a_summary_without_its_reasoning(client: EchoClient) -> None:
    compacted = client.post("/responses/compact", input=f"{THOUGHT}Four.")
    asked = [compacted["output"][-1], {"role": "user", "content": "!"}]
    reply = client.responses.create(model="tiny", input=asked, max_output_tokens=60)
    assert "Four." in reply.output_text and "Why?" not in reply.output_text
