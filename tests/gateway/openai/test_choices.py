"""Several completions of one prompt: whole or streamed, each ends by itself, and all are billed as one request."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest

from engine.fake import fake_logprobs
from tests.gateway.conftest import House
from tests.gateway.openai.test_streams import usage_rows
from tests.patience import PATIENCE_S

MESSAGES = [{"role": "user", "content": "choose one"}]


@pytest.fixture
def client(house: House):
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key=house.acme.key, max_retries=0) as client:
        yield client


def test_each_choice_has_its_index_and_all_count(client):
    reply = client.completions.create(model="tiny", prompt="abcdxyz", max_tokens=4, n=3)
    assert [(c.index, c.text) for c in reply.choices] == [(0, "abcd"), (1, "bcdx"), (2, "cdxy")]
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (7, 12)


def test_streamed_choices_are_told_apart_by_index_and_say_the_same(client):
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=9, n=3)
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            max_tokens=9,
            n=3,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert [c.choices[0].delta.role for c in chunks[:3]] == ["assistant"] * 3
    for choice in whole.choices:
        mine = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == choice.index]
        assert "".join(each.delta.content or "" for each in mine) == choice.message.content
        assert [each.finish_reason for each in mine if each.finish_reason] == ["length"]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 27


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_string_ends_its_choice_alone_and_the_rest_is_not_billed(house: House, stream: bool):
    before = len(await usage_rows(house.dsn, house.acme.project_id, "length", 0))
    body = {"model": "tiny", "prompt": "abcdxyz", "max_tokens": 40, "n": 2, "stop": "abcdxyzab", "stream": False}
    async with httpx.AsyncClient(
        base_url=house.url, headers={"authorization": f"Bearer {house.acme.key}"}, timeout=PATIENCE_S
    ) as http:
        # Choice 0 begins with the stop string; choice 1 comes to it after six tokens.
        whole = (await http.post("/v1/completions", json=body)).json()
        if stream:
            reply = await http.post("/v1/completions", json={**body, "stream": True})
            assert reply.text.count('"finish_reason":"stop"') == 2
            assert reply.text.endswith("data: [DONE]\n\n")
    assert [(c["text"], c["finish_reason"]) for c in whole["choices"]] == [("", "stop"), ("bcdxyz", "stop")]
    assert whole["usage"]["completion_tokens"] == 9 + 15
    assert len(await usage_rows(house.dsn, house.acme.project_id, "length", 0)) == before
    rows = await usage_rows(house.dsn, house.acme.project_id, "stop")
    assert rows[-1]["completion_tokens"] == 24


def test_several_prompts_have_n_choices_each(client):
    asked = {"model": "tiny", "prompt": ["abcdxyz", "mnopqrs"], "max_tokens": 3, "n": 2}
    texts = ["abc", "bcd", "mno", "nop"]
    reply = client.completions.create(**asked)
    assert [(c.index, c.text) for c in reply.choices] == list(enumerate(texts))
    streamed = [""] * 4
    for chunk in client.completions.create(**asked, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == texts


def test_best_of_returns_the_likeliest_and_bills_all(client, house: House):
    prompt = [60, 63, 61]  # the fake engine's logprob falls with the id's last digit
    reply = client.completions.create(model="tiny", prompt=prompt, max_tokens=2, n=2, best_of=3)
    means = {i: sum(fake_logprobs(prompt[(i + k) % 3], 0, 300).logprob for k in range(2)) / 2 for i in range(3)}
    best = sorted(means, key=means.__getitem__, reverse=True)[:2]
    singles = client.completions.create(model="tiny", prompt=prompt, max_tokens=2, n=3)
    assert [c.text for c in reply.choices] == [singles.choices[i].text for i in best]
    assert [c.index for c in reply.choices] == [0, 1]
    assert all(c.logprobs is None for c in reply.choices)
    assert reply.usage.completion_tokens == 6
    row = asyncio.run(usage_rows(house.dsn, house.acme.project_id, "length"))
    assert 6 in [each["completion_tokens"] for each in row]


def test_a_prompt_that_was_seen_is_cached_for_its_tenant_alone(client, house: House):
    prompt = list(range(60, 110))
    for key, expected in [(house.acme.key, 0), (house.acme.key, 48), (house.globex.key, 0)]:
        with openai.OpenAI(base_url=f"{house.url}/v1", api_key=key) as other:
            usage = other.completions.create(model="tiny", prompt=prompt, max_tokens=1).usage
        assert usage.prompt_tokens_details.cached_tokens == expected


@pytest.mark.parametrize(("asked", "said"), [("auto", "default"), ("flex", "flex"), ("priority", "priority")])
def test_the_service_tier_that_was_served_is_named(client, asked: str, said: str):
    reply = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=1, service_tier=asked)
    assert reply.service_tier == said
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=1, service_tier=asked, stream=True
    )
    assert {chunk.service_tier for chunk in stream} == {said}


async def test_more_log_probabilities_than_a_reply_can_show_are_refused(house: House):
    body = {"model": "tiny", "prompt": ["a"] * 64, "max_tokens": 500, "n": 32, "logprobs": 5}
    async with httpx.AsyncClient(
        base_url=house.url, headers={"authorization": f"Bearer {house.acme.key}"}, timeout=PATIENCE_S
    ) as http:
        reply = await http.post("/v1/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "logprobs")
