"""A client that is refused before its body is read sees why, and may go on; a refused body is not read for ever."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn
from litestar import post
from prometheus_client import CollectorRegistry

from gateway.assembly.app import MAX_UNWANTED_BYTES, UNWANTED_BYTES_PER_S, server_config
from gateway.domain.errors import UploadsPaused
from gateway.http.envelope import Application
from gateway.http.errors import exception_handlers
from gateway.observability.metrics import Metrics
from gateway.settings import Settings
from tests.patience import PATIENCE_S

REFUSED = "adapter_uploads_paused"
UPLOAD_BYTES = 10_000_000
HEAD_S = 3.0


@post("/", request_max_body_size=None)
async def refuse() -> None:
    raise UploadsPaused(3, 10.0)


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = Application(
        metrics=Metrics(CollectorRegistry()),
        route_handlers=[refuse],
        exception_handlers=exception_handlers(),
        openapi_config=None,
        logging_config=None,
    )
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # a client that connects before the server runs waits for it
    server = uvicorn.Server(server_config(Settings(head_seconds=HEAD_S, drain_seconds=1), app))
    serving = asyncio.create_task(server.serve([listener]))
    yield listener.getsockname()[1]
    server.should_exit = True
    await serving
    listener.close()


async def test_a_refused_upload_sees_why_and_its_connection_serves_the_next(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
        ports = set()
        for _ in range(3):
            reply = await client.post("/", content=bytes(UPLOAD_BYTES))
            assert (reply.status_code, reply.json()["error"]["code"]) == (429, REFUSED)
            assert reply.headers["retry-after"] == "10"
            ports.add(reply.extensions["network_stream"].get_extra_info("client_addr"))
    assert len(ports) == 1


async def test_a_refused_body_is_read_slowly_enough_to_leave_time_for_others(port: int) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
        start_s = time.monotonic()
        for _ in range(3):
            await client.post("/", content=bytes(UPLOAD_BYTES))
    in_kernel_bytes = 3 * 6_000_000  # at most, of each that had come when it was refused
    assert time.monotonic() - start_s >= (3 * UPLOAD_BYTES - in_kernel_bytes) / UNWANTED_BYTES_PER_S


@pytest.mark.parametrize("framing", [f"content-length: {UPLOAD_BYTES}", "transfer-encoding: chunked"])
async def test_a_client_that_sends_all_before_it_reads_gets_the_last_reply_of_a_connection(
    port: int, framing: str
) -> None:
    """Closed with unread bytes, the connection would be reset: the client could not send, and might read no reply."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    is_chunked = "chunked" in framing
    pieces = [bytes(UPLOAD_BYTES // 10)] * 10
    if is_chunked:
        pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces] + [b"0\r\n\r\n"]
    async with asyncio.timeout(PATIENCE_S):
        writer.write(f"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{framing}\r\n\r\n".encode())
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)  # the server has refused long before the last piece
        received = await reader.read()
    assert received.startswith(b"HTTP/1.1 429 ") and REFUSED.encode() in received
    writer.close()


@pytest.mark.parametrize("is_last", [False, True], ids=["request", "last request"])
async def test_an_endless_refused_body_is_cut_off(port: int, is_last: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connection = b"connection: close\r\n" if is_last else b""
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n" % (connection, 1 << 40))
    sent, piece = 0, bytes(1 << 20)
    async with asyncio.timeout(PATIENCE_S):
        assert b" 429 " in await reader.readline()
        if is_last:
            assert REFUSED.encode() in await reader.read(), "which waits for the end, and has it at once"
        with pytest.raises(ConnectionError):
            while True:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
                assert sent < 2 * MAX_UNWANTED_BYTES
    writer.close()
    assert sent >= MAX_UNWANTED_BYTES / 2


async def test_a_head_behind_a_refused_body_has_its_deadline(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(PATIENCE_S):
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\n")
        assert b" 429 " in await reader.readline()
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"bodyPOST / HTTP/1.1\r\n")
        assert b"HTTP/1.1 408 " in await reader.read(), "and the connection is closed"
    writer.close()
