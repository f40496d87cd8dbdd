"""Adapters that are sent to Ollama: each becomes a model there, named by its digest, and is tried before it answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters.ref import content_key
from adapters.store import FILE_NAMES, AdapterStore
from gateway.backends.base import Unanswered
from gateway.backends.foreign.backend import ForeignBackend
from gateway.backends.generation import Generation
from gateway.domain.errors import Overloaded
from tests.adapters.folders import write_adapter
from tests.demo import REPOSITORY
from tests.gateway.backends.foreign.backends import FAST, asking, backend_of, collect, until
from tests.gateway.backends.foreign.fake import FakeServer, Received, chunk, fake_server
from tests.gateway.backends.scripted import ListSink

SETTINGS = msgspec.structs.replace(FAST, upload_adapters=True, served_model="base", max_adapters=1)
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"


class FakeOllama:
    """An Ollama that stores blobs by their digests, makes models of them, and answers with the digests of a model's
    files."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.blobs: set[str] = set()
        self.models: dict[str, dict[str, str]] = {"base": {}}
        self.is_silent = False
        """True if a model that does not exist is answered by the base."""
        server.answer = self._answer
        self._list()

    def _list(self) -> None:
        self.server.facts = {"/api/tags": {"models": [{"name": f"{each}:latest"} for each in self.models]}}

    async def _answer(self, received: Received, writer: asyncio.StreamWriter) -> None:
        body, path = received.body, received.path
        if path.startswith("/api/blobs/"):
            name = path.removeprefix("/api/blobs/")
            is_right = name == f"sha256:{hashlib.sha256(received.data).hexdigest()}"
            self.blobs |= {name} if is_right else set()
            return _reply(writer, 201 if is_right else 400, {})
        if path == "/api/create":
            is_whole = body["from"] in self.models and self.blobs.issuperset(body["adapters"].values())
            if is_whole:
                self.models[body["model"]] = body["adapters"]
                self._list()
            return _reply(writer, 200 if is_whole else 400, {"status": "success"})
        if path == "/api/delete":
            self.models.pop(body["model"], None)
            self._list()
            return _reply(writer, 200, {})
        name = "base" if self.is_silent else body["model"]
        if name not in self.models:
            return _reply(writer, 404, {"error": f"model '{name}' not found"})
        text = self.models[name].get("adapter_model.safetensors", "base")
        line = {"model": f"{name}:latest", "done": True, "done_reason": "stop", "eval_count": 30}
        line |= {"prompt_eval_count": 9, "message": {"role": "assistant", "content": text}, "response": text}
        if not body["stream"]:
            return _reply(writer, 200, line)
        writer.write(HEAD + chunk(json.dumps(line).encode() + b"\n") + b"0\r\n\r\n")
        return None


def _reply(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    data = json.dumps(value).encode()
    writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(data), data))


def asking_for(digest: str, request_id: str) -> Generation:
    generation = asking(request_id=request_id, max_tokens=64)
    key = content_key("tenant", digest) if digest else ""
    return msgspec.structs.replace(generation, request=msgspec.structs.replace(generation.request, adapter=key))


@pytest.fixture
def store(tmp_path: Path) -> AdapterStore:
    return AdapterStore(tmp_path / "store")


@asynccontextmanager
async def backend(store: AdapterStore) -> AsyncIterator[tuple[ForeignBackend, FakeOllama, ListSink]]:
    sink = ListSink()
    async with fake_server() as server:
        ollama = FakeOllama(server)
        async with backend_of(server.url, sink, driver="ollama", settings=SETTINGS, content=store.reading) as made:
            yield made, ollama, sink


def weights_of(store: AdapterStore, digest: str) -> str:
    data = (store.path(digest) / FILE_NAMES[1]).read_bytes()
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


async def test_each_adapter_is_sent_whole_and_answers_as_itself(store: AdapterStore, tmp_path: Path) -> None:
    one, two = store.add(write_adapter(tmp_path / "one")), store.add(REPOSITORY / "adapters" / "demo" / "json")
    async with backend(store) as (made, ollama, sink):
        for place, digest in enumerate(("", one, two, one, "")):
            text = (await collect(made, asking_for(digest, f"req_{place}"))).text
            assert text == (weights_of(store, digest) if digest else "base")
        assert set(ollama.models) == {"base", one}, "the other one made room"
        assert "tenant" not in json.dumps([each.body for each in ollama.server.received])
        with pytest.raises(Unanswered) as caught:
            await collect(made, asking_for("0" * 64, "req_9"))
        caught.value.settle()
        assert isinstance(caught.value.error, Overloaded), "the store does not have it"
    assert len(sink.records) == 5


async def test_an_adapter_lost_by_a_restart_is_sent_again_and_never_answered_by_the_base(
    store: AdapterStore, tmp_path: Path
) -> None:
    digest = store.add(write_adapter(tmp_path / "one"))
    async with backend(store) as (made, ollama, _):
        await collect(made, asking_for(digest, "req_1"))
        ollama.models = {"base": {}}
        ollama._list()
        assert (await collect(made, asking_for(digest, "req_2"))).text == weights_of(store, digest)
        ollama.is_silent = True
        with pytest.raises(Unanswered) as caught:
            await collect(made, asking_for(digest, "req_3"))
        caught.value.settle()
        await until(lambda: "adapters are not served" in made.health().reason)
