"""NVIDIA's Triton itself, with models that have the tensors of its vLLM backend and of TensorRT-LLM (by hand)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from adapters.ref import content_key
from gateway.backends.base import Unanswered
from gateway.backends.engine.model import EngineModel
from gateway.backends.foreign.backend import ForeignBackend
from gateway.backends.generation import Generation
from gateway.domain.errors import Overloaded
from tests.gateway.backends.foreign import triton_environment
from tests.gateway.backends.foreign.backends import FAST, asking, backend_of, collect
from tests.gateway.backends.scripted import ListSink
from tests.gateway.model_folder import make_model_folder

pytestmark = pytest.mark.skipif(not triton_environment.MADE.exists(), reason="`make long-foreign` installs Triton")

KINDS = ["vllm", "tensorrt"]


@pytest.fixture(scope="module")
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if not request.config.getoption("--full"):
        pytest.skip("needs a server of its own")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command, environ = triton_environment.command(port)
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def backend_at(url: str, kind: str, tmp_path: Path) -> AsyncIterator[tuple[ForeignBackend, ListSink]]:
    settings = msgspec.structs.replace(FAST, served_model=kind, preloaded_adapters=True, first_token_seconds=30.0)
    model, sink = EngineModel.load(make_model_folder(tmp_path / "model")), ListSink()
    async with backend_of(url, sink, driver="kserve", settings=settings, model=model) as backend:
        yield backend, sink


def numbered_chat(place: int, name: str = "", *, max_tokens: int = 40) -> Generation:
    generation = asking(
        f"question {place}", request_id=f"req_{place}", max_tokens=max_tokens, temperature=0.0, seed=place
    )
    ids = list(range(10))
    key = content_key("tenant", name * 64) if name else ""
    request = msgspec.structs.replace(generation.request, prompt_token_ids=ids, adapter=key)
    return msgspec.structs.replace(generation, request=request, num_prompt_tokens=None)


@pytest.mark.parametrize("kind", KINDS)
async def test_each_answer_is_of_its_adapter_and_of_none_that_is_not_there(url: str, kind: str, tmp_path: Path) -> None:
    async with backend_at(url, kind, tmp_path) as (backend, sink):
        names = ["", "1", "2"]
        answers = await asyncio.gather(
            *(collect(backend, numbered_chat(place, names[place % 3])) for place in range(60))
        )
        for place, collected in enumerate(answers):
            assert collected.text.startswith(f"[{names[place % 3] or 'base'}]"), (place, collected.text)
            assert collected.finish_reasons == ["stop"]
        assert len(sink.records) == 60
        if kind == "vllm":  # which counts: one token for each word
            assert all(
                each.usage.completion_tokens == len(collected.text.split())
                for each, collected in zip(
                    sorted(sink.records, key=lambda each: int(each.request_id.removeprefix("req_"))),
                    answers,
                    strict=True,
                )
            )
        with pytest.raises(Unanswered) as caught:
            await collect(backend, numbered_chat(99, "3"))
        caught.value.settle()
        assert isinstance(caught.value.error, Overloaded)
        assert backend.health().ready


@pytest.mark.parametrize("kind", KINDS)
async def test_a_limit_ends_a_reply_with_its_reason(url: str, kind: str, tmp_path: Path) -> None:
    async with backend_at(url, kind, tmp_path) as (backend, _):
        collected = await collect(backend, numbered_chat(1, max_tokens=1))
        assert (collected.text, collected.finish_reasons) == ("[base]", ["length"])


async def test_a_pool_of_a_model_that_triton_lacks_gets_no_requests(url: str) -> None:
    settings = msgspec.structs.replace(FAST, served_model="nobodys")
    async with backend_of(url, ListSink(), driver="kserve", settings=settings, waits=False) as backend:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                while not backend.health().ready:  # noqa: ASYNC110 - it never is
                    await asyncio.sleep(0.05)
        assert not backend.health().ready
