"""Random tokens all the way through a gateway: a stream equals the whole reply, and both equal the tokens' text."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import httpx
import msgspec
import pytest

from engine.fake import fake_logprobs
from gateway.openai.shared.logprobs import token_name
from gateway.text.tokenizer import Tokenizer
from tests.gateway.conftest import House
from tests.gateway.model_folder import make_model_folder
from tests.gateway.text.vocabularies import random_ids, random_text
from tests.patience import PATIENCE_S

NUM_REQUESTS = 120
FULL_REQUESTS = 2000
AT_A_TIME = 24
MAX_TOKENS = 60


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Return the gateway's tokenizer."""
    return Tokenizer.from_folder(make_model_folder(tmp_path_factory.mktemp("tokenizer") / "model"))


@pytest.fixture(scope="module")
def num_requests(full: bool) -> int:
    return FULL_REQUESTS if full else NUM_REQUESTS


class ItemJson(msgspec.Struct):
    """One choice of a reply."""

    text: str = ""
    finish_reason: str | None = None
    logprobs: dict[str, list[Any]] = msgspec.field(default_factory=dict)
    """The four lists of a completion, or the tokens of a chat."""

    def add(self, choice: dict[str, Any]) -> None:
        message = choice.get("delta") or choice.get("message") or {}
        self.text += choice.get("text") or message.get("content") or ""
        self.finish_reason = choice["finish_reason"] or self.finish_reason
        for name, values in (choice.get("logprobs") or {}).items():
            if values:
                self.logprobs.setdefault(name, []).extend(values)


class Reply(msgspec.Struct, frozen=True):
    """A reply, whole or put together from its stream: the choices by index, and the usage."""

    choices: dict[int, ItemJson]
    usage: dict[str, Any]


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any], *, stream: bool) -> Reply:
    if stream:
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
    reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    if stream:
        *events, done, end = reply.text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    else:
        chunks = [reply.json()]
    choices: dict[int, ItemJson] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            choices.setdefault(choice["index"], ItemJson()).add(choice)
    return Reply(choices, chunks[-1]["usage"])


async def both_ways(house: House, path: str, bodies: list[dict[str, Any]]) -> list[Reply]:
    """Return the whole replies to requests, after checking that each equals its stream."""
    places = asyncio.Semaphore(AT_A_TIME)

    async def one(client: httpx.AsyncClient, body: dict[str, Any]) -> Reply:
        async with places:
            whole, streamed = await asyncio.gather(
                *(ask(client, path, body, stream=stream) for stream in (False, True))
            )
        assert streamed.choices == whole.choices, body
        whole.usage.pop("prompt_tokens_details")  # which of both came first is not told
        streamed.usage.pop("prompt_tokens_details")
        assert streamed.usage == whole.usage, body
        return whole

    headers = {"authorization": f"Bearer {house.acme.key}"}
    async with httpx.AsyncClient(base_url=house.url, headers=headers, timeout=PATIENCE_S) as client:
        return await asyncio.gather(*(one(client, body) for body in bodies))


def tokens_of(prompt: list[int], index: int, count: int) -> list[int]:
    """Return the token ids with which the fake engine answers."""
    return [prompt[(position + index) % len(prompt)] for position in range(count)]


def stop_strings(rng: random.Random, text: str) -> list[str]:
    found = []
    for _ in range(rng.choice((0, 0, 1, 2, 4))):
        start = rng.randrange(len(text) + 1)
        found.append(text[start : start + rng.randint(1, 4)])
    return [each for each in found if each]


async def test_an_echoed_prompt_of_special_tokens_is_shown_with_its_log_probabilities(
    house: House, tokenizer: Tokenizer
) -> None:
    special = min(tokenizer.special_ids)
    body = {"model": "tiny", "prompt": [special, special], "max_tokens": 3, "logprobs": 1, "echo": True}
    (reply,) = await both_ways(house, "/v1/completions", [body])
    said = reply.choices[0]
    assert (said.text, len(said.logprobs["tokens"]), said.logprobs["token_logprobs"][0]) == (
        "<|im_start|>" * 2,
        5,
        None,
    )
    assert said.logprobs["text_offset"] == [0, 12, 24, 24, 24], "those of the completion have no text"


async def test_completions_of_random_tokens_are_equal_whole_and_streamed(
    house: House, tokenizer: Tokenizer, num_requests: int
) -> None:
    rng = random.Random(1)
    bodies = []
    for _ in range(num_requests):
        prompt = random_ids(rng, tokenizer)[:MAX_TOKENS]
        max_tokens = rng.randint(1, MAX_TOKENS)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "n": rng.choice((1, 1, 3))}
        body["stop"] = stop_strings(rng, tokenizer.decode(tokens_of(prompt, 0, max_tokens))) or None
        body["min_tokens"] = rng.choice((0, 0, max_tokens // 2))
        body["logprobs"] = rng.choice((None, 0, 2))
        body["echo"] = rng.random() < 0.2
        bodies.append(body)
    for body, reply in zip(bodies, await both_ways(house, "/v1/completions", bodies), strict=True):
        echo = tokenizer.decode(body["prompt"], with_special=True) if body["echo"] else ""
        for index, said in reply.choices.items():
            ids = tokens_of(body["prompt"], index, body["max_tokens"])
            text = echo + tokenizer.decode(ids)
            assert text.startswith(said.text), body
            assert said.text == text or said.finish_reason == "stop", body
            if body["logprobs"] is not None and said.finish_reason == "length":
                shown = [token_name(tokenizer.token_bytes(each)) for each in ids]
                assert said.logprobs["tokens"][-len(ids) :] == shown, body
                logprobs = [fake_logprobs(each, 0, 0).logprob for each in ids]
                assert said.logprobs["token_logprobs"][-len(ids) :] == logprobs


def prompt_of(tokenizer: Tokenizer, messages: list[dict[str, str]]) -> list[int]:
    """Return the token ids of a conversation, including the special tokens that the template writes."""
    return tokenizer.encode_text(tokenizer.render_chat(list(messages)), add_special_tokens=False)


async def test_chats_in_all_scripts_are_equal_whole_and_streamed(
    house: House, tokenizer: Tokenizer, num_requests: int
) -> None:
    """The fake engine repeats the template's tokens, special ones included, which are no text."""
    rng = random.Random(2)
    bodies: list[dict[str, Any]] = []
    for _ in range(num_requests):
        messages = [{"role": "user", "content": random_text(rng)}]
        body = {"model": "tiny", "messages": messages, "max_tokens": rng.randint(1, 120), "n": rng.choice((1, 1, 2))}
        text = tokenizer.decode(tokens_of(prompt_of(tokenizer, messages), 0, body["max_tokens"]))
        body["stop"] = stop_strings(rng, text) or None
        if rng.random() < 0.5:
            body |= {"logprobs": True, "top_logprobs": 1}
        bodies.append(body)
    for body, reply in zip(bodies, await both_ways(house, "/v1/chat/completions", bodies), strict=True):
        prompt = prompt_of(tokenizer, body["messages"])
        for index, said in reply.choices.items():
            ids = tokens_of(prompt, index, body["max_tokens"])
            text = tokenizer.decode(ids)
            assert text.startswith(said.text), body
            assert said.text == text or said.finish_reason == "stop", body
            if "content" in said.logprobs:
                raw = [bytes(token["bytes"]) for token in said.logprobs["content"]]
                assert raw == [tokenizer.token_bytes(each) for each in ids][: len(raw)], body
                assert len(raw) == len(ids) or said.finish_reason == "stop"
