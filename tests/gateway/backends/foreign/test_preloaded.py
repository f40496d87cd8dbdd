"""Adapters with which llama.cpp's server was started: requested by number, after the gateway has checked the
numbers."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from adapters.ref import content_key
from adapters.store import is_digest
from engine.protocol import GenerateRequest, SamplingParams
from gateway.backends.base import Unanswered
from gateway.backends.engine.model import EngineModel
from gateway.backends.foreign.backend import ForeignBackend
from gateway.backends.foreign.drivers.llamacpp_adapters import places_in
from gateway.backends.foreign.reply import BadReply
from gateway.backends.generation import Generation
from gateway.domain.errors import InvalidRequest, Overloaded
from tests.gateway.backends.foreign.backends import FAST, asking, backend_of, collect, until, until_ready
from tests.gateway.backends.foreign.fake import FakeServer, Received
from tests.gateway.backends.foreign.fake_llamacpp import FakeLlamaCpp, fake_llamacpp
from tests.gateway.backends.scripted import ListSink
from tests.gateway.model_folder import make_model_folder
from tests.patience import PATIENCE_S

SETTINGS = msgspec.structs.replace(FAST, preloaded_adapters=True, health_seconds=600.0)


def digest(number: int) -> str:
    return hashlib.sha256(f"adapter {number}".encode()).hexdigest()


def key(number: int) -> str:
    return content_key("tenant", digest(number))


def file(number: int) -> str:
    return f"/srv/ggufs/{digest(number)}.gguf"


@pytest.fixture
async def llama() -> AsyncIterator[FakeLlamaCpp]:
    async with fake_llamacpp(file(1), "/srv/ggufs/somebody-elses.gguf", file(2)) as llama:
        yield llama


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


@pytest.fixture
async def backend(llama: FakeLlamaCpp, sink: ListSink, tmp_path: Path) -> AsyncIterator[ForeignBackend]:
    model = EngineModel.load(make_model_folder(tmp_path / "model"))
    async with backend_of(llama.server.url, sink, driver="llamacpp", model=model, settings=SETTINGS) as backend:
        yield backend


async def ask(backend: ForeignBackend, adapter: str = "", request_id: str = "req_1") -> str:
    request = GenerateRequest(
        request_id, [1, 2, 3], SamplingParams(max_tokens=200), "tenant", adapter=adapter, meter=b"tag"
    )
    return (await collect(backend, Generation(request))).text


def text_generation(adapter: str = "") -> Generation:
    """Return a chat prepared as text, for a pool in which some server takes only text."""
    made = asking(max_tokens=200)
    return msgspec.structs.replace(made, request=msgspec.structs.replace(made.request, adapter=adapter))


async def test_each_adapter_answers_by_its_number_and_the_base_by_none(
    llama: FakeLlamaCpp, backend: ForeignBackend
) -> None:
    assert [await ask(backend, each) for each in ("", key(1), key(2), "")] == ["base", file(1), file(2), "base"]
    assert backend.resident() == {key(1), key(2)}
    asked = [each.body["lora"] for each in llama.server.received if each.body.get("stream")]
    assert asked[0] == [{"id": number, "scale": 0.0} for number in range(3)]
    assert asked[2] == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 0.0}, {"id": 2, "scale": 1.0}]


async def test_an_adapter_that_the_server_lacks_is_refused_and_its_probe_waits_for_another_server(
    backend: ForeignBackend,
) -> None:
    with pytest.raises(Unanswered) as caught:
        await ask(backend, key(3))
    assert isinstance(caught.value.error, InvalidRequest)
    assert caught.value.kind == "absent"
    with pytest.raises(Overloaded):
        await backend.probe(key(3))
    assert (await backend.probe(key(1))).max_difference == 1.5
    await backend.unload(key(1))
    assert await ask(backend, key(1)) == file(1), "it goes on having what it was started with"


async def test_a_restart_with_other_numbers_gives_nobody_another_adapter(
    llama: FakeLlamaCpp, backend: ForeignBackend, sink: ListSink
) -> None:
    assert await ask(backend, key(1)) == file(1)
    await llama.restart(file(2), file(1))
    with pytest.raises(Unanswered) as caught:
        await ask(backend, key(1), "req_2")  # the gateway has not asked it since
    caught.value.settle()
    assert caught.value.kind == "full", "another server may be asked"
    assert sink.records[-1].usage.completion_tokens == 0
    async with asyncio.timeout(PATIENCE_S):
        while True:  # the server is asked at once, long before health_seconds have passed
            try:
                assert await ask(backend, key(1), "req_3") == file(1)
                break
            except Unanswered as unanswered:
                unanswered.settle()
    assert backend.health().ready
    await llama.restart(file(2))
    with pytest.raises(Unanswered) as caught:
        await ask(backend, key(1), "req_4")
    caught.value.settle()
    await until(lambda: not backend.resident())


async def test_open_connections_to_a_former_process_get_no_request_by_the_numbers_of_its_successor(
    llama: FakeLlamaCpp, backend: ForeignBackend
) -> None:
    answer, is_free = llama.server.answer, asyncio.Event()

    async def answer_late(received: Received, writer: asyncio.StreamWriter) -> None:
        if received.path == "/completion":
            await is_free.wait()
        await answer(received, writer)

    llama.server.answer = answer_late
    running = [asyncio.create_task(ask(backend, each, f"req_{each}")) for each in (key(1), "")]
    await until(lambda: sum(each.path == "/completion" for each in llama.server.received) == 2)
    llama.server.leave_port()
    server = FakeServer()
    following = FakeLlamaCpp(server, file(2), "/srv/ggufs/somebody-elses.gguf", file(1))
    server.port = llama.server.port
    await server.start()
    try:
        await wait_for_numbers(backend, following)
        is_free.set()
        assert await asyncio.gather(*running) == [file(1), "base"]
        for number in (1, 2) * 3:
            assert await ask(backend, key(number), f"req_{number}") == file(number)
    finally:
        await server.stop()


async def wait_for_numbers(backend: ForeignBackend, llama: FakeLlamaCpp) -> None:
    """Make a backend query its server, and wait until the backend knows the numbers that adapters have there now."""
    backend._condition.ask_soon()
    names = [Path(path).stem if is_digest(Path(path).stem) else "" for path in llama.paths]
    await until(lambda: (info := backend._condition.info) is not None and list(info.places) == names)
    await until_ready(backend)


async def test_the_numbers_of_adapters_are_checked_once_for_each_connection(
    llama: FakeLlamaCpp, backend: ForeignBackend
) -> None:
    for number in (1, 2) * 10:
        assert await ask(backend, key(number)) == file(number)
    assert llama.num_lists <= 1 + llama.server.num_connections


async def test_the_right_adapter_answers_or_none_through_restarts_in_any_order(
    llama: FakeLlamaCpp, backend: ForeignBackend
) -> None:
    chance, files = random.Random(3), [file(number) for number in range(1, 5)]

    async def one(request_id: str) -> bool:
        number = chance.randrange(5)
        try:
            text = await ask(backend, key(number) if number else "", request_id)
        except Unanswered as unanswered:
            unanswered.settle()
            return False
        assert text == (file(number) if number else "base")
        return True

    await llama.restart(*files)
    for step in range(40):
        await wait_for_numbers(backend, llama)
        assert await one(f"req_{step}"), "its numbers are known, and nothing happens to it"
        before = [asyncio.create_task(one(f"req_{step}_{at}")) for at in range(2)]
        await asyncio.sleep(chance.choice((0.0, 0.001, 0.004)))
        chance.shuffle(files)
        await llama.restart(*files)
        await asyncio.gather(*before, one(f"req_{step}_after"))


async def test_each_restart_costs_a_request_at_most_and_all_others_get_their_adapter(
    llama: FakeLlamaCpp, backend: ForeignBackend
) -> None:
    chance, num_refused = random.Random(5), 0
    files = [file(number) for number in range(1, 5)]
    await llama.restart(*files)
    await wait_for_numbers(backend, llama)
    for step in range(40):
        chance.shuffle(files)
        await llama.restart(*files)
        for at in range(8):
            number = chance.randrange(5)
            try:
                text = await ask(backend, key(number) if number else "", f"req_{step}_{at}")
            except Unanswered as unanswered:
                unanswered.settle()
                num_refused += 1
                await wait_for_numbers(backend, llama)
                continue
            assert text == (file(number) if number else "base")
    assert num_refused <= 40


@pytest.mark.parametrize("body", [b"{}", b"[{}]", b'[{"id": 1, "path": "x"}]', b'[{"id": 0, "path": 1}]', b"\xff"])
def test_a_malformed_list_of_adapters_is_refused(body: bytes) -> None:
    with pytest.raises(BadReply):
        places_in(body)


def test_paths_of_any_operating_system_are_read_and_a_second_file_of_one_adapter_is_ignored() -> None:
    paths = [f"C:\\ggufs\\{digest(1)}.gguf", f"{digest(1)}.gguf", "notes.gguf"]
    listed = [{"id": number, "path": path, "scale": 1.0} for number, path in enumerate(paths)]
    assert places_in(msgspec.json.encode(listed)) == (digest(1), "", "")


async def test_an_untested_build_gets_no_requests_while_it_has_adapters(llama: FakeLlamaCpp) -> None:
    """A request without an adapter would get the adapters' default scales, which anybody may have changed."""
    llama.build, llama.default_scale = "b4000-abcdef0", 1.0
    settings = msgspec.structs.replace(SETTINGS, health_seconds=0.05)
    async with backend_of(llama.server.url, ListSink(), driver="llamacpp", settings=settings, waits=False) as backend:
        await until(lambda: "the server has adapters" in backend.health().reason)
        assert not backend.health().ready
        await llama.restart()
        await until_ready(backend)
        assert (await collect(backend, asking())).text == "base"


async def test_adapters_are_served_by_tested_builds_and_not_by_an_untested_one(
    llama: FakeLlamaCpp, backend: ForeignBackend, tmp_path: Path
) -> None:
    llama.default_scale = 1.0
    async with fake_llamacpp() as old:
        old.build = "b4000-abcdef0"
        model = EngineModel.load(make_model_folder(tmp_path / "other"))
        async with backend_of(old.server.url, ListSink(), driver="llamacpp", model=model, settings=SETTINGS) as other:
            trust = other.health().server
            assert trust is not None and not trust.is_tried and not trust.has_adapters
            with pytest.raises(Unanswered) as caught:
                await collect(other, text_generation(key(1)))
            assert caught.value.kind == "absent", "another server may be asked, and it costs no retry"
            assert (await collect(other, text_generation())).text == "base"
    assert [(await collect(backend, text_generation(each))).text for each in ("", key(2), "", key(1))] == [
        "base",
        file(2),
        "base",
        file(1),
    ]
    await llama.restart(file(2), file(1))
    with pytest.raises(Unanswered) as caught:
        await collect(backend, text_generation(key(1)))
    caught.value.settle()
    assert caught.value.kind == "full", "its numbers are proved here as well"
