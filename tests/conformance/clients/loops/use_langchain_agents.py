"""Tests with LangChain's agents over Responses: a loop with two tools, whole and streamed, and state that the server
keeps."""

from __future__ import annotations

import pytest
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

ANSWER = "In Paris it is sunny, and it is noon."


@tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    return f"In {city} it is sunny."


@tool
def get_time(city: str) -> str:
    """Return the time in a city."""
    return f"In {city} it is noon."


def model_of(place, **options):
    return ChatOpenAI(
        model=place.model, base_url=place.url, api_key=place.key, use_responses_api=True, max_retries=0, **options
    )


def question_of(script: str) -> dict:
    return {"messages": [("user", f"[script:{script}] How is Paris?")]}


@pytest.mark.parametrize("options", [{}, {"use_previous_response_id": True}, {"output_version": "responses/v1"}])
@pytest.mark.parametrize("script", ["two_tools", "two_tools_at_once", "thoughtful"])
def test_two_tools_are_called_and_answered(place, script, options):
    agent = create_agent(model_of(place, **options), [get_weather, get_time])
    messages = agent.invoke(question_of(script))["messages"]
    assert messages[-1].text == ANSWER
    assert sorted(each.name for each in messages if each.type == "tool") == ["get_time", "get_weather"]


def test_a_streamed_loop_says_the_same(place):
    agent = create_agent(model_of(place), [get_weather, get_time])
    parts = agent.stream(question_of("thoughtful"), stream_mode="messages")
    said = [part.text for part, _ in parts if part.type == "AIMessageChunk"]
    assert "".join(said) == ANSWER


def test_reasoning_is_apart_from_the_text(place):
    reply = model_of(place, reasoning={"effort": "medium", "summary": "auto"}).invoke("[script:thought] 2 + 2?")
    assert reply.text == "The answer is 4."
    assert any(block["type"] == "reasoning" for block in reply.content)
