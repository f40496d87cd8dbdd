"""A server with vLLM's protocol answers as a backend: by text, and by token ids in and out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from engine.protocol import GenerateRequest, SamplingParams
from gateway.backends.base import Unanswered
from gateway.backends.engine.model import EngineModel
from gateway.backends.generation import Generation
from tests.gateway.backends.foreign.backends import asking, backend_of, collect
from tests.gateway.backends.foreign.fake import END, HEAD, FakeServer, event, fake_server, saying, sending
from tests.gateway.backends.scripted import ListSink
from tests.gateway.model_folder import make_model_folder


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as server:
        yield server


@pytest.fixture
def model(tmp_path: Path) -> EngineModel:
    return EngineModel.load(make_model_folder(tmp_path / "model"))


def chunk(ids: list[int], so_far: int, prompt: int, finish: str | None = None) -> bytes:
    choice: dict[str, Any] = {"index": 0, "text": "theirs", "token_ids": ids, "finish_reason": finish}
    return event({"choices": [choice], "usage": {"prompt_tokens": prompt, "completion_tokens": so_far}})


def generation_of(ids: list[int], *, stop: tuple[str, ...] = (), tenant: str = "tenant") -> Generation:
    return Generation(GenerateRequest("req_1", ids, SamplingParams(max_tokens=16), tenant, meter=b"tag"), stop)


async def test_ids_go_in_and_come_out_and_the_text_is_made_here(server: FakeServer, model: EngineModel) -> None:
    sink, tokenizer = ListSink(), model.tokenizer
    prompt, reply = tokenizer.encode_text("abc"), tokenizer.encode_text("hello", add_special_tokens=False)
    server.answer = sending(
        HEAD,
        *(chunk([token_id], at + 1, len(prompt)) for at, token_id in enumerate(reply)),
        chunk([], len(reply), len(prompt), "stop"),
        event("[DONE]") + END,
    )
    async with backend_of(server.url, sink, driver="vllm", model=model) as backend:
        collected = await collect(backend, generation_of(prompt))
    assert (collected.text, collected.finish_reasons) == (tokenizer.decode(reply), ["stop"])
    (record,) = sink.records
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (len(prompt), len(reply))
    body = server.received[0].body
    assert (server.received[0].path, body["prompt"], body["return_token_ids"]) == ("/v1/completions", prompt, True)
    assert body["stream_options"]["continuous_usage_stats"] is True


async def test_a_stop_string_is_found_here_and_what_ran_past_it_is_not_billed(
    server: FakeServer, model: EngineModel
) -> None:
    sink, tokenizer = ListSink(), model.tokenizer
    reply = tokenizer.encode_text("abcdef", add_special_tokens=False)
    assert len(reply) > 3

    async def answer(received: object, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        for at, token_id in enumerate(reply * 3):
            writer.write(chunk([token_id], at + 1, 3))
            await writer.drain()
            await asyncio.sleep(0.02)

    server.answer = answer
    stop = tokenizer.decode(reply[1:2])
    async with backend_of(server.url, sink, driver="vllm", model=model) as backend:
        collected = await collect(backend, generation_of([1, 2, 3], stop=(stop,)))
    assert (collected.text, collected.finish_reasons) == (tokenizer.decode(reply[:1]), ["stop"])
    assert "stop" not in server.received[0].body
    assert sink.records[0].usage.completion_tokens == 2


async def test_a_client_that_leaves_pays_the_ids_that_came(server: FakeServer, model: EngineModel) -> None:
    sink = ListSink()

    async def answer(received: object, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + chunk([5], 1, 3) + chunk([6], 2, 3))
        await asyncio.sleep(60)

    server.answer = answer
    async with backend_of(server.url, sink, driver="vllm", model=model) as backend:
        async with aclosing(backend.generate(generation_of([1, 2, 3]))) as items:
            async for _ in items:
                break
        (record,) = sink.records
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (3, 2)


async def test_ids_beyond_the_vocabulary_are_a_failure(server: FakeServer, model: EngineModel) -> None:
    server.answer = sending(HEAD, chunk([10**9], 1, 3), event("[DONE]") + END)
    async with backend_of(server.url, ListSink(), driver="vllm", model=model) as backend:
        with pytest.raises(Unanswered):
            await collect(backend, generation_of([1, 2, 3]))


async def test_each_tenant_has_a_cache_salt_of_its_own_that_hides_its_name(
    server: FakeServer, model: EngineModel
) -> None:
    server.answer = sending(HEAD, chunk([5], 1, 3, "length"), event("[DONE]") + END)
    async with backend_of(server.url, ListSink(), driver="vllm", model=model) as backend:
        for tenant in ("project-a", "project-b", "project-a"):
            await collect(backend, generation_of([1, 2, 3], tenant=tenant))
    first, second, third = (each.body["cache_salt"] for each in server.received)
    assert first == third != second
    assert "project" not in first


async def test_without_a_tokenizer_messages_are_sent_and_text_comes_back(server: FakeServer) -> None:
    sink = ListSink()
    server.answer = saying("Hello", " world")
    async with backend_of(server.url, sink, driver="vllm") as backend:
        collected = await collect(backend, asking(top_k=5, min_p=0.1, ignore_eos=True))
    body = server.received[0].body
    assert collected.text == "Hello world"
    assert (body["top_k"], body["min_p"], body["ignore_eos"]) == (5, 0.1, True)
