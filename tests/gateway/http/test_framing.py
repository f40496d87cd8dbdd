"""Framing of requests: bytes that a proxy may read in another way are refused, and no bytes of a body become a head."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import uvicorn
from litestar import Request, get, post
from prometheus_client import CollectorRegistry

from gateway.assembly.app import server_config
from gateway.http.envelope import Application
from gateway.http.protocol.framing import MAX_EXCESS_BYTES, parser_for
from gateway.http.request.call import call_of
from gateway.observability.metrics import Metrics
from gateway.settings import Settings
from tests.patience import PATIENCE_S

CLIENT, FORGED = "198.51.100.7", "203.0.113.66"
HEAD = b"POST /seen HTTP/1.1\r\nhost: x\r\nx-forwarded-for: " + CLIENT.encode() + b"\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"


class ReceivedRequest(msgspec.Struct):
    """A request as it arrived at a handler."""

    address: str
    names: list[str]
    body: str


@post("/seen", status_code=200)
async def show_request(request: Request[Any, Any, Any]) -> ReceivedRequest:
    body = (await request.body()).decode()
    names = [name.decode() for name, _ in request.scope["headers"]]
    return ReceivedRequest(call_of(request.scope).address, names, body)


@get("/smuggled")
async def answer_smuggled() -> str:
    return "smuggled"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    settings = Settings(trusted_proxies="127.0.0.1", drain_seconds=1)
    app = Application(
        metrics=Metrics(CollectorRegistry()),
        trusted_proxies=settings.trusted_networks,
        route_handlers=[show_request, answer_smuggled],
        openapi_config=None,
        logging_config=None,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(server_config(settings, app))
    serving = asyncio.create_task(server.serve([listener]))
    yield int(listener.getsockname()[1])
    server.should_exit = True
    await serving
    listener.close()


async def replies(port: int, *pieces: bytes, last: bytes = b"") -> bytes:
    """Send pieces one after the other, each once the last was read. Return all bytes until the server closes.

    last: a further request, whose reply ends the connection.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    received = b""
    try:
        async with asyncio.timeout(PATIENCE_S):
            for piece in pieces[:-1]:
                writer.write(piece)
                await asyncio.sleep(0.05)
            writer.write(pieces[-1] + last)
            while data := await reader.read(65536):
                received += data
    except ConnectionError:
        pass
    finally:
        writer.close()
    return received


def request_seen(received: bytes) -> ReceivedRequest:
    """Return the request that arrived at the handler, from the bytes of its one reply."""
    assert received.startswith(b"HTTP/1.1 200 ") and received.count(b"HTTP/1.1 ") == 1, received
    return msgspec.json.decode(received.partition(b"\r\n\r\n")[2], type=ReceivedRequest)


@pytest.mark.parametrize("is_whole", [True, False], ids=["at once", "late"])
async def test_trailers_are_no_headers(port: int, is_whole: bool) -> None:
    """A proxy checks and sets headers before the body, so a trailer after it must not count as a header."""
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    forged = f"X-Forwarded-For: {FORGED}\r\nX-Forwarded-Proto: https\r\nAuthorization: Bearer x\r\n\r\n".encode()
    pieces = [head, b"3\r\nabc\r\n0\r\n" + forged]
    found = request_seen(await replies(port, *([b"".join(pieces)] if is_whole else pieces)))
    assert (found.address, found.body) == (CLIENT, "abc")
    assert sorted(found.names) == ["connection", "host", "transfer-encoding", "x-forwarded-for"]


@pytest.mark.parametrize(
    "endless", [b"3;x=", b"0\r\nx: ", b"0\r\n" + b"x", b"0" * 10], ids=["extension", "trailer", "name", "size"]
)
async def test_bytes_of_a_chunked_body_that_are_no_content_are_bounded(port: int, endless: bytes) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    reader, sent, piece = _, 0, endless[-1:].replace(b"=", b"y").replace(b" ", b"y") * 16_384
    writer.write(CHUNKED + b"1\r\na\r\n" + endless)
    async with asyncio.timeout(PATIENCE_S):
        try:
            while not reader.at_eof() and not (head := await _line_within_a_moment(reader)):
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
                assert sent < 64 * MAX_EXCESS_BYTES, "it goes on and on"
        except ConnectionError:
            return
    assert head.startswith(b"HTTP/1.1 400 ")
    writer.close()


async def _line_within_a_moment(reader: asyncio.StreamReader) -> bytes:
    """Return the next line if it arrives within a moment."""
    try:
        async with asyncio.timeout(0.02):
            return await reader.readline()
    except TimeoutError:
        return b""


async def test_many_small_chunks_and_some_extensions_are_read(port: int) -> None:
    chunks = b"1;ext=value\r\na\r\n" * 20_000 + b"0\r\nx: y\r\n\r\n"
    pieces = [chunks[start : start + 65_536] for start in range(0, len(chunks), 65_536)]
    head = CHUNKED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    assert request_seen(await replies(port, head, *pieces)).body == "a" * 20_000


@pytest.mark.parametrize("split", [True, False], ids=["in two pieces", "at once"])
@pytest.mark.parametrize("framing", [b"content-length: %d\r\n", b"transfer-encoding: chunked\r\n"])
@pytest.mark.parametrize("protocol", [b"h2c", b"websocket", b"x"])
async def test_a_body_after_an_offered_upgrade_is_a_body(
    port: int, protocol: bytes, framing: bytes, split: bool
) -> None:
    """Proxies forward the offer (HAProxy does), and believe that the bytes after it are the request's body."""
    is_chunked = b"chunked" in framing
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED) if is_chunked else SMUGGLED
    head = HEAD + b"connection: upgrade, close\r\nupgrade: " + protocol + b"\r\n"
    head += framing if is_chunked else framing % len(SMUGGLED)
    pieces = [head + b"\r\n", body] if split else [head + b"\r\n" + body]
    found = request_seen(await replies(port, *pieces))
    assert (found.address, found.body) == (CLIENT, SMUGGLED.decode())
    assert "upgrade" not in found.names


async def test_the_next_request_after_an_offered_upgrade_is_answered(port: int) -> None:
    offer = b"POST /seen HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 1\r\n\r\na"
    last = SMUGGLED.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
    received = await replies(port, offer, last=last)
    assert received.count(b"HTTP/1.1 200 ") == 2 and received.endswith(b"smuggled")


async def test_the_bytes_behind_an_offered_upgrade_count_once(port: int) -> None:
    """The body is so large that the server would refuse it if its bytes counted twice."""
    body = b"a" * 100_000
    head = HEAD + b"connection: upgrade, close\r\nupgrade: h2c\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert request_seen(await replies(port, head + body)).body == body.decode()


async def test_offers_behind_an_offered_upgrade_take_no_memory_and_spoil_no_reply(port: int) -> None:
    offers = b"GET /smuggled HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n" * 1000
    tracemalloc.start()
    try:
        received = await replies(port, offers)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert received.startswith(b"HTTP/1.1 200 ") and received.endswith(b"smuggled"), received
    assert received.count(b"HTTP/1.1 ") == 1 and b"connection: close\r\n" in received
    assert peak < 20 * len(offers)


def test_a_parser_passes_over_bytes_behind_a_request_that_ends_its_connection() -> None:
    """This holds for each parser of a connection, including the parser made after an offered upgrade."""
    urls: list[bytes] = []
    parser = parser_for(SimpleNamespace(on_url=urls.append))
    parser.feed_data(b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" + SMUGGLED)
    assert urls == [b"/last"]


BODY_4 = b"content-length: 4\r\n\r\nabcd"
REFUSED = {
    "two lengths": HEAD + b"content-length: 4\r\ncontent-length: 4\r\n\r\nabcd",
    "two different lengths": HEAD + b"content-length: 4\r\ncontent-length: 0\r\n\r\nabcd",
    "a list of lengths": HEAD + b"content-length: 4, 4\r\n\r\nabcd",
    "a signed length": HEAD + b"content-length: +4\r\n\r\nabcd",
    "a length too long": HEAD + b"content-length: 18446744073709551620\r\n\r\nabcd",
    "chunks and a length": HEAD + b"transfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n0\r\n\r\n",
    "a length and chunks": HEAD + b"content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a length in trailers": CHUNKED + b"0\r\ncontent-length: 4\r\n\r\n",
    "a coding below chunks": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "a coding above chunks": HEAD + b"transfer-encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunks twice": HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": HEAD + b"transfer-encoding: identity\r\n\r\nabcd",
    "chunks by HTTP/1.0": CHUNKED.replace(b"1.1", b"1.0") + b"0\r\n\r\n",
    "space before a colon": HEAD + b"content-length : 4\r\n\r\nabcd",
    "a folded line": HEAD + b"x: a\r\n b\r\n" + BODY_4,
    "a folded coding": HEAD + b"transfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "LF alone": HEAD.replace(b"\r\n", b"\n") + b"\n",
    "LF alone after a header": HEAD + b"x: a\n" + BODY_4,
    "CR alone after a header": HEAD + b"x: a\rb: c\r\n" + BODY_4,
    "NUL in a value": HEAD + b"x: a\0b\r\n" + BODY_4,
    "LF alone after a chunk's size": CHUNKED + b"4\nabcd\r\n0\r\n\r\n",
    "LF alone in an extension": CHUNKED + b"4;a\nabcd\r\n0\r\n\r\n",
    "a chunk longer than its size": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "a chunk's size with a sign": CHUNKED + b"-4\r\nabcd\r\n0\r\n\r\n",
    "a chunk's size too long": CHUNKED + b"10000000000000004\r\nabcd\r\n0\r\n\r\n",
    "no host": b"POST /seen HTTP/1.1\r\n" + BODY_4,
    "two hosts": HEAD + b"host: y\r\n" + BODY_4,
    "HTTP/0.9": b"POST /seen\r\n\r\n",
    "HTTP/2.0": HEAD.replace(b"1.1", b"2.0") + BODY_4,
    "a tunnel": b"CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED)
async def test_ambiguous_bytes_are_refused_and_nothing_after_them_is_read(port: int, data: bytes) -> None:
    received = await replies(port, data, last=SMUGGLED)
    assert received.startswith(b"HTTP/1.1 400 ") and received.count(b"HTTP/1.1 ") == 1, received
    assert msgspec.json.decode(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"
    assert b"connection: close\r\n" in received


async def test_bytes_that_are_no_http_behind_a_request_spoil_no_reply(port: int) -> None:
    received = await replies(port, HEAD + BODY_4 + b"\0\0\0\0\r\n\r\n")
    assert request_seen(received).body == "abcd"


async def test_a_body_that_was_not_asked_for_ends_the_connection(port: int) -> None:
    """A proxy whose request is answered before "100 Continue" may send the next one instead of the body."""
    refused = b"POST /unknown HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(SMUGGLED)
    received = await replies(port, refused, last=SMUGGLED)
    assert received.startswith(b"HTTP/1.1 404 ") and received.count(b"HTTP/1.1 ") == 1
    assert b"connection: close\r\n" in received
