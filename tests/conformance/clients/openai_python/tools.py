"""Tests of tool calls with OpenAI's client: whole, streamed, parsed by its helper, and the older functions."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from openai import pydantic_function_tool
from pydantic import BaseModel


class GetWeather(BaseModel):
    """The arguments of a tool, with bounded fields, so that a small model completes the object."""

    city: Literal["Paris", "Rome"]
    days: Literal[1, 2, 3]


class GetTime(BaseModel):
    zone: Literal["UTC", "CET"]


WEATHER, TIME = pydantic_function_tool(GetWeather), pydantic_function_tool(GetTime)
NAMED = {"type": "function", "function": {"name": "GetWeather"}}


@pytest.fixture
def asked(ask):
    messages = [{"role": "user", "content": "What is the weather in Paris for two days?"}]
    return ask | {"messages": messages, "max_tokens": 64, "tools": [WEATHER, TIME]}


def test_required_makes_calls_whose_arguments_validate(openai, asked):
    """A small model makes as many calls as it may."""
    (choice,) = openai.chat.completions.create(**asked, tool_choice="required").choices
    assert choice.finish_reason in ("tool_calls", "length") and choice.message.tool_calls
    for call in choice.message.tool_calls:
        assert call.id and call.type == "function"
        {"GetWeather": GetWeather, "GetTime": GetTime}[call.function.name].model_validate_json(call.function.arguments)


def test_a_named_tool_is_the_one_that_is_called(openai, asked):
    (choice,) = openai.chat.completions.create(**asked, tool_choice=NAMED).choices
    (call,) = choice.message.tool_calls
    assert call.function.name == "GetWeather"
    GetWeather.model_validate_json(call.function.arguments)


def test_none_answers_in_text(openai, asked):
    (choice,) = openai.chat.completions.create(**asked | {"max_tokens": 4}, tool_choice="none").choices
    assert choice.message.tool_calls is None and choice.message.content


def test_auto_answers_or_calls(openai, asked):
    (choice,) = openai.chat.completions.create(**asked, tool_choice="auto").choices
    assert (choice.finish_reason == "tool_calls") == bool(choice.message.tool_calls)
    for call in choice.message.tool_calls or ():
        json.loads(call.function.arguments)


def test_allowed_tools_leave_the_others_out(openai, asked):
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "GetTime"}}]}
    choice_of_tools = {"type": "allowed_tools", "allowed_tools": allowed}
    (choice,) = openai.chat.completions.create(**asked, tool_choice=choice_of_tools).choices
    assert {call.function.name for call in choice.message.tool_calls} == {"GetTime"}


def test_without_parallel_calls_there_is_one(openai, asked):
    (choice,) = openai.chat.completions.create(**asked, tool_choice="required", parallel_tool_calls=False).choices
    assert choice.finish_reason == "tool_calls"
    assert len(choice.message.tool_calls) == 1


def test_parse_returns_arguments_as_the_model(openai, asked):
    (choice,) = openai.chat.completions.parse(**asked, tool_choice=NAMED).choices
    assert isinstance(choice.message.tool_calls[0].function.parsed_arguments, GetWeather)


def test_a_stream_brings_the_arguments_in_deltas(openai, asked):
    whole = openai.chat.completions.create(**asked, tool_choice=NAMED)
    with openai.chat.completions.stream(**asked, tool_choice=NAMED) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    deltas = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    assert "".join(event.arguments_delta for event in deltas) == done[0].arguments
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason
    assert done[0].arguments == whole.choices[0].message.tool_calls[0].function.arguments
    assert isinstance(final.choices[0].message.tool_calls[0].function.parsed_arguments, GetWeather)


def test_a_result_goes_back_as_a_message_of_the_tool(openai, asked):
    first = openai.chat.completions.create(**asked, tool_choice=NAMED).choices[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": '{"sky": "clear"}'}
    messages = [*asked["messages"], first.model_dump(exclude_none=True), result]
    reply = openai.chat.completions.create(**asked | {"messages": messages, "max_tokens": 4}, tool_choice="none")
    assert reply.choices[0].message.content


def test_functions_are_tools_of_an_older_name(openai, asked):
    asked.pop("tools")
    function = {name: value for name, value in WEATHER["function"].items() if name != "strict"}
    (choice,) = openai.chat.completions.create(
        **asked, functions=[function], function_call={"name": "GetWeather"}
    ).choices
    assert choice.message.function_call.name == "GetWeather" and choice.finish_reason in ("function_call", "stop")
    GetWeather.model_validate_json(choice.message.function_call.arguments)
