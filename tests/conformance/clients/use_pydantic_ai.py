"""Tests with pydantic-ai's agents over this API."""

from __future__ import annotations

import asyncio
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict
from pydantic_ai import Agent, NativeOutput, RunContext, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

QUESTION = "What is the capital of France?"


class City(BaseModel):
    """A city, with bounded fields, so that a small model completes the object."""

    model_config = ConfigDict(extra="forbid")

    capital: bool
    size: Literal["small", "large"]


def agent(place, *, max_tokens: int = 48, **options) -> Agent:
    settings = ModelSettings(max_tokens=max_tokens, temperature=0, parallel_tool_calls=False)
    return Agent(OpenAIChatModel(place.model), model_settings=settings, **options)


def test_text(place):
    result = agent(place, instructions="Be brief.").run_sync(QUESTION)
    assert result.output and result.usage.output_tokens > 0


def test_streamed_text(place):
    async def streamed() -> str:
        async with agent(place).run_stream(QUESTION) as result:
            return "".join([delta async for delta in result.stream_text(delta=True)])

    assert asyncio.run(streamed()) == agent(place).run_sync(QUESTION).output


def test_history_goes_back(place):
    first = agent(place, max_tokens=8).run_sync(QUESTION)
    second = agent(place, max_tokens=8).run_sync("And of Italy?", message_history=first.all_messages())
    assert len(second.all_messages()) == 4


@pytest.mark.parametrize("output", [ToolOutput(City), NativeOutput(City)], ids=["a tool", "a schema"])
def test_output_by(place, output):
    assert isinstance(agent(place, output_type=output).run_sync(QUESTION).output, City)


def test_streamed_output(place):
    async def streamed() -> City:
        async with agent(place, output_type=NativeOutput(City)).run_stream(QUESTION) as result:
            return await result.get_output()

    assert isinstance(asyncio.run(streamed()), City)


def test_a_tool_is_called_and_its_result_goes_back(place):
    calls = []
    teller = agent(place, output_type=NativeOutput(City))

    async def only_at_first(context: RunContext[None], definition: ToolDefinition) -> ToolDefinition | None:
        """Offer the tool in the first step alone, since a small model would call it again and again.

        definition: the tool; None is returned in place of it where it is not offered.
        """
        return definition if context.run_step == 1 else None

    @teller.tool_plain(prepare=only_at_first)
    def get_weather(city: Literal["Paris", "Rome"]) -> str:
        """The weather of a city."""
        calls.append(city)
        return "clear"

    result = teller.run_sync(QUESTION)
    assert isinstance(result.output, City) and len(calls) <= 1 and set(calls) <= {"Paris", "Rome"}


def test_errors_carry_the_status(place):
    with pytest.raises(ModelHTTPError) as refused:
        Agent(OpenAIChatModel("nobody")).run_sync(QUESTION)
    assert refused.value.status_code == 404
