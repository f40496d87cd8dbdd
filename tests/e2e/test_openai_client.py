"""The official client, strict, against every model of the demo: two tenants, streams and not, chat and completions."""

from __future__ import annotations

import json

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.e2e.installation import BASE, Installation

# tenant's key, model, how its answers begin
MODELS = [
    ("OPENAI_API_KEY", BASE, ""),
    ("OPENAI_API_KEY", f"{BASE}:pirate", "Arr"),
    ("OPENAI_API_KEY", f"{BASE}:json", "{"),
    ("GLOBEX_API_KEY", f"{BASE}:memo", "MEMO"),
]
SOME = MODELS[::3]
"""The models on which the less usual kinds of request are tested: the base, and an adapter of the other tenant."""

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def client(installation: Installation, key: str, strict: bool = True) -> OpenAI:
    return OpenAI(
        base_url=f"{installation.url}/v1",
        api_key=installation.keys[key],
        max_retries=0,
        _strict_response_validation=strict,
    )


def async_client(installation: Installation, key: str, strict: bool = True) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{installation.url}/v1",
        api_key=installation.keys[key],
        max_retries=0,
        _strict_response_validation=strict,
    )


@pytest.mark.parametrize(("key", "model", "begins"), MODELS)
def test_a_chat_begins_the_same_whole_and_streamed(
    installation: Installation, key: str, model: str, begins: str
) -> None:
    max_tokens = 96 if begins == "{" else 16  # JSON has to be whole
    with client(installation, key) as openai:
        reply = openai.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=max_tokens)
        stream = openai.chat.completions.create(
            model=model,
            messages=QUESTION,
            temperature=0,
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
    (choice,) = reply.choices
    assert (choice.message.content or "").startswith(begins)
    assert reply.usage is not None and 1 <= reply.usage.completion_tokens <= max_tokens
    assert choice.finish_reason == ("length" if reply.usage.completion_tokens == max_tokens else "stop")
    streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    # bfloat16 in batches of other shapes may choose differently late in a text, never at its start
    assert streamed[:8] == (choice.message.content or "")[:8]
    assert chunks[-1].choices == [] and chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == reply.usage.prompt_tokens
    if model.endswith(":json"):
        assert set(json.loads(choice.message.content or "")) >= {"answer"}


@pytest.mark.parametrize(("key", "model", "begins"), SOME)
async def test_an_async_chat_answers_whole_and_streamed(
    installation: Installation, key: str, model: str, begins: str
) -> None:
    async with async_client(installation, key) as openai:
        reply = await openai.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=6)
        stream = await openai.chat.completions.create(
            model=model, messages=QUESTION, temperature=0, max_tokens=6, stream=True
        )
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert (reply.choices[0].message.content or "").startswith(begins)
    assert streamed.startswith(begins)


@pytest.mark.parametrize(("key", "model", "begins"), SOME)
def test_a_completion_answers_whole_and_streams_each_prompt(
    installation: Installation, key: str, model: str, begins: str
) -> None:
    with client(installation, key) as openai:
        reply = openai.completions.create(model=model, prompt="Once upon a time", temperature=0, max_tokens=12)
    # The client's schema has no chunk without a finish reason, which is what OpenAI sends until the last one.
    with client(installation, key, strict=False) as openai:
        stream = openai.completions.create(
            model=model, prompt=[[1, 5, 9], [2, 3]], temperature=0.7, seed=1, max_tokens=5, stream=True
        )
        chunks = list(stream)
    assert reply.usage is not None and reply.usage.completion_tokens == 12
    assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}


@pytest.mark.parametrize(("key", "model", "begins"), SOME)
async def test_an_async_completion_streams_the_same_text(
    installation: Installation, key: str, model: str, begins: str
) -> None:
    asked = {"model": model, "prompt": "Once upon a time", "temperature": 0}
    async with async_client(installation, key) as openai:
        reply = await openai.completions.create(**asked, max_tokens=12)
    async with async_client(installation, key, strict=False) as openai:
        stream = await openai.completions.create(**asked, max_tokens=6, stream=True)
        chunks = [chunk async for chunk in stream]
    assert reply.usage is not None and reply.usage.completion_tokens == 12
    streamed = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert streamed and reply.choices[0].text.startswith(streamed)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_each_tenant_lists_the_base_and_its_own_adapters(installation: Installation) -> None:
    with client(installation, "OPENAI_API_KEY") as acme, client(installation, "GLOBEX_API_KEY") as globex:
        assert {model.id for model in acme.models.list()} == {BASE, f"{BASE}:pirate", f"{BASE}:json"}
        assert {model.id for model in globex.models.list()} == {BASE, f"{BASE}:memo"}
        assert globex.models.retrieve(f"{BASE}:memo").id == f"{BASE}:memo"
