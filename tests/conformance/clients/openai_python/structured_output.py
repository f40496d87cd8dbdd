"""Tests of structured output with OpenAI's client: response_format, its helper that parses into pydantic models,
streams."""

from __future__ import annotations

import json
from enum import StrEnum

import pytest
from openai import LengthFinishReasonError
from pydantic import BaseModel


class Size(StrEnum):
    small = "small"
    large = "large"


class City(BaseModel):
    """A city, with bounded fields, so that a small model completes the object."""

    capital: bool
    size: Size


@pytest.fixture
def longer(ask):
    return ask | {"max_tokens": 48}


def test_a_json_object_parses(openai, longer):
    messages = [{"role": "user", "content": 'Answer with the JSON object {"ok": true} and nothing else.'}]
    reply = openai.chat.completions.create(**longer | {"messages": messages}, response_format={"type": "json_object"})
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(reply.choices[0].message.content), dict)
    else:
        assert reply.choices[0].message.content.lstrip().startswith("{")


def test_text_is_a_response_format(openai, ask):
    assert openai.chat.completions.create(**ask, response_format={"type": "text"}).choices[0].message.content


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_json_schema_holds_with_strict(openai, longer, strict):
    schema = City.model_json_schema() | {"additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": strict}}
    reply = openai.chat.completions.create(**longer, response_format=wanted)
    assert reply.choices[0].finish_reason == "stop"
    City.model_validate_json(reply.choices[0].message.content)


def test_parse_returns_the_model(openai, longer):
    reply = openai.chat.completions.parse(**longer, response_format=City)
    assert isinstance(reply.choices[0].message.parsed, City) and reply.choices[0].message.refusal is None


def test_parse_says_when_the_answer_was_cut_off(openai, ask):
    with pytest.raises(LengthFinishReasonError):
        openai.chat.completions.parse(**ask | {"max_tokens": 2}, response_format=City)


def test_a_stream_parses_at_its_end(openai, longer):
    with openai.chat.completions.stream(**longer, response_format=City) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, City)
    assert any(event.type == "content.delta" and event.parsed is not None for event in events)


def test_vllms_structured_outputs_travel_in_extra_body(openai, ask):
    reply = openai.chat.completions.create(**ask, extra_body={"structured_outputs": {"choice": ["Paris", "Rome"]}})
    assert reply.choices[0].message.content in ("Paris", "Rome")
