"""Tests with instructor: its ways to get a pydantic model from a reply."""

from __future__ import annotations

import asyncio
from typing import Literal

import instructor
import pytest
from instructor import Mode
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict

MESSAGES = [{"role": "user", "content": "Describe Paris."}]
MODES = [Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA]


class City(BaseModel):
    """A city, with bounded fields, so that a small model completes the object."""

    model_config = ConfigDict(extra="forbid")

    capital: bool
    size: Literal["small", "large"]


class Answer(BaseModel):
    topic: str
    answer: str


@pytest.fixture
def asked(place):
    return {"model": place.model, "messages": MESSAGES, "max_tokens": 64, "temperature": 0, "max_retries": 0}


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_create(asked, mode):
    city = instructor.from_openai(OpenAI(max_retries=0), mode=mode).create(response_model=City, **asked)
    assert isinstance(city, City)


def test_json_mode_leaves_the_fields_to_the_model(asked, place):
    """JSON mode checks only that an answer is a JSON object; this adapter knows which object to write."""
    client = instructor.from_openai(OpenAI(max_retries=0), mode=Mode.JSON)
    wanted = asked | {"model": f"{place.base}:json", "max_tokens": 128}
    assert isinstance(client.create(response_model=Answer, **wanted), Answer)


@pytest.mark.parametrize("mode", [Mode.TOOLS, Mode.JSON_SCHEMA], ids=lambda mode: mode.name)
def test_create_partial(asked, mode):
    client = instructor.from_openai(OpenAI(max_retries=0), mode=mode)
    *_, last = client.create_partial(response_model=City, **asked)
    City.model_validate(last.model_dump())


def test_create_with_completion(asked):
    client = instructor.from_openai(OpenAI(max_retries=0), mode=Mode.TOOLS)
    city, completion = client.create_with_completion(response_model=City, **asked)
    assert isinstance(city, City) and completion.usage.completion_tokens > 0


def test_async(asked):
    client = instructor.from_openai(AsyncOpenAI(max_retries=0), mode=Mode.JSON_SCHEMA)
    assert isinstance(asyncio.run(client.create(response_model=City, **asked)), City)
