"""Requests end in time whatever a server sends, and are sent again only where the server cannot have begun them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import aclosing

import msgspec
import pytest

from gateway.backends.base import Unanswered
from gateway.backends.foreign.connection import Connection, ServerGone
from gateway.backends.foreign.server import LOST_WITHIN_S, Server, read_at_most
from gateway.domain.errors import ReadTooSlowly, ShuttingDown
from gateway.domain.routing.breaker import CONSECUTIVE
from tests.gateway.backends.foreign.backends import FAST, anywhere, asking, backend_of, collect, until
from tests.gateway.backends.foreign.fake import (
    END,
    HEAD,
    Answer,
    FakeServer,
    Received,
    chunk,
    delta,
    event,
    fake_server,
    saying,
    sending,
    usage,
)
from tests.gateway.backends.scripted import ListSink
from tests.patience import PATIENCE_S

PATIENT = msgspec.structs.replace(FAST, health_seconds=600.0, first_token_seconds=600.0, total_seconds=600.0)
PING = chunk(b": ping\n\n")


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as server:
        yield server


def trickling(first: bytes, then: bytes) -> Answer:
    """Return an answer that sends `first`, and then `then` twenty times a second."""

    async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while not writer.is_closing():
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.write(then)

    return answer


SLOW = {
    "a head": (trickling(b"HTTP/1.1 200 OK\r\nx-a: ", b"a"), {"first_token_seconds": 0.3}),
    "comments before text": (trickling(HEAD, PING), {"first_token_seconds": 0.3}),
    "comments after text": (trickling(HEAD + event(delta("word")), PING), {"idle_seconds": 0.3}),
    "text without end": (trickling(HEAD, event(delta("word"))), {"total_seconds": 0.3}),
    "an error": (trickling(b"HTTP/1.1 500 No\r\ncontent-length: 9999\r\n\r\n", b"a"), {"total_seconds": 0.3}),
}


@pytest.mark.parametrize("name", SLOW)
async def test_a_server_that_goes_on_sending_is_cut_off_in_time(server: FakeServer, name: str) -> None:
    server.answer, times = SLOW[name]
    settings = msgspec.structs.replace(PATIENT, idle_seconds=600.0)
    settings = msgspec.structs.replace(settings, **times)
    async with backend_of(server.url, ListSink(), settings=settings) as backend:
        with pytest.raises(Unanswered) as caught:
            async with asyncio.timeout(PATIENCE_S):
                await collect(backend, asking(max_tokens=1000))
        caught.value.settle()


LAST = {
    "counts": event(usage(9, 1)) + END,
    "a comment": event(usage(9, 1)) + PING + END,
    "a mark of the end without its empty line": event(usage(9, 1)) + chunk(b"data: [DONE]\n") + END,
}
"""Bytes after the last text, without text of their own, that end the response."""


@pytest.mark.parametrize("name", LAST)
async def test_a_reply_ends_once_its_last_bytes_arrive_while_the_reader_waits(server: FakeServer, name: str) -> None:
    may_end = asyncio.Event()

    async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + event(delta("Hello")) + event(delta("", finish="stop")))
        await may_end.wait()
        writer.write(LAST[name])

    server.answer = answer
    sink = ListSink()
    async with (
        backend_of(server.url, sink, settings=msgspec.structs.replace(PATIENT, idle_seconds=600.0)) as backend,
        aclosing(backend.generate(asking())) as items,
    ):
        assert await anext(items)

        async def rest() -> None:
            async for _ in items:
                pass

        reading = asyncio.create_task(rest())
        asyncio.get_running_loop().call_soon(may_end.set)
        async with asyncio.timeout(PATIENCE_S):
            await reading
    assert [record.usage.completion_tokens for record in sink.records] == [1]


@pytest.mark.parametrize("way", ["cut_off", "stop"])
async def test_a_gateway_that_stops_does_not_wait_for_the_head_of_a_reply(server: FakeServer, way: str) -> None:
    async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(600)

    server.answer = answer
    sink = ListSink()
    async with backend_of(server.url, sink, settings=PATIENT) as backend:
        reading = asyncio.create_task(collect(backend, asking()))
        await until(lambda: server.received)
        if way == "stop":
            await backend.stop()
        else:
            backend.cut_off()
        with pytest.raises(ShuttingDown):
            async with asyncio.timeout(PATIENCE_S):
                await reading
    assert len(server.received) == 1, "it is not sent again"
    assert len(sink.records) == 1


async def test_waiting_requests_raise_the_usual_time_of_a_server_that_has_not_answered_yet(server: FakeServer) -> None:
    async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(600)

    server.answer = answer
    async with backend_of(server.url, ListSink(), settings=PATIENT) as backend:
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        reading = [asyncio.create_task(collect(backend, asking(request_id=f"req_{number}"))) for number in range(3)]
        await until(lambda: len(server.received) == 3)
        assert backend.usual_ms() is None
        first_ms = 1e3 * (loop.time() - begun_s)
        await asyncio.sleep(0.1)
        assert (backend.usual_ms() or 0.0) <= first_ms, "what they had waited when it was last looked at"
        assert (backend.usual_ms() or 0.0) >= 100.0
        backend.cut_off()
        await asyncio.gather(*reading, return_exceptions=True)


async def test_a_request_is_sent_once_more_at_most(server: FakeServer) -> None:
    server.answer = saying("Hello", pause_s=0.1)
    async with backend_of(server.url, ListSink(), settings=PATIENT) as backend:
        await asyncio.gather(*(collect(backend, asking(request_id=f"req_{number}")) for number in range(4)))
        assert server.num_connections >= 4
        server.received.clear()
        server.answer = sending(b"")
        with pytest.raises(Unanswered) as caught:
            await collect(backend, asking(request_id="req_last"))
        caught.value.settle()
    assert len(server.received) == 2


async def test_a_request_that_a_server_may_have_begun_is_not_sent_again(server: FakeServer) -> None:
    async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(LOST_WITHIN_S + 0.1)
        writer.close()

    async with backend_of(server.url, ListSink(), settings=PATIENT) as backend:
        await collect(backend, asking())
        server.received.clear()
        server.answer = answer
        with pytest.raises(Unanswered) as caught:
            await collect(backend, asking(request_id="req_2"))
        caught.value.settle()
    assert len(server.received) == 1


async def test_a_body_without_a_length_that_stops_coming_has_not_ended(server: FakeServer) -> None:
    async def never(writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(600)

    server.answer = sending(b"HTTP/1.1 200 OK\r\n\r\n", b'{"half": ', then=never)
    asked = Server(server.url, anywhere, ssl.create_default_context, connect_s=5.0)
    loop = asyncio.get_running_loop()
    connection = await asked.ask("GET", "/", until_s=loop.time() + PATIENCE_S)
    with pytest.raises(ServerGone):
        await read_at_most(connection, 1 << 20, loop.time() + 0.2)


async def test_the_time_a_slow_reader_takes_does_not_count_against_the_server(server: FakeServer) -> None:
    sink = ListSink()
    server.answer = saying("one ", "two", pause_s=0.05)
    settings = msgspec.structs.replace(PATIENT, total_seconds=0.5)
    async with backend_of(server.url, sink, settings=settings) as backend:
        async with aclosing(backend.generate(asking())) as items:
            async for _ in items:
                await asyncio.sleep(0.6)  # longer than the whole reply may take
        assert backend.health().ready
    assert [each.finish_reason for each in sink.records] == ["stop"]


@pytest.mark.parametrize("loses", [False, True], ids=["this side gives up", "the server gives up"])
async def test_a_reader_that_does_not_read_is_cut_off_and_the_server_stays_ready(
    server: FakeServer, loses: bool
) -> None:
    async def answer(received: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + event(delta("word ")))
        await writer.drain()
        for _ in range(2000):
            writer.write(event(delta("word " * 100)))
        if loses:
            await asyncio.sleep(0.2)
            writer.transport.abort()
        await writer.drain()

    server.answer = answer
    sink = ListSink()
    unread_s = 60.0 if loses else 0.2

    async def read_slowly(number: int) -> None:
        with pytest.raises(ReadTooSlowly):
            async with aclosing(backend.generate(asking(request_id=f"req_{number}", max_tokens=20_000))) as items:
                async for _ in items:
                    await asyncio.sleep(0.4)

    async with backend_of(server.url, sink, settings=PATIENT, unread_s=unread_s) as backend:
        await asyncio.gather(*map(read_slowly, range(CONSECUTIVE + 1)))
        assert backend.health().ready, "so many failures would have opened the breaker"
    assert {each.finish_reason for each in sink.records} == {"abort"}


def test_sending_on_a_lost_connection_raises_that_the_server_is_gone() -> None:
    connection = Connection(lambda lost: None)
    connection.connection_lost(None)
    with pytest.raises(ServerGone) as caught:
        connection.send("GET", "/", {}, b"")
    assert caught.value.was_lost
