"""The particular ways of Ollama and TGI: what their drivers send, and the traps that they avoid."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import msgspec
import pytest

from engine.protocol import GenerateRequest, Grammar, SamplingParams
from gateway.backends.base import Unanswered
from gateway.backends.foreign.lines import LineSplitter
from gateway.backends.foreign.sse import MAX_EVENT_BYTES, EventTooLarge
from gateway.backends.generation import Generation
from tests.gateway.backends.foreign.backends import FAST, asking, backend_of, collect
from tests.gateway.backends.foreign.dialects import DIALECTS, HEAD
from tests.gateway.backends.foreign.fake import FakeServer, chunk, fake_server, sending
from tests.gateway.backends.scripted import ListSink

OLLAMA = DIALECTS["ollama"]


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as server:
        server.facts = OLLAMA.facts | DIALECTS["tgi"].facts
        server.answer = sending(*OLLAMA.saying("Hello", " world"))
        yield server


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


async def test_the_length_of_the_context_is_sent_so_that_no_prompt_is_cut_in_silence(
    server: FakeServer, sink: ListSink
) -> None:
    settings = msgspec.structs.replace(FAST, max_model_len=2048)
    async with backend_of(server.url, sink, driver="ollama", settings=settings) as backend:
        await collect(backend, asking(top_k=5, min_p=0.1, grammar=Grammar("json_schema", '{"type":"object"}')))
        assert backend.capabilities.max_model_len == 2048
    body = server.received[0].body
    assert (body["model"], body["truncate"], body["shift"]) == ("theirs", False, False)
    assert {"num_ctx": 2048, "top_k": 5, "min_p": 0.1}.items() <= body["options"].items()
    assert body["format"] == {"type": "object"}


async def test_the_gateway_counts_a_cached_prompt_that_ollama_does_not_count(
    server: FakeServer, sink: ListSink
) -> None:
    end = OLLAMA.finish("stop", 2)[0]
    del end["prompt_eval_count"]
    parts = OLLAMA.saying("Hello", " world")
    server.answer = sending(*parts[:3], OLLAMA.event(end), parts[-1])
    asked = asking()
    async with backend_of(server.url, sink, driver="ollama") as backend:
        await collect(backend, asked)
    (record,) = sink.records
    assert record.usage.prompt_tokens == asked.likely_prompt_tokens == 11
    assert record.usage.completion_tokens == 2


async def test_thoughts_are_counted_and_are_no_text(server: FakeServer, sink: ListSink) -> None:
    thought = {"message": {"role": "assistant", "content": "", "thinking": "hm " * 10}, "done": False}
    parts = OLLAMA.saying("well")
    end = OLLAMA.finish("stop", 12)
    server.answer = sending(parts[0], OLLAMA.event(thought), parts[1], *map(OLLAMA.event, end), parts[-1])
    async with backend_of(server.url, sink, driver="ollama") as backend:
        collected = await collect(backend, asking())
    assert (collected.text, "".join(piece.reasoning for piece in collected.pieces)) == ("well", "hm " * 10)
    assert sink.records[0].usage.completion_tokens == 12


async def test_a_plain_prompt_goes_without_a_template(server: FakeServer, sink: ListSink) -> None:
    lines = [{"response": "there", "done": False}, OLLAMA.finish("length", 1)[0]]
    server.answer = sending(OLLAMA.head, *map(OLLAMA.event, lines), b"0\r\n\r\n")
    request = GenerateRequest("req_1", [], SamplingParams(max_tokens=4), "tenant", meter=b"tag")
    generation = Generation(request, prompt_text="Hello", num_prompt_tokens=21)
    async with backend_of(server.url, sink, driver="ollama") as backend:
        assert (await collect(backend, generation)).text == "there"
    received = server.received[0]
    assert (received.path, received.body["prompt"], received.body["raw"]) == ("/api/generate", "Hello", True)


async def test_a_reply_that_ends_since_its_model_was_unloaded_is_a_failure(server: FakeServer, sink: ListSink) -> None:
    server.answer = sending(*OLLAMA.saying("Hello", reason="unload"))
    async with backend_of(server.url, sink, driver="ollama") as backend:
        with pytest.raises(Unanswered):
            await collect(backend, asking())


async def test_lines_are_read_whether_they_come_byte_by_byte_or_all_at_once(server: FakeServer, sink: ListSink) -> None:
    lines = [OLLAMA.part("Hel", 1), OLLAMA.part("lo", 2), *OLLAMA.finish("stop", 2)]
    whole = "".join(f"{json.dumps(each)}\r\n" for each in lines).encode()
    for parts in ([whole], [whole[at : at + 1] for at in range(len(whole))], [whole[:-2]]):
        server.answer = sending(HEAD % b"application/x-ndjson", *map(chunk, parts), b"0\r\n\r\n")
        async with backend_of(server.url, sink, driver="ollama") as backend:
            assert (await collect(backend, asking())).text == "Hello"


def test_a_line_without_end_is_cut_off() -> None:
    splitter = LineSplitter()
    with pytest.raises(EventTooLarge):
        for _ in range(MAX_EVENT_BYTES // 65536 + 1):
            splitter.push(b"a" * 65536)
    with pytest.raises(EventTooLarge):
        LineSplitter().push(b"a" * (MAX_EVENT_BYTES + 1) + b"\n")


async def test_tgi_is_not_asked_for_what_it_refuses(server: FakeServer, sink: ListSink) -> None:
    server.answer = sending(*DIALECTS["tgi"].saying("Hello"))
    async with backend_of(server.url, sink, driver="tgi") as backend:
        await collect(backend, asking())
        assert (backend.capabilities.max_model_len, backend.capabilities.max_running) == (4096, 128)
        server.answer = sending(*DIALECTS["tgi"].saying("Hello"))
        await collect(backend, asking(top_p=0.5, request_id="req_2"))
    assert "top_p" not in server.received[0].body
    assert server.received[1].body["top_p"] == 0.5
