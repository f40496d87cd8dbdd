"""Clients that do not read are cut off in time, the bytes buffered for each are bounded, and other clients notice
nothing."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from tests.gateway.live import BASE, LiveGateway, Tenant, make_tenant
from tests.gateway.model_folder import make_model_folder
from tests.gateway.openai.test_streams import usage_rows
from tests.installation.live_gateway import running_gateways
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

UNREAD_S = 0.5
RECEIVE_BYTES = 4096
MOST_KEPT_BYTES = 300_000
"""The most bytes that may be buffered.

They are 64 KiB each in the kernel and in the gateway, the client's own window, and one write.
"""

MAX_TOKENS, CHOICES = 400, 8
LONG = {"model": BASE, "prompt": "abcdefgh", "n": CHOICES, "max_tokens": MAX_TOKENS, "logprobs": 5}
"""A request whose reply is longer than a megabyte."""


class Place(msgspec.Struct, frozen=True):
    """A gateway with a tenant, and the DSN of its database."""

    gateway: LiveGateway
    tenant: Tenant
    dsn: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tenant.key}"}


@pytest.fixture
def place(dsn: str, tmp_path: Path) -> Iterator[Place]:
    with place_at(dsn, tmp_path, UNREAD_S) as place:
        yield place


@contextmanager
def place_at(dsn: str, folder: Path, unread_s: float) -> Iterator[Place]:
    """Give a gateway that disconnects clients after `unread_s`, with a data folder of its own."""
    model_dir = make_model_folder(folder / "model")
    tenant = asyncio.run(make_tenant(dsn, f"acme {unread_s}", "pirate", "1"))
    flags = ("--tokens-per-s", "200")
    with running_gateways(dsn, model_dir, engine_flags=flags, data_dir=folder, unread_seconds=unread_s) as installed:
        yield Place(installed.gateway, tenant, dsn)


def send_request(place: Place, body: dict[str, object], *headers: str) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    sock.settimeout(PATIENCE_S)
    sock.connect(("127.0.0.1", place.gateway.port))
    content = json.dumps(body).encode()
    lines = ["host: x", f"authorization: Bearer {place.tenant.key}", f"content-length: {len(content)}", *headers]
    head = "".join(f"{line}\r\n" for line in ("POST /v1/completions HTTP/1.1", *lines))
    sock.sendall(f"{head}\r\n".encode() + content)
    return sock


def rest_of(sock: socket.socket) -> bytes:
    """Return all bytes until the connection is closed or reset."""
    received = b""
    try:
        while data := sock.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def test_a_stream_that_is_not_read_is_cut_off_aborted_and_billed_as_far_as_it_came(place: Place) -> None:
    with send_request(place, LONG | {"stream": True}) as sock:
        wait_until(lambda: place.gateway.num_in_flight == 1)
        short = LONG | {"n": 1, "max_tokens": 2, "logprobs": None}
        reply = httpx.post(f"{place.gateway.url}/v1/completions", json=short, headers=place.headers, timeout=PATIENCE_S)
        assert reply.status_code == 200, "others are served meanwhile"
        wait_until(lambda: place.gateway.num_in_flight == 0)
        received = rest_of(sock)
    assert b"[DONE]" not in received
    assert 1000 < len(received) < MOST_KEPT_BYTES
    (row,) = asyncio.run(usage_rows(place.dsn, place.tenant.project_id, "abort"))
    assert received.count(b'"tokens":["') <= row["completion_tokens"] < MAX_TOKENS * CHOICES


def test_a_stream_that_is_read_slowly_is_not_cut_off(dsn: str, tmp_path: Path) -> None:
    """The client reads 300 kB a second, which makes a reply of two seconds last twice as long.

    If the test's own machine stands still for long, the test is repeated with a slower reader and a longer limit.
    """
    for slower in (1, 6, 36):
        with place_at(dsn, tmp_path / str(slower), UNREAD_S * slower) as place:
            received, longest_s = read_slowly(place, 0.01 * slower)
        if longest_s < UNREAD_S * slower / 2:
            break
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert received.count(b'"finish_reason":"length"') == CHOICES


def read_slowly(place: Place, pause_s: float) -> tuple[bytes, float]:
    """Read a stream slowly; return the reply, and the longest seconds between two reads."""
    body = LONG | {"stream": True, "max_tokens": MAX_TOKENS // 2, "logprobs": 1}
    with send_request(place, body, "connection: close") as sock:
        received, longest_s = sock.recv(3000), 0.0
        last_s = time.monotonic()
        try:
            while data := sock.recv(3000):
                received += data
                time.sleep(pause_s)
                longest_s, last_s = max(longest_s, time.monotonic() - last_s), time.monotonic()
        except ConnectionResetError:
            longest_s = max(longest_s, time.monotonic() - last_s)
    return received, longest_s


@pytest.mark.parametrize("header", ["connection: close", "connection: keep-alive"])
def test_a_whole_reply_that_is_not_read_is_cut_off(place: Place, header: str) -> None:
    with send_request(place, LONG, header) as sock:
        wait_until(lambda: place.gateway.num_in_flight == 1)
        wait_until(lambda: place.gateway.num_connections == 0)
        assert len(rest_of(sock)) < MOST_KEPT_BYTES
    assert len(asyncio.run(usage_rows(place.dsn, place.tenant.project_id, "length"))) == 1
