"""Tests with Anthropic's client, which validates every reply against its own types: messages, tools, counts, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

TOOL: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="session")
def client(place) -> Iterator[anthropic.Anthropic]:
    url = place.url.removesuffix("/v1")
    with anthropic.Anthropic(
        base_url=url, api_key=place.key, max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture
def asked(place) -> dict[str, Any]:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return {"model": place.model, "messages": messages, "max_tokens": 24, "extra_body": {"temperature": 0}}


def test_a_message_is_text(client, asked):
    message = client.messages.create(**asked, system="Answer in one sentence.")
    assert message.type == "message" and message.id.startswith("msg_") and message.model == asked["model"]
    (block,) = message.content
    assert block.type == "text" and block.text
    assert message.stop_reason in ("end_turn", "max_tokens") and message.usage.output_tokens > 0


def test_a_streamed_message_says_the_same(client, asked):
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        texts = list(stream.text_stream)
        streamed = stream.get_final_message()
    assert "".join(texts) == streamed.content[0].text == whole.content[0].text
    assert streamed.stop_reason == whole.stop_reason and len(texts) > 1
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_the_tokens_that_are_counted_are_billed(client, asked):
    prompt = {name: asked[name] for name in ("model", "messages")}
    counted = client.messages.count_tokens(**prompt, system="Be brief.", tools=[TOOL])
    usage = client.messages.create(**asked, system="Be brief.", tools=[TOOL]).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_a_second_turn_reads_the_first_from_the_cache(client, asked):
    system = "You are a careful assistant who answers questions about the capitals of countries. " * 4
    first = client.messages.create(**asked, system=system)
    size = first.usage.input_tokens + first.usage.cache_read_input_tokens
    turns = [
        *asked["messages"],
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": "And Italy?"},
    ]
    second = client.messages.create(**asked | {"messages": turns}, system=system)
    assert second.usage.cache_read_input_tokens >= 0.9 * size - 16


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_is_called_and_its_result_is_answered(client, asked, stream):
    asked |= {"max_tokens": 200, "tools": [TOOL]}
    if stream:
        with client.messages.stream(**asked, tool_choice={"type": "any"}) as events:
            first = events.get_final_message()
    else:
        first = client.messages.create(**asked, tool_choice={"type": "any"})
    calls = [block for block in first.content if block.type == "tool_use"]
    assert calls and all(call.name == "get_weather" and call.id.startswith("toolu_") for call in calls)
    if first.stop_reason != "tool_use":
        pytest.skip("the model came to no end")
    assert all(isinstance(call.input["city"], str) for call in calls)
    results = [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in calls]
    turns = [*asked["messages"], {"role": "assistant", "content": first.content}, {"role": "user", "content": results}]
    assert client.messages.create(**asked | {"messages": turns, "max_tokens": 8}).usage.output_tokens > 0


def test_an_answer_is_held_to_a_schema(client, asked):
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    message = client.messages.create(
        **asked | {"max_tokens": 60}, output_config={"format": {"type": "json_schema", "schema": schema}}
    )
    assert message.content[0].text.lstrip().startswith("{")


def test_models_are_listed(client, asked):
    found = {model.id for model in client.models.list(limit=2)}  # through all pages
    assert asked["model"] in found
    assert client.models.retrieve(asked["model"]).id == asked["model"]


def test_errors_have_their_classes(client, asked, place):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**asked | {"model": "nobody"})
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(**asked | {"extra_body": {"temperature": 3}})
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="sk-wrong").messages.create(**asked)
    with pytest.raises(anthropic.RateLimitError) as refused:
        client.with_options(api_key=place.broke_key).messages.create(**asked)
    assert refused.value.body["error"]["type"] == "rate_limit_error" and refused.value.request_id.startswith("req_")
