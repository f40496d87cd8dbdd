"""Tests with openai-agents: loops with two tools, hand-offs, sessions and typed output, over the engine that plays
scripts."""

from __future__ import annotations

import asyncio

import agents
import pydantic
import pytest
from openai import AsyncOpenAI

ANSWER = "In Paris it is sunny, and it is noon."
CALLED: list[str] = []


@agents.function_tool
def get_weather(city: str) -> str:
    """Return the weather of a city."""
    CALLED.append(f"weather of {city}")
    return "sunny"


@agents.function_tool
def get_time(city: str) -> str:
    """Return the time in a city."""
    CALLED.append(f"time in {city}")
    return "noon"


TOOLS = [get_weather, get_time]
BOTH = ["weather of Paris", "time in Paris"]


@pytest.fixture
def model(place):
    agents.set_tracing_disabled(True)
    CALLED.clear()
    client = AsyncOpenAI(base_url=place.url, api_key=place.key, max_retries=0)
    return agents.OpenAIResponsesModel(model=place.model, openai_client=client)


@pytest.mark.parametrize("script", ["two_tools", "two_tools_at_once", "thoughtful"])
def test_two_tools_are_called_and_answered(model, script):
    agent = agents.Agent(name="guide", instructions="Use your tools.", tools=TOOLS, model=model)
    result = agents.Runner.run_sync(agent, f"[script:{script}] How is Paris?")
    assert result.final_output == ANSWER and sorted(CALLED) == sorted(BOTH)
    assert result.context_wrapper.usage.output_tokens > 0


@pytest.mark.parametrize("script", ["two_tools", "thoughtful"])
def test_a_streamed_loop_says_the_same(model, script):
    agent = agents.Agent(name="guide", instructions="Use your tools.", tools=TOOLS, model=model)

    async def run() -> str:
        result = agents.Runner.run_streamed(agent, f"[script:{script}] How is Paris?")
        text = ""
        async for event in result.stream_events():
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                text += event.data.delta
        assert result.final_output == text.strip()
        return text

    assert asyncio.run(run()).strip() == ANSWER and CALLED == BOTH


def test_the_server_keeps_the_state_of_a_loop(model):
    agent = agents.Agent(name="guide", instructions="Use your tools.", tools=TOOLS, model=model)
    settings = agents.ModelSettings(store=True, response_include=["reasoning.encrypted_content"])
    agent = agent.clone(model_settings=settings)
    result = agents.Runner.run_sync(agent, "[script:thoughtful] How is Paris?", auto_previous_response_id=True)
    assert result.final_output == ANSWER and CALLED == BOTH


def test_a_conversation_keeps_the_state_of_a_loop(model, place):
    session = agents.OpenAIConversationsSession(
        openai_client=AsyncOpenAI(base_url=place.url, api_key=place.key, max_retries=0)
    )
    agent = agents.Agent(name="guide", tools=TOOLS, model=model)

    async def run() -> int:
        first = await agents.Runner.run(agent, "[script:two_tools] How is Paris?", session=session)
        assert first.final_output == ANSWER
        await agents.Runner.run(agent, "Thanks!", session=session)
        return len(await session.get_items())

    assert asyncio.run(run()) == 1 + 4 + 1 + 2


def test_an_agent_hands_off_to_another(model):
    clerk = agents.Agent(name="clerk", tools=[get_time], model=model)
    desk = agents.Agent(name="desk", handoffs=[clerk], model=model)
    result = agents.Runner.run_sync(desk, "[script:hand_off] What time is it in Paris?")
    assert result.last_agent.name == "clerk" and result.final_output == "The clerk says that it is noon in Paris."


def test_output_has_a_type(model):
    class Weather(pydantic.BaseModel):
        city: str
        temperature: int

    agent = agents.Agent(name="typed", output_type=Weather, model=model)
    result = agents.Runner.run_sync(agent, "[script:typed] How is Paris?")
    assert result.final_output == Weather(city="Paris", temperature=21)
