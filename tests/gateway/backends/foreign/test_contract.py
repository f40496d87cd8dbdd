"""The contract of all drivers: what a gateway may rely on, whichever server is behind it. Each has a protocol fake."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import msgspec
import pytest

from gateway.backends.base import Unanswered
from gateway.backends.foreign.backend import ForeignBackend
from gateway.domain.errors import BackendFailed, InvalidRequest, Overloaded, ShuttingDown
from gateway.domain.pools.drivers import DRIVERS, OWN_DRIVER, Driver
from gateway.domain.pools.foreign_settings import TraceContext
from gateway.domain.routing.breaker import CONSECUTIVE
from tests.gateway.backends.foreign.backends import FAST, asking, backend_of, collect, until, until_ready
from tests.gateway.backends.foreign.dialects import DIALECTS, PROMPT, Dialect
from tests.gateway.backends.foreign.fake import Answer, FakeServer, Received, fake_server, refusing, sending
from tests.gateway.backends.scripted import ListSink
from tests.installation import waiting
from tests.patience import PATIENCE_S

SECRET = "sk-0123456789abcdefWXYZ of /srv/model at 10.1.2.3"
SHORT = msgspec.structs.replace(FAST, first_token_seconds=0.4, idle_seconds=0.4, total_seconds=2.0)
PATIENT = msgspec.structs.replace(FAST, first_token_seconds=600.0, idle_seconds=600.0, total_seconds=600.0)
"""Timeouts so long that no test reaches them."""
"""Settings for a busy machine: no server of these tests is slow."""


def test_every_driver_has_a_protocol_fake() -> None:
    assert DIALECTS.keys() == set(DRIVERS) - {OWN_DRIVER}


@pytest.fixture(params=sorted(DIALECTS))
def dialect(request: pytest.FixtureRequest) -> Dialect:
    driver: Driver = request.param
    return DIALECTS[driver]


@pytest.fixture
async def server(dialect: Dialect) -> AsyncIterator[FakeServer]:
    async with fake_server() as server:
        server.facts = dialect.facts
        server.answer = sending_all(dialect.saying("Hello", " world"))
        yield server


@pytest.fixture
def sink() -> ListSink:
    return ListSink()


@pytest.fixture
async def backend(dialect: Dialect, server: FakeServer, sink: ListSink) -> AsyncIterator[ForeignBackend]:
    async with backend_of(server.url, sink, driver=dialect.driver, settings=PATIENT, key="sk-ours") as backend:
        yield backend


def sending_all(parts: list[bytes], *, pause_s: float = 0.0) -> Answer:
    """Return an answer that sends these parts and keeps the connection open.

    pause_s: the seconds between two parts.
    """

    async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return answer


async def stay_silent(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def test_a_reply_is_streamed_whole_and_counted_once(
    dialect: Dialect, server: FakeServer, backend: ForeignBackend, sink: ListSink
) -> None:
    server.answer = sending_all(dialect.saying("Hel", "lo ", "wor", "ld"), pause_s=0.01)
    collected = await collect(backend, asking())
    assert (collected.text, collected.finish_reasons) == ("Hello world", ["stop"])
    assert len([piece for piece in collected.pieces if piece.text]) > 1, "as it comes"
    (record,) = sink.records
    assert (record.usage.prompt_tokens, record.usage.completion_tokens, record.finish_reason) == (PROMPT, 4, "stop")
    assert sink.dispatched_ids == ["req_1"]


async def test_a_request_says_what_was_asked_and_nothing_of_the_client(
    dialect: Dialect, server: FakeServer, backend: ForeignBackend
) -> None:
    await collect(backend, asking(max_tokens=7, stop=("END",), seed=3, temperature=0.5))
    (received,) = server.received
    assert (received.method, received.path) == ("POST", dialect.path)
    assert dialect.asked(received.body) == {"max_tokens": 7, "stop": ["END"], "seed": 3}
    assert received.headers["authorization"] == "Bearer sk-ours"
    assert received.headers["x-request-id"] == "req_1"
    assert "tenant" not in json.dumps(received.body)
    assert "Say hello." in json.dumps(received.body)


async def test_a_request_names_the_span_that_it_belongs_to(
    dialect: Dialect, server: FakeServer, backend: ForeignBackend
) -> None:
    header = f"00-{'a' * 32}-{'b' * 16}-01"
    await collect(backend, msgspec.structs.replace(asking(), trace=header))
    await collect(backend, asking())
    assert [each.headers.get("traceparent") for each in server.received] == [header, None]


@pytest.mark.parametrize(
    ("trace_context", "is_outside", "is_sent"),
    [("inside", True, False), ("always", True, True), ("never", False, False), ("never", True, False)],
)
async def test_a_server_outside_gets_no_trace_unless_settings_say_so(
    sink: ListSink, trace_context: TraceContext, is_outside: bool, is_sent: bool
) -> None:
    dialect, header = DIALECTS["openai"], f"00-{'a' * 32}-{'b' * 16}-01"
    settings = msgspec.structs.replace(PATIENT, trace_context=trace_context)
    async with fake_server() as server:
        server.facts, server.answer = dialect.facts, sending_all(dialect.saying("Hello"))
        async with backend_of(server.url, sink, settings=settings, is_outside=is_outside) as backend:
            await collect(backend, msgspec.structs.replace(asking(), trace=header))
    assert [each.headers.get("traceparent") for each in server.received] == [header if is_sent else None]


async def test_a_reply_cut_at_max_tokens_ends_with_the_reason_length(
    dialect: Dialect, server: FakeServer, backend: ForeignBackend, sink: ListSink
) -> None:
    server.answer = sending_all(dialect.saying("a", "b", reason="length"))
    assert (await collect(backend, asking(max_tokens=2))).finish_reasons == ["length"]
    assert sink.records[0].finish_reason == "length"


async def test_a_stop_string_ends_the_text_here_too(
    dialect: Dialect, server: FakeServer, backend: ForeignBackend, sink: ListSink
) -> None:
    server.answer = sending_all(dialect.saying("one ", "EN", "D two", *["more"] * 20), pause_s=0.005)
    collected = await collect(backend, asking(stop=("END",), max_tokens=60))
    assert (collected.text, collected.finish_reasons) == ("one ", ["stop"])
    assert sink.records[0].usage.completion_tokens == 3, "the parts up to the one that completed it"


async def test_a_reply_without_usage_is_counted_here(
    dialect: Dialect, server: FakeServer, backend: ForeignBackend, sink: ListSink
) -> None:
    server.answer = sending_all(dialect.saying("some words", " of text", usage=False))
    await collect(backend, asking())
    (record,) = sink.records
    expected = 5 if dialect.can_have_no_usage else 2
    assert record.usage.completion_tokens == expected, "18 bytes by four; or what the last part reported"


async def test_a_usage_that_cannot_be_true_is_not_billed(
    dialect: Dialect, server: FakeServer, backend: ForeignBackend, sink: ListSink
) -> None:
    parts = dialect.saying("some words", " of text")
    end = dialect.finish(dialect.reasons["stop"], 5000)
    server.answer = sending_all([*parts[:3], *map(dialect.event, end), parts[-1]])
    await collect(backend, asking())
    assert sink.records[0].usage.completion_tokens == 5


async def test_a_client_that_leaves_cuts_the_server_off(
    dialect: Dialect, server: FakeServer, backend: ForeignBackend, sink: ListSink
) -> None:
    server.answer = sending_all(dialect.saying(*["word "] * 1000), pause_s=0.01)
    async with aclosing(backend.generate(asking(max_tokens=1000))) as items:
        async for _ in items:
            break
    (record,) = sink.records
    assert record.finish_reason == "abort"
    assert 1 <= record.usage.completion_tokens < 10
    await until(lambda: server.num_cut)
    assert backend.num_in_flight == 0
    assert backend.health().ready


@pytest.mark.parametrize(
    ("status", "kind", "error"),
    [
        (400, "failed", InvalidRequest),
        (413, "failed", InvalidRequest),
        (422, "failed", InvalidRequest),
        (401, "died", BackendFailed),
        (404, "died", BackendFailed),
        (500, "died", BackendFailed),
        (302, "died", BackendFailed),
        (429, "full", Overloaded),
        (503, "full", Overloaded),
    ],
    ids=str,
)
async def test_an_error_reply_becomes_our_error_without_the_servers_words_and_bills_nothing(
    dialect: Dialect,
    server: FakeServer,
    backend: ForeignBackend,
    sink: ListSink,
    status: int,
    kind: str,
    error: type[Exception],
) -> None:
    server.answer = refusing(status, json.dumps(dialect.refusal(SECRET)), "location: http://127.0.0.1:1/")
    with pytest.raises(Unanswered) as caught:
        await collect(backend, asking())
    caught.value.settle()
    assert (caught.value.kind, type(caught.value.error)) == (kind, error)
    for word in SECRET.split():
        assert len(word) < 3 or word not in caught.value.error.message
    (record,) = sink.records
    assert (record.usage.prompt_tokens, record.usage.completion_tokens, record.finish_reason) == (0, 0, "error")
    assert sink.refused_ids == ([record.request_id] if error is InvalidRequest else [])
    assert len(server.received) == 1


@pytest.mark.parametrize("num_words", [0, 2])
async def test_an_error_within_a_reply_is_a_failure_and_not_a_normal_end(
    dialect: Dialect, server: FakeServer, backend: ForeignBackend, sink: ListSink, num_words: int
) -> None:
    words = dialect.saying(*["word "] * num_words)[: 1 + num_words]
    server.answer = sending(*words, dialect.event(dialect.error))
    with pytest.raises(Unanswered) as caught:
        await collect(backend, asking())
    caught.value.settle()
    assert isinstance(caught.value.error, BackendFailed)
    assert "CUDA" not in caught.value.error.message
    (record,) = sink.records
    assert record.finish_reason == "error"
    assert (record.usage.completion_tokens > 0) == (num_words > 0)


Spoil = Callable[[Dialect], Answer]
HOSTILE: dict[str, Spoil] = {
    "nothing": lambda dialect: sending(b""),
    "a head alone": lambda dialect: sending(dialect.head),
    "silence": lambda dialect: sending(b"", then=stay_silent),
    "silence in the midst": lambda dialect: sending(*dialect.saying("a")[:2], then=stay_silent),
    "a cut in the midst": lambda dialect: sending(*dialect.saying("a")[:2]),
    "half an event": lambda dialect: sending(dialect.head, dialect.event(dialect.part("a", 1))[:-9]),
    "no end": lambda dialect: sending(*dialect.saying("a")[:2], b"0\r\n\r\n"),
    "an unknown end": lambda dialect: sending(*dialect.saying("a", reason="tired")),
    "no JSON": lambda dialect: sending(dialect.head, dialect.event("{"), b"0\r\n\r\n"),
    "deep JSON": lambda dialect: sending(dialect.head, dialect.event("[" * 100_000), b"0\r\n\r\n"),
    "a list": lambda dialect: sending(dialect.head, dialect.event("[]"), b"0\r\n\r\n"),
    "HTML": lambda dialect: sending(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<br>"),
    "compressed": lambda dialect: sending(dialect.head.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n")),
    "no HTTP": lambda dialect: sending(b"220 smtp.example.com ESMTP\r\n"),
    "too much text": lambda dialect: sending_all(dialect.saying(*["word " * 400] * 20)),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_reply_ends_in_time_as_our_error(
    dialect: Dialect, server: FakeServer, sink: ListSink, name: str
) -> None:
    server.answer = HOSTILE[name](dialect)
    settings = SHORT if "silence" in name else PATIENT
    async with backend_of(server.url, sink, driver=dialect.driver, settings=settings, key="sk-ours") as backend:
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(Unanswered) as caught:
                await collect(backend, asking())
        caught.value.settle()
        assert isinstance(caught.value.error, BackendFailed)
        assert len(sink.records) == 1
        assert sink.records[0].usage.completion_tokens <= 16
        assert backend.num_in_flight == 0
        server.answer = sending_all(dialect.saying("well"))

        async def is_well() -> bool:
            try:
                return (await collect(backend, asking(request_id="req_2"))).text == "well"
            except Unanswered as unanswered:  # late, where this machine has much else to do
                unanswered.settle()
                return False

        await waiting.until(is_well)


async def test_a_server_that_fails_again_and_again_is_left_alone_and_comes_back(
    dialect: Dialect, server: FakeServer, backend: ForeignBackend
) -> None:
    server.answer = refusing(500)
    for number in range(CONSECUTIVE):
        with pytest.raises(Unanswered):
            await collect(backend, asking(request_id=f"req_{number}"))
    assert not backend.health().ready
    server.answer = sending_all(dialect.saying("well"))
    await until_ready(backend)
    assert (await collect(backend, asking(request_id="req_last"))).text == "well"


async def test_a_server_that_is_restarted_is_found_again(server: FakeServer, backend: ForeignBackend) -> None:
    await collect(backend, asking())
    await server.stop()
    await until_ready(backend, ready=False)
    with pytest.raises(Unanswered) as caught:
        await collect(backend, asking(request_id="req_2"))
    assert (caught.value.kind, caught.value.was_sent) == ("absent", False)
    await server.start()
    await until_ready(backend)
    assert (await collect(backend, asking(request_id="req_3"))).text == "Hello world"


async def test_a_gateway_that_stops_records_what_came(
    dialect: Dialect, server: FakeServer, backend: ForeignBackend, sink: ListSink
) -> None:
    server.answer = sending_all(dialect.saying(*["word "] * 1000), pause_s=0.01)
    reading: Awaitable[object] = asyncio.create_task(collect(backend, asking(max_tokens=1000)))
    await until(lambda: sink.counts)
    backend.cut_off()
    with pytest.raises(ShuttingDown):
        await reading
    assert [each.finish_reason for each in sink.records] == ["abort"]


async def test_a_server_that_answers_unlike_its_drivers_kind_gets_no_requests(dialect: Dialect, sink: ListSink) -> None:
    async with fake_server() as server:
        server.models = []
        server.facts = {path: [] for path in dialect.facts}
        async with backend_of(server.url, sink, driver=dialect.driver, settings=SHORT, waits=False) as backend:
            await until(lambda: backend.health().reason not in ("", "the server has not answered yet"))
            assert not backend.health().ready
