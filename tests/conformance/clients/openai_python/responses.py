"""Tests of responses with OpenAI's client: whole, streamed, typed, with tools."""

from __future__ import annotations

from typing import Any

import openai as package
import pydantic
import pytest

TOOL: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture
def asked(ask):
    return {"model": ask["model"], "input": ask["messages"][0]["content"], "max_output_tokens": 24, "temperature": 0}


def test_a_response_is_text(openai, asked):
    reply = openai.responses.create(**asked, instructions="Answer in one sentence.")
    assert reply.object == "response" and reply.id.startswith("resp_") and reply.model == asked["model"]
    assert reply.output_text and reply.status in ("completed", "incomplete")
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens


def test_a_streamed_response_says_the_same(openai, asked):
    whole = openai.responses.create(**asked)
    events = list(openai.responses.create(**asked, stream=True))
    assert events[0].type == "response.created"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.output_text == whole.output_text


def test_a_response_is_parsed_into_a_type(openai, asked):
    class Answer(pydantic.BaseModel):
        city: str

    reply = openai.responses.parse(**asked | {"max_output_tokens": 200}, text_format=Answer)
    assert reply.output_parsed is None or isinstance(reply.output_parsed.city, str)


def test_a_tool_is_called_and_its_output_is_answered(openai, asked):
    first = openai.responses.create(**asked | {"max_output_tokens": 100}, tools=[TOOL], tool_choice="required")
    (call,) = [item for item in first.output if item.type == "function_call"][:1]
    told = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    question = {"role": "user", "content": asked["input"]}
    others = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        for item in first.output
        if item.type == "function_call" and item.call_id != call.call_id
    ]
    second = openai.responses.create(**asked | {"input": [question, *first.output, told, *others]}, tools=[TOOL])
    assert second.output


def test_a_conversation_is_gone_on_from_and_added_to(openai, asked):
    made = openai.conversations.create(metadata={"topic": "capitals"})
    first = openai.responses.create(**asked, conversation=made.id)
    second = openai.responses.create(**asked | {"input": "And of Italy?"}, conversation=made.id)
    assert second.usage.input_tokens > first.usage.input_tokens
    assert [item.role for item in openai.conversations.items.list(made.id, order="asc")] == ["user", "assistant"] * 2
    assert openai.conversations.delete(made.id).deleted


def test_a_stored_response_is_followed_read_listed_and_deleted(openai, asked):
    first = openai.responses.create(**asked)
    assert first.store is True
    second = openai.responses.create(**asked | {"input": "And of Italy?"}, previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens
    assert openai.responses.retrieve(first.id).output_text == first.output_text
    (item,) = openai.responses.input_items.list(first.id).data
    assert item.content[0].text == asked["input"]
    openai.responses.delete(first.id)
    with pytest.raises(package.NotFoundError):
        openai.responses.retrieve(first.id)
    with pytest.raises(package.BadRequestError):
        openai.responses.create(**asked, previous_response_id=second.id)
