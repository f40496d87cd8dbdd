"""Clients of HTTP/1.0 get no chunks; bodies that do not arrive are not waited for."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import uvicorn
from litestar import Request, post
from prometheus_client import CollectorRegistry

from gateway.assembly.app import server_config
from gateway.http.envelope import Application
from gateway.observability.metrics import Metrics
from gateway.settings import Settings
from tests.gateway.conftest import House
from tests.gateway.http import raw
from tests.patience import PATIENCE_S, TRIES, least

BODY_S = 0.5


def test_a_stream_for_http_1_0_has_no_chunks_and_ends_with_the_connection(house: House) -> None:
    body: dict[str, object] = {"model": "tiny", "prompt": "abc", "max_tokens": 20, "stream": True}
    with raw.connect(house) as sock:
        sock.sendall(raw.post(house, "/v1/completions", body, version="1.0"))
        received = b"".join(iter(lambda: sock.recv(65536), b""))
    head, _, events = received.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"connection: close" in head.lower()
    assert all(event.startswith(b"data: ") for event in events.removesuffix(b"\n\n").split(b"\n\n"))
    assert events.endswith(b"data: [DONE]\n\n")


def test_a_whole_reply_for_http_1_0_has_its_length(house: House) -> None:
    body: dict[str, object] = {"model": "tiny", "prompt": "abc", "max_tokens": 2}
    with raw.connect(house) as sock:
        sock.sendall(raw.post(house, "/v1/completions", body, version="1.0"))
        replies = raw.Replies(sock)
        assert msgspec.json.decode(replies.next().body)["usage"]["completion_tokens"] == 2
        assert replies.is_over()


@post("/", status_code=200)
async def length(request: Request[Any, Any, Any]) -> str:
    return str(len(await request.body()))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = Application(
        metrics=Metrics(CollectorRegistry()), route_handlers=[length], openapi_config=None, logging_config=None
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(server_config(Settings(body_seconds=BODY_S), app))
    serving = asyncio.create_task(server.serve([listener]))
    yield int(listener.getsockname()[1])
    server.should_exit = True
    await serving
    listener.close()


@pytest.mark.parametrize("drip", [b"", b"x"], ids=["silence", "a byte at a time"])
async def test_a_body_that_does_not_arrive_is_refused_and_the_connection_ends(port: int, drip: bytes) -> None:
    """The request is sent again where its last byte crossed the reply: the kernel then ends the connection and drops
    unread bytes."""
    for _ in range(TRIES):
        with contextlib.suppress(ConnectionError):
            reply = await _reply_to_a_drip(port, drip)
            break
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert msgspec.json.decode(body)["error"]["code"] == "request_timeout"


async def _reply_to_a_drip(port: int, drip: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")

    async def send() -> None:
        while drip:
            writer.write(drip)
            await asyncio.sleep(BODY_S / 10)

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read()
    finally:
        sending.cancel()
        writer.close()


async def test_a_body_that_keeps_arriving_is_waited_for(port: int) -> None:
    """The request is sent again if the test's own machine stood still for as long as a client may be silent."""
    part, count = b"x" * 1024, 8

    async def longest_silence_s() -> float:
        nonlocal reply
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (len(part) * count)
        writer.write(head)
        longest_s = 0.0
        for _ in range(count):
            before_s = time.monotonic()
            await asyncio.sleep(BODY_S / 4)  # all of it takes twice as long as silence may
            writer.write(part)
            longest_s = max(longest_s, time.monotonic() - before_s)
        async with asyncio.timeout(PATIENCE_S):
            reply = await reader.read()
        writer.close()
        return longest_s

    reply = b""
    await least(longest_silence_s, BODY_S / 2)
    assert reply.startswith(b"HTTP/1.1 200 ")
    assert reply.endswith(str(len(part) * count).encode())
