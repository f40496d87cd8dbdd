"""The official client, validating strictly, against a whole gateway."""

from __future__ import annotations

import asyncio

import openai
import pytest

from tests.gateway.conftest import House

MESSAGES = [{"role": "user", "content": "hello there"}]


@pytest.fixture
def client(house: House):
    with openai.OpenAI(
        base_url=f"{house.url}/v1", api_key=house.acme.key, _strict_response_validation=True, max_retries=0
    ) as client:
        yield client


@pytest.fixture
def lenient_client(house: House):
    """Give a client that does not validate, for streamed completions.

    The strict client's schema knows no chunk without a finish reason, which OpenAI's servers send until the last chunk.
    """
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key=house.acme.key, max_retries=0) as client:
        yield client


@pytest.fixture
async def async_client(house: House):
    async with openai.AsyncOpenAI(
        base_url=f"{house.url}/v1", api_key=house.acme.key, _strict_response_validation=True, max_retries=0
    ) as client:
        yield client


def test_chat_returns_text_usage_and_finish_reason(client):
    unheard = [{"role": "user", "content": "hello once"}]  # so that no other test has left it in the cache
    reply = client.chat.completions.create(model="tiny", messages=unheard, max_tokens=8)
    assert reply.object == "chat.completion"
    assert reply.choices[0].message.role == "assistant"
    assert reply.choices[0].message.content.startswith("user\nhello")
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 8
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 8
    assert reply.usage.prompt_tokens_details.cached_tokens == 0


def test_streamed_chat_says_the_same_as_a_whole_one(client):
    for _ in range(2):  # the second finds its prompt cached, as the third will
        whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=20)
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=20, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks[:-1]][-1] == "length"
    assert all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage


def test_a_stream_without_include_usage_has_none(client):
    chunks = list(client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=3, stream=True))
    assert all("usage" not in chunk.model_dump(exclude_unset=True) for chunk in chunks)


@pytest.mark.parametrize(
    ("prompt", "num_choices"),
    [("abcdefgh", 1), (["abcdefgh", "hgfedcba"], 2), ([70, 71, 72], 1), ([[70, 71], [72, 73, 74]], 2)],
    ids=["text", "texts", "ids", "lists of ids"],
)
def test_completions_take_every_kind_of_prompt(client, lenient_client, prompt, num_choices):
    reply = client.completions.create(model="tiny", prompt=prompt, max_tokens=5)
    assert [choice.index for choice in reply.choices] == list(range(num_choices))
    assert reply.usage.completion_tokens == 5 * num_choices
    chunks = list(lenient_client.completions.create(model="tiny", prompt=prompt, max_tokens=5, stream=True))
    for choice in reply.choices:
        streamed = "".join(c.choices[0].text for c in chunks if c.choices[0].index == choice.index)
        assert streamed == choice.text


def test_a_stop_string_ends_the_text_and_the_bill(client, lenient_client):
    reply = client.completions.create(model="tiny", prompt="abcdefgh", max_tokens=100, stop="de")
    assert reply.choices[0].text == "abc"
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.completion_tokens == 5
    chunks = list(
        lenient_client.completions.create(
            model="tiny", prompt="abcdefgh", max_tokens=100, stop=["zz", "de"], stream=True
        )
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abc"
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_adapters_answer_each_for_itself_under_concurrency(async_client):
    async def ask(model: str, letters: str) -> str:
        reply = await async_client.completions.create(model=model, prompt=letters, max_tokens=4)
        return reply.choices[0].text

    letters = ["abcdxyz", "mnopqrs", "qwxyzjk"]
    answers = await asyncio.gather(*(ask(m, text) for text in letters for m in ("tiny", "tiny:pirate")))
    # The adapter's digest rotates the prompt by one token.
    assert answers == [text[shift : shift + 4] for text in letters for shift in (0, 1)]


async def test_the_asynchronous_client_reads_a_stream(async_client):
    stream = await async_client.chat.completions.create(
        model="tiny:pirate", messages=MESSAGES, max_tokens=6, stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[-1].choices[0].finish_reason == "length"


def test_replies_name_the_organization_of_the_key(client):
    reply = client.models.with_raw_response.list()
    assert reply.headers["openai-organization"].startswith("org_")


def test_models_are_the_base_and_this_tenants_adapters(client, house: House):
    assert [model.id for model in client.models.list()] == ["tiny", "tiny:pirate"]
    model = client.models.retrieve("tiny:pirate")
    assert (model.id, model.root, model.parent, model.max_model_len) == ("tiny:pirate", "tiny", "tiny", 512)
    assert model.owned_by == house.acme.project_id


def test_another_projects_adapter_is_answered_like_one_that_does_not_exist(client):
    bodies = []
    for name in ("poet", "nope"):
        for call in (
            lambda model: client.models.retrieve(model),
            lambda model: client.completions.create(model=model, prompt="a"),
        ):
            with pytest.raises(openai.NotFoundError) as caught:
                call(f"tiny:{name}")
            assert caught.value.param == "model"
            bodies.append(caught.value.response.text.replace(name, "X"))
    assert len(set(bodies)) == 1


@pytest.mark.parametrize("key", ["nonsense", "sk-lk-" + "a" * 58])
def test_bad_keys_are_401(house: House, key: str):
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key=key, max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.models.list()
        assert caught.value.code == "invalid_api_key"
