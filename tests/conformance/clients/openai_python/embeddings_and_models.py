"""Tests of embeddings and of the list of models with OpenAI's client."""

from __future__ import annotations

import asyncio
import math

import openai as package
import pytest
from openai import AsyncOpenAI


@pytest.fixture
def embed(place) -> dict[str, object]:
    return {"model": place.base, "input": "a parrot", "encoding_format": "float"}


def test_a_vector_has_unit_length(openai, embed):
    assert math.hypot(*openai.embeddings.create(**embed).data[0].embedding) == pytest.approx(1, abs=1e-4)


def test_base64_which_the_client_asks_for_and_decodes_is_the_same_vector(openai, lenient, embed):
    floats = openai.embeddings.create(**embed).data[0].embedding
    embed.pop("encoding_format")
    assert lenient.embeddings.create(**embed).data[0].embedding == pytest.approx(floats, abs=1e-6)


def test_base64_asked_for_by_name_stays_text(lenient, embed):
    reply = lenient.embeddings.create(**embed | {"encoding_format": "base64"})
    assert isinstance(reply.data[0].embedding, str)


@pytest.mark.parametrize(
    ("given", "num"),
    [(["a parrot", "a ship"], 2), ([504, 3280], 1), ([[504], [3280, 282]], 2)],
    ids=["texts", "token ids", "lists of token ids"],
)
def test_input_may_be(openai, embed, given, num):
    reply = openai.embeddings.create(**embed | {"input": given})
    assert [each.index for each in reply.data] == list(range(num))
    assert reply.usage.prompt_tokens == reply.usage.total_tokens > 0


def test_dimensions_are_the_models_own(openai, embed):
    size = len(openai.embeddings.create(**embed).data[0].embedding)
    whole = openai.embeddings.create(**embed, dimensions=size).data[0].embedding
    assert len(whole) == size and math.hypot(*whole) == pytest.approx(1, abs=1e-4)
    with pytest.raises(package.BadRequestError) as refused:  # the model is not trained to have embeddings shortened
        openai.embeddings.create(**embed, dimensions=16)
    assert refused.value.param == "dimensions"


def test_models_are_listed_and_retrieved(openai, place):
    ids = {model.id for model in openai.models.list()}
    assert ids - {"tone"} == {place.base, f"{place.base}:pirate", f"{place.base}:json"}, "and the demo's experiment"
    assert all(openai.models.retrieve(model).id == model for model in ids)


def test_an_unknown_model_is_not_found(openai):
    with pytest.raises(package.NotFoundError) as missing:
        openai.models.retrieve("nobody")
    assert missing.value.code == "model_not_found"


def test_async(embed, place):
    async def both() -> tuple[int, set[str]]:
        async with AsyncOpenAI(max_retries=0, _strict_response_validation=True) as client:
            vectors = await client.embeddings.create(**embed)
            return len(vectors.data), {model.id async for model in client.models.list()}

    num, ids = asyncio.run(both())
    assert num == 1 and place.base in ids
