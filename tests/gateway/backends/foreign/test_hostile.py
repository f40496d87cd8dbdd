"""A hostile server's reply is bounded in size and time, ends as an error in our words, and is recorded once."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import msgspec
import pytest

from gateway.backends.base import Unanswered
from gateway.backends.foreign.sse import MAX_EVENT_BYTES, EventReader, EventTooLarge
from gateway.domain.errors import BackendFailed
from gateway.text.tools.tool import Tool, ToolUse
from tests.faults.foreign.hostile_process import hostile_process
from tests.gateway.backends.foreign.backends import FAST, asking, backend_of, collect, until_ready
from tests.gateway.backends.foreign.fake import END, FakeServer, delta, event, fake_server, sending, usage
from tests.gateway.backends.foreign.hostile import (
    ASKED,
    FINISHED,
    GOOD,
    HEAD,
    HOSTILE,
    KEY,
    LYING,
    ODD,
    OF_REQUEST,
    WORDS,
)
from tests.gateway.backends.scripted import ListSink
from tests.patience import PATIENCE_S, least

SHORT = msgspec.structs.replace(FAST, first_token_seconds=0.4, idle_seconds=0.4, total_seconds=1.0)
AMPLE = msgspec.structs.replace(FAST, first_token_seconds=PATIENCE_S, idle_seconds=PATIENCE_S, total_seconds=PATIENCE_S)
"""Timeouts long enough for replies that end by themselves, even on a busy machine."""
PATIENT = msgspec.structs.replace(AMPLE, health_seconds=PATIENCE_S)
MAX_BYTES = 24 << 20
MAX_TURN_S, MAX_ALL_S = 0.02, 0.1
"""The most processor time of one turn of the loop, and of all turns of a reply but the short ones."""
SHORT_TURN_S = 0.0002
TRIES = 5
LARGE = [
    name
    for name in HOSTILE
    if name.startswith(("a megabyte", "endless", "an event of endless", "deep", "many", "a chunk's extension"))
]
"""The names of behaviours that cause a gateway much work."""
TOOL = Tool("weather", {"type": "object"}, "tools[0]")
TOOLS = ToolUse((TOOL,), frozenset({"weather"}))


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as server:
        yield server


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_reply_ends_as_our_error_within_bounds(server: FakeServer, name: str) -> None:
    sink = ListSink()
    server.answer = HOSTILE[name]
    tracemalloc.start()
    try:
        async with (
            backend_of(server.url, sink, settings=AMPLE if name in OF_REQUEST else SHORT, key=KEY) as backend,
            asyncio.timeout(PATIENCE_S),
        ):
            with pytest.raises(Unanswered) as caught:
                await collect(backend, asking(tools=TOOLS))
            _, peak = tracemalloc.get_traced_memory()
            caught.value.settle()
            assert backend.num_in_flight == 0
            assert backend.health().ready, "one failure is none of the server"
    finally:
        tracemalloc.stop()
    assert caught.value.kind == ("failed" if name in OF_REQUEST else "died")
    assert isinstance(caught.value.error, BackendFailed)
    assert not [word for word in WORDS if word in caught.value.error.message]
    assert peak < MAX_BYTES, f"{peak >> 20} MiB"
    (record,) = sink.records
    assert record.usage.completion_tokens <= 16


@pytest.mark.parametrize("name", [name for name in HOSTILE if name.startswith("endless")])
async def test_an_endless_reply_is_cut_off_by_its_size_before_any_timeout(server: FakeServer, name: str) -> None:
    """Without a bound on size, a server could keep a processor busy for the two minutes that a first token may take."""
    server.answer = HOSTILE[name]
    patient = msgspec.structs.replace(FAST, first_token_seconds=600.0, idle_seconds=600.0, total_seconds=600.0)
    async with backend_of(server.url, ListSink(), settings=patient) as backend, asyncio.timeout(PATIENCE_S):
        with pytest.raises(Unanswered) as caught:
            await collect(backend, asking())
        caught.value.settle()


@pytest.fixture(scope="module")
def hostile_url() -> Iterator[str]:
    """Give the URL of a server of all behaviours in a process of its own, so that this process's time is the
    gateway's alone."""
    with hostile_process() as url:
        yield url


@pytest.mark.parametrize("name", LARGE)
async def test_no_reply_keeps_the_processor_for_long(hostile_url: str, name: str) -> None:
    """The shortest time of a few tries counts, since other processes slow this machine down at times."""
    longest_s = all_s = 0.0
    async with backend_of(hostile_url, ListSink(), settings=PATIENT) as backend:
        for _ in range(TRIES):
            watching = asyncio.create_task(long_turns_s())
            with pytest.raises(Unanswered) as caught:
                await collect(backend, asking(name, tools=TOOLS))
            caught.value.settle()
            watching.cancel()
            turns_s = await watching
            longest_s, all_s = max(turns_s, default=0.0), sum(turns_s)
            if longest_s < MAX_TURN_S and all_s < MAX_ALL_S:
                return
    raise AssertionError(f"{longest_s:.3f} s of processor time at a stretch, {all_s:.3f} s in all")


async def long_turns_s() -> list[float]:
    """Return the processor seconds of each long turn of the event loop, once this task is cancelled."""
    turns_s = list[float]()
    with suppress(asyncio.CancelledError):
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(0)
            if (took_s := time.thread_time() - before_s) > SHORT_TURN_S:
                turns_s.append(took_s)
    return turns_s


@pytest.mark.parametrize("name", sorted(OF_REQUEST))
async def test_hostile_replies_that_a_request_can_cause_do_not_make_the_server_unavailable(
    server: FakeServer, name: str
) -> None:
    sink = ListSink()
    server.answer = HOSTILE[name]
    async with backend_of(server.url, sink, settings=AMPLE) as backend:
        for number in range(12):
            with pytest.raises(Unanswered) as caught:
                await collect(backend, asking(request_id=f"req_{number}", tools=TOOLS))
            caught.value.settle()
        assert backend.health().ready
        server.answer = sending(HEAD, GOOD)
        assert (await collect(backend, asking(request_id="req_last"))).text == "Hello"
    assert len(sink.records) == 13


@pytest.mark.parametrize("reply", ODD.values(), ids=ODD.keys())
async def test_an_odd_but_valid_reply_is_served_and_counted_once(server: FakeServer, reply: bytes) -> None:
    sink = ListSink()
    server.answer = sending(reply)
    async with backend_of(server.url, sink, settings=AMPLE) as backend:
        collected = await collect(backend, asking())
    assert (collected.text, collected.finish_reasons) == ("Hello", ["stop"])
    (record,) = sink.records
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (9, 1)


@pytest.mark.parametrize("name", LYING)
async def test_counts_that_cannot_be_true_are_not_billed(server: FakeServer, name: str) -> None:
    sink = ListSink()
    server.answer = sending(LYING[name] + event("[DONE]") + END)
    async with backend_of(server.url, sink, settings=AMPLE) as backend:
        assert (await collect(backend, asking())).text == "Hello"
    (record,) = sink.records
    assert (record.usage.completion_tokens, record.usage.prompt_tokens < 100) in ((1, True), (2, True))
    assert 0 <= record.usage.cached_tokens <= record.usage.prompt_tokens


@pytest.mark.parametrize("name", ASKED)
async def test_a_server_with_hostile_answers_to_health_checks_gets_no_requests(server: FakeServer, name: str) -> None:
    tracemalloc.start()
    try:
        async with backend_of(server.url, ListSink(), settings=SHORT, key=KEY) as backend:
            server.answer_to_questions = ASKED[name]
            await until_ready(backend, ready=False)
            assert not [word for word in WORDS if word in backend.health().detail]
            server.answer_to_questions = None
            await until_ready(backend)
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MAX_BYTES, f"{peak >> 20} MiB"


def test_the_suite_has_fifty_behaviours_and_more() -> None:
    assert len(HOSTILE.keys() | ODD.keys() | LYING.keys() | ASKED.keys()) >= 80


async def test_a_long_reply_may_come_in_one_piece_with_its_head(server: FakeServer) -> None:
    sink = ListSink()
    words = event(delta("word ")) * 1000
    server.answer = sending(HEAD + words + FINISHED + event(usage(9, 1000)) + event("[DONE]") + END)
    async with backend_of(server.url, sink, settings=AMPLE) as backend:
        collected = await collect(backend, asking(max_tokens=1000))
    assert collected.text == "word " * 1000
    assert sink.records[0].usage.completion_tokens == 1000


async def test_a_reply_in_single_bytes_is_the_same_reply(server: FakeServer) -> None:
    sink = ListSink()

    async def answer(received: object, writer: asyncio.StreamWriter) -> None:
        for at in range(len(HEAD + GOOD)):
            writer.write((HEAD + GOOD)[at : at + 1])
            await writer.drain()
            await asyncio.sleep(0)

    server.answer = answer
    async with backend_of(server.url, sink) as backend:
        assert (await collect(backend, asking())).text == "Hello"


async def test_a_server_that_trickles_is_cut_off_in_time(server: FakeServer) -> None:
    sink = ListSink()

    async def answer(received: object, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while not writer.is_closing():
            writer.write(event(delta("a")))
            await writer.drain()
            await asyncio.sleep(0.1)

    server.answer = answer

    async def until_cut_off_s() -> float:
        began_s = asyncio.get_running_loop().time()
        async with backend_of(server.url, sink, settings=SHORT) as backend:
            with pytest.raises(Unanswered):
                await collect(backend, asking(max_tokens=10_000))
        return asyncio.get_running_loop().time() - began_s

    assert await least(until_cut_off_s, 3.0) < 3.0


def test_lines_without_a_value_count_toward_the_size_of_an_event() -> None:
    events = EventReader()
    with pytest.raises(EventTooLarge):
        for _ in range(MAX_EVENT_BYTES // 8192 + 1):
            events.push(b"data:\n" * 8192)
