"""Triton's models: vLLM's with adapters by name, TensorRT-LLM's with adapters by number and without a reason of the
end."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from adapters.ref import content_key
from engine.protocol import GenerateRequest, SamplingParams
from gateway.backends.base import Unanswered
from gateway.backends.engine.model import EngineModel
from gateway.backends.foreign.backend import ForeignBackend
from gateway.backends.foreign.drivers.kserve_adapters import task_id_of
from gateway.backends.generation import Generation
from gateway.domain.errors import BackendFailed, Overloaded
from tests.gateway.backends.foreign.backends import FAST, asking, backend_of, collect
from tests.gateway.backends.foreign.dialects import KSERVE_INPUTS, kserve_facts
from tests.gateway.backends.foreign.fake import END, HEAD, FakeServer, Received, event, fake_server, sending
from tests.gateway.backends.scripted import ListSink
from tests.gateway.model_folder import make_model_folder
from tests.patience import PATIENCE_S

TENSORRT_INPUTS = ("text_input", "max_tokens", "stop_words", "top_p", "seed", "stream", "lora_task_id", "temperature")
SETTINGS = msgspec.structs.replace(FAST, preloaded_adapters=True)
THERE, GONE = (hashlib.sha256(name.encode()).hexdigest() for name in ("there", "gone"))


class FakeTriton:
    """A Triton with a model of one backend and some adapters, which refuses all others in that backend's words."""

    def __init__(self, server: FakeServer, *inputs: str, adapters: set[str]) -> None:
        self.server = server
        self.is_vllm = "sampling_parameters" in inputs
        self.adapters = adapters
        self.is_silent = False
        """True if an unknown name is answered by the base."""
        server.facts = kserve_facts(*inputs)
        server.answer = self._answer

    async def _answer(self, received: Received, writer: asyncio.StreamWriter) -> None:
        body = received.body
        given = json.loads(body["sampling_parameters"]) if self.is_vllm else body
        name = given.get("lora_name") if self.is_vllm else given.get("lora_task_id")
        by_name = {(each if self.is_vllm else task_id_of(each)): each for each in self.adapters}
        if name is not None and name not in by_name and not self.is_silent:
            error = f"LoRA {name} is not supported, we currently support []"
            if not self.is_vllm:
                error = f"Executor failed: LoRA task {name} not found in cache. Please send LoRA weights with request"
            data = f"data: {json.dumps({'error': error})}\n\n".encode()  # an event, as Triton 2.51 sends it
            writer.write(b"HTTP/1.1 400 X\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data))
            return
        text = by_name.get(name, "base")
        step = {"model_name": "theirs", "text_output": text}
        if self.is_vllm:
            step |= {"finish_reason": "stop", "num_output_tokens": 3, "num_input_tokens": 3}
        writer.write(HEAD + event(step) + END)


@asynccontextmanager
async def backend(*inputs: str, tmp_path: Path) -> AsyncIterator[tuple[ForeignBackend, FakeTriton, ListSink]]:
    model, sink = EngineModel.load(make_model_folder(tmp_path / "model")), ListSink()
    async with fake_server() as server:
        triton = FakeTriton(server, *inputs, adapters={THERE})
        async with backend_of(server.url, sink, driver="kserve", model=model, settings=SETTINGS) as made:
            yield made, triton, sink


def generation_by_ids(model: EngineModel, adapter: str = "", request_id: str = "req_1") -> Generation:
    ids = model.prepare_chat([{"role": "user", "content": "Say hello."}]).token_ids
    key = content_key("tenant", adapter) if adapter else ""
    sampling = SamplingParams(max_tokens=8, temperature=0.0)
    return Generation(GenerateRequest(request_id, ids, sampling, "tenant", adapter=key, meter=b"tag"))


@pytest.mark.parametrize("inputs", [KSERVE_INPUTS, TENSORRT_INPUTS], ids=["vllm", "tensorrt"])
async def test_adapters_are_requested_by_name_and_a_missing_adapter_is_never_answered_by_the_base(
    tmp_path: Path, inputs: tuple[str, ...]
) -> None:
    async with backend(*inputs, tmp_path=tmp_path) as (made, triton, sink):
        model = made._pooled.model
        assert isinstance(model, EngineModel)
        assert (await collect(made, generation_by_ids(model))).text == "base"
        prompt = triton.server.received[-1].body["text_input"]
        assert prompt == "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n", "the model's own template"
        assert (await collect(made, generation_by_ids(model, THERE, "req_2"))).text == THERE
        assert made.resident() == {content_key("tenant", THERE)}
        with pytest.raises(Unanswered) as caught:
            await collect(made, generation_by_ids(model, GONE, "req_3"))
        caught.value.settle()
        assert isinstance(caught.value.error, Overloaded), "another server may have it"
        triton.adapters.clear()  # the server's cache made room
        with pytest.raises(Unanswered) as caught:
            await collect(made, generation_by_ids(model, THERE, "req_4"))
        caught.value.settle()
        assert caught.value.kind == "full"
        assert made.health().ready, "which says nothing of the server"
    assert [each.usage.completion_tokens > 0 for each in sink.records] == [True, True, False, False][
        : len(sink.records)
    ]


async def test_a_model_that_answers_unknown_adapters_from_its_base_serves_the_base_alone(tmp_path: Path) -> None:
    async with backend(*TENSORRT_INPUTS, tmp_path=tmp_path) as (made, triton, _):
        triton.is_silent = True
        model = made._pooled.model
        assert isinstance(model, EngineModel)
        with pytest.raises(Unanswered) as caught:
            await collect(made, generation_by_ids(model, THERE))
        caught.value.settle()
        assert "from the base" in made.health().reason
        assert (await collect(made, generation_by_ids(model, request_id="req_2"))).text == "base"


async def test_the_end_of_tensorrts_stream_is_the_end_of_its_reply_unless_it_is_cut() -> None:
    sink = ListSink()
    async with fake_server() as server:
        server.facts = kserve_facts(*TENSORRT_INPUTS)
        words = [event({"text_output": word}) for word in ("Hel", "lo", "!")]
        async with backend_of(server.url, sink, driver="kserve", settings=FAST) as made:
            server.answer = sending(HEAD, *words, END)
            assert (await collect(made, asking(temperature=0.0, stop=("END",), seed=3))).finish_reasons == ["stop"]
            body = server.received[-1].body
            assert (body["max_tokens"], body["stop_words"], body["seed"], body["top_k"]) == (16, ["END"], 3, 1)
            assert body["text_input"] == "User: Say hello.\n\nAssistant:", "it has no chat template"
            collected = await collect(made, asking(max_tokens=3, request_id="req_2"))
            assert (collected.text, collected.finish_reasons) == ("Hello!", ["length"])
            server.answer = sending(HEAD, *words)
            with pytest.raises(Unanswered) as caught:
                await collect(made, asking(request_id="req_3"))
            caught.value.settle()
            assert isinstance(caught.value.error, BackendFailed)
    assert [each.finish_reason for each in sink.records] == ["stop", "length", "error"]
    assert sink.records[0].usage.completion_tokens == 3, "the parts, for the server counts nothing"


async def test_a_server_with_several_models_has_to_be_told_which_one() -> None:
    async with fake_server() as server:
        server.facts = kserve_facts(*KSERVE_INPUTS)
        server.facts["/v2/repository/index"] = [{"name": name, "state": "READY"} for name in ("theirs", "other")]
        async with backend_of(server.url, ListSink(), driver="kserve", settings=FAST, waits=False) as made:
            async with asyncio.timeout(PATIENCE_S):
                while "served_model" not in made.health().reason:  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(0.01)
        named = msgspec.structs.replace(FAST, served_model="theirs")
        async with backend_of(server.url, ListSink(), driver="kserve", settings=named) as made:
            assert made.health().ready
