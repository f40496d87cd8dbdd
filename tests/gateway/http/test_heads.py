"""The bytes before a body are bounded, and every refusal of them has the error shape; other connections notice
nothing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from gateway.http.protocol.refusals import MAX_HEAD_BYTES, MAX_HEADERS
from tests.gateway.conftest import House
from tests.patience import PATIENCE_S

LINE = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"


async def answer_to(house: House, data: bytes, *, then: bytes = b"") -> tuple[bytes, dict[str, object]]:
    """Send these bytes; return the status line and the error of the answer.

    then: further bytes, which are sent once the answer has come.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", house.gateway.port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(data)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            body = await reader.readexactly(int(size.partition(b":")[2]))
            writer.write(then)
            error = msgspec.json.decode(body)["error"]
            assert set(error) == {"message", "type", "param", "code"}
            return head.partition(b"\r\n")[0], error
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        LINE + b"x: " + b"y" * (1 << 20) + b"\r\n\r\n",
        LINE + b"x: " + b"y" * (1 << 20),  # never ends
        LINE + b"x" * (1 << 20) + b": y\r\n\r\n",
        LINE + b"x: y\r\n" * 10_000 + b"\r\n",
        LINE + b"x: y\r\n" * (MAX_HEADERS + 1) + b"\r\n",
        LINE + b"x: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n",
        b"GET /" + b"y" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /v1/models?" + b"y=1&" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
    ids=["long", "endless", "long name", "10,000", "one too many", "too long by a little", "path", "query"],
)
async def test_a_large_head_is_refused_before_any_work(house: House, data: bytes) -> None:
    status, error = await answer_to(house, data, then=b"z" * 1000)
    assert (status, error["code"]) == (b"HTTP/1.1 431 Request Header Fields Too Large", "headers_too_large")


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"hello\r\n\r\n", LINE + b"no colon\r\n\r\n"]
)
async def test_bytes_that_are_no_http_are_refused(house: House, data: bytes) -> None:
    status, error = await answer_to(house, data)
    assert (status, error["code"]) == (b"HTTP/1.1 400 Bad Request", "invalid_http")


async def test_heads_within_the_bounds_are_read_however_they_come(house: House) -> None:
    """A head comes in one piece, byte by byte, or after a body in the same piece."""
    key = f"authorization: Bearer {house.acme.key}\r\n".encode()
    many = LINE + key + b"x: y\r\n" * (MAX_HEADERS - 2) + b"\r\n"
    large = LINE + key + b"x: " + b"y" * (MAX_HEAD_BYTES - 1000) + b"\r\n\r\n"
    body = b'{"model":"tiny","prompt":"' + b"x" * 300_000 + b'"}'
    post = b"POST /v1/tokenize HTTP/1.1\r\nhost: x\r\n" + key + b"content-length: %d\r\n\r\n" % len(body) + body
    reader, writer = await asyncio.open_connection("127.0.0.1", house.gateway.port)
    async with asyncio.timeout(PATIENCE_S):
        for start in range(0, len(many), 64):
            writer.write(many[start : start + 64])
            await asyncio.sleep(0)
        writer.write(large + post + many + large)
        for _ in range(5):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK"), head
            size = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(size.partition(b":")[2]))
    writer.close()
