"""SGLang's own way: token ids in and out, errors inside a stream that began well, adapters that its list lacks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from adapters.ref import content_key
from engine.protocol import GenerateRequest, Grammar, SamplingParams
from gateway.backends.base import Unanswered
from gateway.backends.engine.model import EngineModel
from gateway.backends.foreign.backend import ForeignBackend
from gateway.backends.generation import Generation
from gateway.domain.errors import InvalidRequest, Overloaded
from tests.gateway.backends.foreign.backends import FAST, Collected, asking, backend_of, collect
from tests.gateway.backends.foreign.fake import END, HEAD, FakeServer, Received, event, fake_server
from tests.gateway.backends.foreign.fake_vllm import tokens_of
from tests.gateway.backends.scripted import ListSink
from tests.gateway.model_folder import make_model_folder

FOLDER = "/srv/adapters"
SETTINGS = msgspec.structs.replace(FAST, adapter_folder=FOLDER, max_adapters=2)
TOO_LONG = "The input (5000 tokens) is longer than the model's context length (4096 tokens)."


class FakeSglang:
    """A fake of SGLang 0.5.23, written from its API. The ids of a reply are made of the model's name."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.loaded: dict[str, str] = {}
        self.refusals: dict[str, str] = {}
        """Messages by which adapters are refused, by name."""
        self.has_silent_base = False
        self.is_incremental = False
        """True if each event has the new ids alone."""
        self.error = ""
        """The error that a request gets inside its stream."""
        server.answer = self._answer

    async def _answer(self, received: Received, writer: asyncio.StreamWriter) -> None:
        body = received.body
        match received.path:
            case "/load_lora_adapter":
                name = body["lora_name"]
                error = self.refusals.get(name, "") or ("already loaded" if name in self.loaded else "")
                if not error:
                    self.loaded[name] = body["lora_path"]
                self._changed(writer, error)
            case "/unload_lora_adapter":
                gone = self.loaded.pop(body["lora_name"], None)
                self._changed(writer, "" if gone else "does not exist")
            case "/generate":
                await self._generate(body, writer)
            case "/v1/completions" | "/v1/chat/completions":
                self._complete(body, writer)

    async def _generate(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        name = body.get("lora_path") or "base"
        error = self.error
        if name not in self.loaded and name != "base":
            if not self.has_silent_base:
                error = f"The following requested LoRA adapters are not loaded: {name}\nLoaded adapters: {{}}."
            name = "base"
        if not body.get("stream"):
            logprobs = [[-0.5 if name == "base" else -1.0, 5, None]]
            good = {"text": "x", "meta_info": {"output_token_logprobs": logprobs, "completion_tokens": 1}}
            return _reply(writer, 400 if error else 200, {"error": {"message": error}} if error else good)
        writer.write(HEAD)
        if error:
            writer.write(event({"error": {"message": error}}) + event("[DONE]") + END)
            return None
        ids = tokens_of(name)
        for place in range(len(ids)):
            meta: dict[str, Any] = {"prompt_tokens": len(body["input_ids"]), "completion_tokens": place + 1}
            is_last = place == len(ids) - 1
            meta["finish_reason"] = {"type": "stop", "matched": 2} if is_last else None
            shown = ids[place : place + 1] if self.is_incremental else ids[: place + 1]
            writer.write(event({"text": "theirs", "output_ids": shown, "meta_info": meta}))
            await writer.drain()
        writer.write(event("[DONE]") + END)
        return None

    def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Answer a completion on OpenAI's routes, where an adapter is named `base:adapter`.

        The text of a stream is the adapter's name, or `base`; other replies have a log probability.
        """
        model = body["model"]
        name = model.partition(":")[2] or "base"
        if name not in self.loaded and name != "base":
            return _reply(writer, 400, {"message": f"The following requested LoRA adapters are not loaded: {name}"})
        if body.get("stream"):
            choice = {"index": 0, "delta": {"content": name}, "finish_reason": "stop"}
            writer.write(HEAD + event({"model": model, "choices": [choice]}) + event("[DONE]") + END)
            return None
        logprobs = {"token_logprobs": [-0.5 if name == "base" else -1.0]}
        return _reply(writer, 200, {"model": model, "choices": [{"index": 0, "text": "x", "logprobs": logprobs}]})

    def _changed(self, writer: asyncio.StreamWriter, error: str) -> None:
        value = {"success": not error, "error_message": error, "loaded_adapters": self.loaded}
        _reply(writer, 400 if error else 200, value)


def _reply(writer: asyncio.StreamWriter, status: int, value: object) -> None:
    body = json.dumps(value).encode()
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
    writer.write(head + body)


@pytest.fixture
async def sglang() -> AsyncIterator[FakeSglang]:
    async with fake_server() as server:
        yield FakeSglang(server)


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


@pytest.fixture
async def backend(sglang: FakeSglang, sink: ListSink, tmp_path: Path) -> AsyncIterator[ForeignBackend]:
    model = EngineModel.load(make_model_folder(tmp_path / "model"))
    async with backend_of(sglang.server.url, sink, driver="sglang", model=model, settings=SETTINGS) as backend:
        yield backend


def digest(number: int) -> str:
    return f"{number}" * 64


def key(number: int) -> str:
    return content_key("tenant", digest(number))


async def ask(backend: ForeignBackend, adapter: str = "", **sampling: Any) -> Collected:
    values = {"max_tokens": 16, **sampling}
    request = GenerateRequest("req_1", [1, 2, 3], SamplingParams(**values), "tenant", adapter=adapter, meter=b"tag")
    return await collect(backend, Generation(request))


def text_of(backend: ForeignBackend, name: str) -> str:
    return backend._pooled.model.tokenizer.decode(tokens_of(name))


@pytest.mark.parametrize("is_incremental", [False, True])
async def test_ids_go_in_and_come_out_however_they_are_streamed(
    sglang: FakeSglang, backend: ForeignBackend, sink: ListSink, is_incremental: bool
) -> None:
    sglang.is_incremental = is_incremental
    schema = Grammar("json_schema", '{"type":"object"}')
    collected = await ask(backend, top_k=5, min_p=0.1, seed=3, min_tokens=2, grammar=schema)
    assert (collected.text, collected.finish_reasons) == (text_of(backend, "base"), ["stop"])
    (record,) = sink.records
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (3, 3)
    body = sglang.server.received[0].body
    assert (body["input_ids"], body["stream"]) == ([1, 2, 3], True)
    wanted = {"max_new_tokens": 16, "top_k": 5, "min_p": 0.1, "sampling_seed": 3, "min_new_tokens": 2}
    assert wanted.items() <= body["sampling_params"].items()
    assert body["sampling_params"]["json_schema"] == '{"type":"object"}'
    assert body["extra_key"] and "tenant" not in json.dumps(body)
    assert "lora_path" not in body


async def test_an_error_of_the_request_comes_inside_a_stream_and_is_the_clients(
    sglang: FakeSglang, backend: ForeignBackend
) -> None:
    for error, code in ((TOO_LONG, "context_length_exceeded"), ("top_p must be in (0, 1]", "refused_by_server")):
        sglang.error = error
        for _ in range(6):  # more than would open the breaker
            with pytest.raises(Unanswered) as caught:
                await ask(backend)
            caught.value.settle()
            assert isinstance(caught.value.error, InvalidRequest)
            assert caught.value.error.code == code
    assert backend.health().ready


async def test_adapters_are_loaded_answer_and_make_room(sglang: FakeSglang, backend: ForeignBackend) -> None:
    for number in (1, 2, 1, 3, 2):
        assert (await ask(backend, key(number))).text == text_of(backend, digest(number))
    assert sglang.loaded == {digest(number): f"{FOLDER}/{digest(number)}" for number in (3, 2)}
    assert (await ask(backend)).text == text_of(backend, "base")
    assert (await backend.probe(key(2))).max_difference == 0.5


class ForgetfulAdapters(dict[str, str]):
    """The adapters of a server that drops each one as soon as it is loaded, as if it lacked room."""

    def __setitem__(self, name: str, path: str) -> None:
        """Ignore the adapter."""


async def test_an_adapter_that_the_server_drops_before_its_trial_is_not_blamed_on_the_tenant(
    sglang: FakeSglang, backend: ForeignBackend
) -> None:
    sglang.loaded = ForgetfulAdapters()
    with pytest.raises(Unanswered) as caught:
        await ask(backend, key(1))
    assert isinstance(caught.value.error, Overloaded)
    sglang.loaded = {}
    assert (await ask(backend, key(1))).text == text_of(backend, digest(1)), "and it is tried again at once"


async def test_an_adapter_that_the_server_dropped_by_itself_is_loaded_again(
    sglang: FakeSglang, backend: ForeignBackend, sink: ListSink
) -> None:
    await ask(backend, key(1))
    sglang.loaded.clear()
    assert (await ask(backend, key(1))).text == text_of(backend, digest(1))
    assert len(sink.records) == 2
    assert backend.resident() == {key(1)}


async def test_an_adapter_loaded_by_others_is_used_and_unloading_a_missing_adapter_succeeds(
    sglang: FakeSglang, backend: ForeignBackend
) -> None:
    sglang.loaded[digest(1)] = f"{FOLDER}/{digest(1)}"
    assert (await ask(backend, key(1))).text == text_of(backend, digest(1))
    sglang.loaded.clear()
    await backend.unload(key(1))


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("LoRA adapter has rank 64 which is higher than max_lora_rank 16", InvalidRequest),
        ("Can't find 'adapter_config.json' at '/srv/adapters'", Overloaded),
    ],
    ids=["unfit", "not in the folder"],
)
async def test_an_unfit_adapter_is_the_clients_error_and_a_missing_folder_is_the_servers(
    sglang: FakeSglang, backend: ForeignBackend, message: str, error: type[Exception]
) -> None:
    sglang.refusals[digest(1)] = message
    with pytest.raises(Unanswered) as caught:
        await ask(backend, key(1))
    assert isinstance(caught.value.error, error)


async def test_a_server_whose_base_answers_unknown_names_serves_no_adapters(
    sglang: FakeSglang, backend: ForeignBackend
) -> None:
    sglang.has_silent_base = True
    with pytest.raises(Unanswered):
        await ask(backend, key(1))
    assert not sglang.loaded
    assert "adapters are not served" in backend.health().reason
    assert (await ask(backend)).text == text_of(backend, "base")


async def test_an_untested_version_is_asked_for_adapters_by_model_names(
    sglang: FakeSglang, sink: ListSink, tmp_path: Path
) -> None:
    model = EngineModel.load(make_model_folder(tmp_path / "model"))
    sglang.server.facts = {"/get_server_info": {"version": "0.6.0"}}
    made = backend_of(sglang.server.url, sink, driver="sglang", model=model, settings=SETTINGS)
    async with made as backend:
        asked = asking()
        request = msgspec.structs.replace(asked.request, adapter=key(1))
        assert (await collect(backend, msgspec.structs.replace(asked, request=request))).text == digest(1)
        assert sglang.server.received[-1].body["model"] == f"theirs:{digest(1)}"
        sglang.loaded.clear()  # SGLang drops the least recently used adapter by itself
        request = msgspec.structs.replace(request, request_id="req_2")
        assert (await collect(backend, msgspec.structs.replace(asked, request=request))).text == digest(1)
        assert (await collect(backend, asking(request_id="req_3"))).text == "base"
