"""Adapters at a server with vLLM's protocol: the right one answers or none, through loads, unloads and restarts."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from adapters.ref import content_key
from engine.protocol import GenerateRequest, SamplingParams
from gateway.backends.base import Unanswered
from gateway.backends.engine.model import EngineModel
from gateway.backends.foreign.backend import ForeignBackend
from gateway.backends.generation import Generation
from gateway.domain.errors import BackendFailed, InvalidRequest, Overloaded
from tests.gateway.backends.foreign.backends import FAST, Collected, backend_of, collect, until
from tests.gateway.backends.foreign.fake_vllm import BASE, FakeVllm, fake_vllm, tokens_of
from tests.gateway.backends.scripted import ListSink
from tests.gateway.model_folder import make_model_folder

FOLDER = "/srv/adapters"
SETTINGS = msgspec.structs.replace(FAST, adapter_folder=FOLDER, max_adapters=2)


def digest(number: int) -> str:
    return hashlib.sha256(f"adapter {number}".encode()).hexdigest()


def key(number: int, tenant: str = "tenant") -> str:
    return content_key(tenant, digest(number))


@pytest.fixture
async def vllm() -> AsyncIterator[FakeVllm]:
    async with fake_vllm(FOLDER) as vllm:
        yield vllm


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


@pytest.fixture
async def backend(vllm: FakeVllm, sink: ListSink, tmp_path: Path) -> AsyncIterator[ForeignBackend]:
    model = EngineModel.load(make_model_folder(tmp_path / "model"))
    async with backend_of(vllm.server.url, sink, driver="vllm", model=model, settings=SETTINGS) as backend:
        yield backend


async def ask(backend: ForeignBackend, adapter: str = "", request_id: str = "req_1") -> Collected:
    sampling = SamplingParams(max_tokens=16)
    request = GenerateRequest(request_id, [1, 2, 3], sampling, "tenant", adapter=adapter, meter=b"tag")
    return await collect(backend, Generation(request))


def text_of(backend: ForeignBackend, name: str) -> str:
    """Return the text of a model's reply."""
    return backend._pooled.model.tokenizer.decode(tokens_of(name))


async def test_an_adapter_is_loaded_tried_and_then_answers(vllm: FakeVllm, backend: ForeignBackend) -> None:
    assert (await ask(backend)).text == text_of(backend, BASE)
    assert backend.resident() == frozenset()
    assert (await ask(backend, key(1))).text == text_of(backend, digest(1))
    assert backend.resident() == {key(1)}
    assert (await ask(backend, key(1))).text == text_of(backend, digest(1))
    assert vllm.num_loads == 1
    bodies = [each.body for each in vllm.server.received if each.path == "/v1/load_lora_adapter"]
    assert bodies == [{"lora_name": digest(1), "lora_path": f"{FOLDER}/{digest(1)}"}]
    asked = [each.body["model"] for each in vllm.server.received if each.path == "/v1/completions"]
    made_up = asked[1]
    assert asked == [BASE, made_up, digest(1), digest(1), digest(1)], "a name that nobody has, then the probe"
    assert made_up not in (BASE, digest(1))


async def test_the_server_learns_nothing_of_tenants(vllm: FakeVllm, backend: ForeignBackend) -> None:
    await ask(backend, key(1, "project-a"))
    await ask(backend, key(1, "project-b"))
    assert vllm.num_loads == 1, "the same content of two tenants is one adapter"
    assert backend.resident() == {key(1, "project-a"), key(1, "project-b")}
    for received in vllm.server.received:
        shown = str(received)
        assert "project" not in shown
        assert key(1, "project-a").partition(".")[2] not in shown


async def test_the_least_recently_used_adapter_makes_room(vllm: FakeVllm, backend: ForeignBackend) -> None:
    for number in (1, 2, 1, 3):
        await ask(backend, key(number))
    assert vllm.loaded.keys() == {digest(1), digest(3)}
    assert backend.resident() == {key(1), key(3)}
    assert (await ask(backend, key(2))).text == text_of(backend, digest(2))
    assert vllm.loaded.keys() == {digest(3), digest(2)}


async def test_a_pinned_adapter_stays_loaded_until_it_is_unpinned(vllm: FakeVllm, backend: ForeignBackend) -> None:
    await backend.load(key(1))
    for number in (2, 3, 4):
        await ask(backend, key(number))
    assert digest(1) in vllm.loaded
    await backend.load(key(4))
    with pytest.raises(Unanswered) as caught:
        await ask(backend, key(5))
    assert isinstance(caught.value.error, Overloaded), "all places are pinned"
    await backend.unpin(key(1))
    await ask(backend, key(5))
    assert digest(1) not in vllm.loaded
    await backend.unload(key(4))
    assert digest(4) not in vllm.loaded


async def test_a_restart_costs_a_request_a_reload_and_nothing_else(
    vllm: FakeVllm, backend: ForeignBackend, sink: ListSink
) -> None:
    await ask(backend, key(1))
    vllm.restart()
    collected = await ask(backend, key(1), "req_2")
    assert collected.text == text_of(backend, digest(1))
    assert len(sink.records) == 2, "each request once"
    assert vllm.num_loads == 2


async def test_a_restart_is_noticed_by_the_servers_list_of_models(vllm: FakeVllm, backend: ForeignBackend) -> None:
    await ask(backend, key(1))
    engine_id = backend.health().engine_id
    vllm.restart()
    await until(lambda: not backend.resident())
    assert backend.health().engine_id != engine_id, "pinned adapters are loaded again, as by a new engine"
    assert (await ask(backend, key(1))).text == text_of(backend, digest(1))


async def test_an_adapter_that_the_server_has_already_is_used_only_from_the_expected_path(
    vllm: FakeVllm, backend: ForeignBackend
) -> None:
    vllm.loaded[digest(1)] = f"{FOLDER}/{digest(1)}"  # by another gateway
    vllm._list()
    assert (await ask(backend, key(1))).text == text_of(backend, digest(1))
    vllm.loaded[digest(2)] = "/elsewhere/with-the-same-name"
    vllm._list()
    with pytest.raises(Unanswered):
        await ask(backend, key(2))


async def test_a_base_that_answers_an_unknown_name_is_fatal_for_adapters_alone(
    vllm: FakeVllm, backend: ForeignBackend
) -> None:
    vllm.has_silent_base = True
    with capture_logs() as lines, pytest.raises(Unanswered) as caught:
        await ask(backend, key(1))
    assert caught.value.kind == "absent", "another server may be asked"
    assert [each["event"] for each in lines] == ["adapters_not_served"]
    assert vllm.num_loads == 0
    assert "adapters are not served" in backend.health().reason
    assert backend.health().ready
    assert (await ask(backend)).text == text_of(backend, BASE)


async def test_a_base_that_answers_for_an_adapter_is_found_out_in_its_reply(
    vllm: FakeVllm, backend: ForeignBackend
) -> None:
    await ask(backend, key(1))
    vllm.has_silent_base = True  # as by a proxy that was put in between
    vllm.loaded.clear()  # and the list goes on showing it
    with pytest.raises(Unanswered) as caught:
        await ask(backend, key(1))
    caught.value.settle()
    assert isinstance(caught.value.error, BackendFailed)
    assert not backend.resident()
    with pytest.raises(Unanswered):
        await ask(backend, key(1))


@pytest.mark.parametrize(("status", "error"), [(400, InvalidRequest), (404, Overloaded), (500, BackendFailed)], ids=str)
async def test_an_adapter_that_cannot_be_loaded_is_refused_and_not_tried_again_for_a_while(
    vllm: FakeVllm, backend: ForeignBackend, status: int, error: type[Exception]
) -> None:
    vllm.unfit[digest(1)] = status
    for _ in range(3):
        with pytest.raises(Unanswered) as caught:
            await ask(backend, key(1))
        assert isinstance(caught.value.error, error)
        assert "rank" not in str(caught.value.error.message)
    asked = sum(each.path == "/v1/load_lora_adapter" for each in vllm.server.received)
    assert asked == (3 if status == 404 else 1)
    assert backend.health().ready, "that says nothing about the server"


async def test_a_server_that_may_not_load_says_so_in_the_log(vllm: FakeVllm, backend: ForeignBackend) -> None:
    vllm.may_load = False
    with capture_logs() as lines, pytest.raises(Unanswered):
        await ask(backend, key(1))
    assert [(each["event"], each["why"], each["server_text"]) for each in lines] == [
        ("adapter_failed", "status 404", '{"detail":"Not Found"}')
    ]


async def test_a_probe_compares_an_adapter_with_the_base(vllm: FakeVllm, backend: ForeignBackend) -> None:
    probe = await backend.probe(key(1))
    assert (probe.max_difference, probe.num_tokens) == (1.0, 1)
    assert probe.load_seconds > 0
    vllm.unfit[digest(2)] = 400
    with pytest.raises(InvalidRequest):
        await backend.probe(key(2))


async def test_the_right_adapter_answers_whatever_is_loaded_unloaded_and_restarted(
    vllm: FakeVllm, backend: ForeignBackend, sink: ListSink
) -> None:
    chance = random.Random(7)
    wanted = [0 if chance.random() < 0.2 else chance.randrange(1, 6) for _ in range(400)]
    is_done = False

    async def disturb() -> None:
        while not is_done:
            await asyncio.sleep(0.01)
            if chance.random() < 0.2:
                vllm.restart()
            else:
                await backend.unload(key(chance.randrange(1, 6)))

    async def one(place: int, number: int) -> str:
        while True:
            try:
                collected = await ask(backend, key(number) if number else "", f"req_{place}_{chance.random()}")
            except Unanswered as unanswered:  # all places are in use: as a client, ask again
                unanswered.settle()
                await asyncio.sleep(0.005)
                continue
            return collected.text

    disturbing = asyncio.create_task(disturb())
    texts: list[str] = []
    for start in range(0, len(wanted), 8):
        texts += await asyncio.gather(*(one(start + at, each) for at, each in enumerate(wanted[start : start + 8])))
    is_done = True
    await disturbing
    assert texts == [text_of(backend, digest(each) if each else BASE) for each in wanted]
    assert vllm.num_loads > 20
    assert len(vllm.loaded) <= SETTINGS.max_adapters + 1
