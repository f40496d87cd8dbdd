"""A hostile server: what it sends is bounded in size and time, ends as an error in our words, and is recorded once."""

from __future__ import annotations

import asyncio
import gzip
import json
import tracemalloc
from collections.abc import AsyncIterator

import msgspec
import pytest

from gateway.backends.base import Unanswered
from gateway.backends.foreign.sse import MAX_EVENT_BYTES, EventReader, EventTooLarge
from gateway.domain.errors import BackendFailed
from gateway.text.tools.tool import Tool, ToolUse
from tests.gateway.backends.foreign.backends import FAST, asking, backend_of, hear
from tests.gateway.backends.foreign.fake import (
    END,
    HEAD,
    Answer,
    FakeServer,
    chunk,
    delta,
    event,
    fake_server,
    sending,
    usage,
)
from tests.gateway.backends.scripted import ListSink

SHORT = msgspec.structs.replace(FAST, first_token_seconds=0.4, idle_seconds=0.4, total_seconds=1.0)
MAX_BYTES = 24 << 20
TOOL = Tool("weather", {"type": "object"}, "tools[0]")
TOOLS = ToolUse((TOOL,), frozenset({"weather"}))
FINISHED = event(delta("", finish="stop"))


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with fake_server() as server:
        yield server


async def _forever(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


def endless(*parts: bytes) -> Answer:
    """Return an answer that sends the parts again and again, until it is cut off."""

    async def answer(received: object, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while not writer.is_closing():
            for part in parts:
                writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)

    return answer


def call(index: int, name: str | None, arguments: str = "") -> bytes:
    function = {"name": name, "arguments": arguments}
    return event(delta("", tool_calls=[{"index": index, "function": function}]))


def plain(status: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((b"HTTP/1.1 " + status, *headers, b"", body))


EVENTS = b"content-type: text/event-stream"
HOSTILE = {
    "nothing": sending(b""),
    "no HTTP": sending(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "half a head": sending(b"HTTP/1.1 200 OK\r\ncontent-ty"),
    "silence": sending(b"", then=_forever),
    "silence after the head": sending(HEAD, then=_forever),
    "silence in the midst": sending(HEAD, event(delta("word")), then=_forever),
    "an endless header": sending(b"HTTP/1.1 200 OK\r\nx: " + b"a" * (4 << 20)),
    "endless headers": sending(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300_000),
    "a hundred and then some": sending(b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000),
    "an upgrade": sending(plain(b"101 Switching Protocols", b"upgrade: h2c", b"connection: upgrade")),
    "no stream": sending(plain(b"200 OK", b"content-type: text/html", b"content-length: 4", body=b"<br>")),
    "an error inside a 200": sending(HEAD, event({"error": {"message": "sk-secret", "code": 500}}), END),
    "an error after text": sending(HEAD, event(delta("word")), event({"error": "sk-secret"}), END),
    "a body that is cut off": sending(HEAD, event(delta("word"))),
    "an end without a reason": sending(HEAD, event(delta("word")), event(usage(9, 1)), event("[DONE]"), END),
    "a wrong length": sending(plain(b"200 OK", EVENTS, b"content-length: 999999", body=b"data: {}\n\n")),
    "two lengths": sending(plain(b"200 OK", EVENTS, b"content-length: 5", b"content-length: 6", body=b"data:")),
    "a length and chunks": sending(
        plain(b"200 OK", EVENTS, b"content-length: 5", b"transfer-encoding: chunked", body=b"5\r\ndata:\r\n0\r\n\r\n")
    ),
    "a wrong chunk": sending(HEAD, b"zz\r\nhello\r\n"),
    "a giant chunk": sending(HEAD, b"ffffffffffffffff\r\n" + b"a" * 100),
    "compressed": sending(
        plain(b"200 OK", EVENTS, b"content-encoding: gzip", body=gzip.compress(b"data: " + b"a" * (8 << 20)))
    ),
    "an unknown reason": sending(HEAD, event(delta("", finish="content_filter")), event("[DONE]"), END),
    "a reason of a list": sending(HEAD, event({"choices": [{"index": 0, "finish_reason": []}]}), END),
    "another choice": sending(HEAD, event(delta("word", index=1)), FINISHED, END),
    "a negative choice": sending(HEAD, event(delta("word", index=-1)), FINISHED, END),
    "a huge choice": sending(HEAD, event(delta("word", index=10**30)), FINISHED, END),
    "no JSON": sending(HEAD, event("{"), END),
    "bytes that are no text": sending(HEAD, chunk(b'data: {"choices":[{"delta":{"content":"\xff\xfe"}}]}\n\n'), END),
    "deep JSON": sending(HEAD, event("[" * 200_000 + "]" * 200_000), END),
    "deep JSON in a field": sending(HEAD, event('{"x":' + "[" * 200_000 + "]" * 200_000 + "}"), END),
    "a giant event": endless(chunk(b"data: " + b"a" * 65536), chunk(b"a" * 65536)),
    "an endless line": endless(chunk(b"a" * 65536)),
    "an event of endless lines": endless(chunk(b"data: a\n" * 8192)),
    "an event of endless empty lines": endless(chunk(b"data:\n" * 8192)),
    "endless comments": endless(chunk(b": ping\n\n" * 4096)),
    "endless text": endless(event(delta("word " * 100))),
    "endless empty events": endless(event(delta("")) * 100),
    "endless tiny text": endless(event(delta("a")) * 100),
    "endless hidden text": endless(event(delta("", reasoning_content="hm " * 1000))),
    "a tool that nobody named": sending(HEAD, call(0, "shell", "{}"), FINISHED, END),
    "calls out of order": sending(HEAD, call(5, "weather", "{}"), FINISHED, END),
    "arguments of no call": sending(HEAD, call(0, None, "{}"), FINISHED, END),
    "calls without end": sending(HEAD, *(call(n, "weather", "{}") for n in range(100)), FINISHED, END),
    "a second response": sending(
        plain(b"200 OK", EVENTS, b"content-length: 10", body=b"data: {}\n\n") + b"HTTP/1.1 200 OK\r\n\r\n"
    ),
    "counts that are no numbers": sending(HEAD, event({"usage": {"prompt_tokens": "9"}}), FINISHED, END),
}


OF_REQUEST = {"an unknown reason", "a tool that nobody named", "calls without end"}
"""Replies that a request can bring about at a server that is well."""


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_reply_ends_as_our_error_within_bounds(server: FakeServer, name: str) -> None:
    sink = ListSink()
    server.answer = HOSTILE[name]
    tracemalloc.start()
    try:
        async with backend_of(server.url, sink, settings=SHORT) as backend, asyncio.timeout(8.0):
            with pytest.raises(Unanswered) as caught:
                await hear(backend, asking(tools=TOOLS))
            _, peak = tracemalloc.get_traced_memory()
            caught.value.settle()
            assert backend.num_in_flight == 0
            assert backend.health().ready, "one failure is none of the server"
    finally:
        tracemalloc.stop()
    assert caught.value.kind == ("failed" if name in OF_REQUEST else "died")
    assert isinstance(caught.value.error, BackendFailed)
    assert "sk-secret" not in caught.value.error.message
    assert peak < MAX_BYTES, f"{peak >> 20} MiB"
    (record,) = sink.records
    assert record.usage.completion_tokens <= 16


@pytest.mark.parametrize("name", sorted(OF_REQUEST))
async def test_replies_that_a_request_brings_about_take_the_server_from_nobody(server: FakeServer, name: str) -> None:
    sink = ListSink()
    server.answer = HOSTILE[name]
    async with backend_of(server.url, sink, settings=SHORT) as backend:
        for number in range(12):
            with pytest.raises(Unanswered) as caught:
                await hear(backend, asking(request_id=f"req_{number}", tools=TOOLS))
            caught.value.settle()
        assert backend.health().ready
        server.answer = sending(HEAD, GOOD)
        assert (await hear(backend, asking(request_id="req_last"))).text == "Hello"
    assert len(sink.records) == 13


GOOD = event(delta("Hello")) + FINISHED + event(usage(9, 1)) + event("[DONE]") + END
ODD = {
    "comments and other fields": HEAD + chunk(b": ping\n\nevent: x\nid: 7\nretry: 1\n\n") + GOOD,
    "no mark of the end": HEAD + event(delta("Hello")) + FINISHED + event(usage(9, 1)) + END,
    "usage on every chunk": HEAD
    + event(delta("Hello") | {"usage": {"prompt_tokens": 9, "completion_tokens": 1}})
    + FINISHED
    + event(usage(9, 1))
    + event("[DONE]")
    + END,
    "usage with the last chunk": HEAD
    + event(delta("Hello", finish="stop") | {"usage": {"prompt_tokens": 9, "completion_tokens": 1}})
    + event("[DONE]")
    + END,
    "null everywhere": HEAD
    + event({"choices": [{"index": 0, "delta": {"content": None}, "finish_reason": None}], "usage": None})
    + GOOD,
    "unknown fields": HEAD + event(delta("") | {"x": {"y": [1]}, "timings": {}}) + GOOD,
    "until the connection closes": plain(b"200 OK", EVENTS)
    + b"".join(
        f"data: {json.dumps(each)}\n\n".encode() for each in (delta("Hello"), delta("", finish="stop"), usage(9, 1))
    ),
}


@pytest.mark.parametrize("reply", ODD.values(), ids=ODD.keys())
async def test_what_is_only_odd_is_served_and_counted_once(server: FakeServer, reply: bytes) -> None:
    sink = ListSink()
    server.answer = sending(reply)
    async with backend_of(server.url, sink, settings=SHORT) as backend:
        heard = await hear(backend, asking())
    assert (heard.text, heard.finish_reasons) == ("Hello", ["stop"])
    (record,) = sink.records
    assert (record.usage.prompt_tokens, record.usage.completion_tokens) == (9, 1)


async def test_a_long_reply_may_come_in_one_piece_with_its_head(server: FakeServer) -> None:
    sink = ListSink()
    words = event(delta("word ")) * 1000
    server.answer = sending(HEAD + words + FINISHED + event(usage(9, 1000)) + event("[DONE]") + END)
    async with backend_of(server.url, sink, settings=SHORT) as backend:
        heard = await hear(backend, asking(max_tokens=1000))
    assert heard.text == "word " * 1000
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
        assert (await hear(backend, asking())).text == "Hello"


async def test_a_server_that_trickles_is_cut_off_in_time(server: FakeServer) -> None:
    sink = ListSink()

    async def answer(received: object, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD)
        while not writer.is_closing():
            writer.write(event(delta("a")))
            await writer.drain()
            await asyncio.sleep(0.1)

    server.answer = answer
    began_s = asyncio.get_running_loop().time()
    async with backend_of(server.url, sink, settings=SHORT) as backend:
        with pytest.raises(Unanswered):
            await hear(backend, asking(max_tokens=10_000))
    assert asyncio.get_running_loop().time() - began_s < 3.0


def test_lines_without_a_value_count_as_well() -> None:
    events = EventReader()
    with pytest.raises(EventTooLarge):
        for _ in range(MAX_EVENT_BYTES // 8192 + 1):
            events.push(b"data:\n" * 8192)
