"""A project's large bodies have a pace, and a body beyond the pace is refused before it is read."""

from __future__ import annotations

import asyncio
import re
import select
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from litestar.routes import HTTPRoute

from gateway.http.bodies import BODY_BYTES_PER_S, BURST_BYTES
from tests.gateway.conftest import House, open_house
from tests.gateway.http.raw import Replies, connect
from tests.gateway.live import make_operator_key, make_tenant
from tests.installation.databases import Databases
from tests.patience import PATIENCE_S

SIZE = 1 << 20
"""The largest body that the gateway of these tests takes."""


OTHER_SCOPE = {"/v1/feedback"}
"""The routes that require another scope of keys."""


def test_a_body_beyond_the_pace_is_refused_before_it_is_sent(house: House) -> None:
    key = tenant(house, "sends large bodies")
    with ExitStack() as stack:
        assert refusal(begun(house, stack, "/v1/completions", key)) <= BURST_BYTES / BODY_BYTES_PER_S + 1
        # A length that no body may have is not counted: the next requests would wait for it.
        [too_large] = begun(house, stack, "/v1/completions", key, num_bytes=1 << 40, times=1)
        assert Replies(too_large).next().status_line.startswith("HTTP/1.1 413")
        assert refusal(begun(house, stack, "/v1/completions", key)) <= BURST_BYTES / BODY_BYTES_PER_S + 1


def test_every_route_of_tenants_refuses_bodies_beyond_the_pace(house: House) -> None:
    assert house.gateway.app is not None
    routes = [
        (re.sub(r"\{\w+:str\}", "unknown", route.path), handler.opt["shape"])
        for route in house.gateway.app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if "POST" in handler.http_methods and "caller" in handler.resolve_dependencies()
        if "access" not in handler.opt and handler.opt["shape"].body is not None
    ]
    assert len(routes) > 20 and sum(declared.is_billed for _, declared in routes) >= 7
    for path, declared in routes:
        for headers in ((), ("idempotency-key: 1",)) if declared.is_billed else ((),):
            if path not in OTHER_SCOPE:
                with ExitStack() as stack:
                    refusal(begun(house, stack, path, tenant(house, f"{path} {len(headers)}"), *headers))


@pytest.mark.parametrize(
    ("path", "what"), [("/v1/completions", "large requests"), ("/v1/organization/projects", "the admin API")]
)
def test_bodies_in_chunks_count_as_they_come(house: House, path: str, what: str) -> None:
    """The bodies of this test never end, so a refusal can only be due to the bytes that came."""
    is_admin = what == "the admin API"
    key = asyncio.run(make_operator_key(house.dsn)) if is_admin else tenant(house, "sends chunks")
    lines = [f"POST {path} HTTP/1.1", "host: x", f"authorization: Bearer {key}", "transfer-encoding: chunked", "", ""]
    body = b"1000\r\n%b\r\n" % (b" " * 0x1000) * (SIZE // 0x1000 - 1)
    with ExitStack() as stack:
        sockets: list[socket.socket] = []
        while not select.select(sockets, [], [], 0)[0] and len(sockets) < 5 * BURST_BYTES // SIZE:
            sockets.append(stack.enter_context(connect(house)))
            sockets[-1].sendall("\r\n".join(lines).encode() + body)
        refusal(sockets, what)
        assert is_admin or len(sockets) > BURST_BYTES // SIZE, "as many bytes are read as of announced bodies"


def test_one_body_in_chunks_is_not_too_fast(databases: Databases, tmp_path: Path) -> None:
    """A chunked body larger than the burst passes as a whole, and the next body is refused instead."""
    with open_house(databases.create("large_bodies"), tmp_path, max_body_bytes=2 * BURST_BYTES) as house:
        headers = {"authorization": f"Bearer {house.acme.key}"}
        with httpx.Client(base_url=house.url, timeout=PATIENCE_S, headers=headers) as client:
            piece = b" " * SIZE
            content = iter([piece] * (2 * BURST_BYTES // SIZE - 1))
            reply = client.post("/v1/completions", content=content)
            assert reply.status_code == 400 and b"JSON" in reply.content, reply.text
            assert client.post("/v1/completions", content=iter([piece])).status_code == 429


def test_a_body_that_is_much_work_counts_for_more_bytes(house: House) -> None:
    """A body of token ids with two bytes each counts as twelve times its length; a text of that length counts once."""
    for prompt, most in (([1] * 100_000, 12 * 200_000), ("a" * 400_000, 400_000)):
        headers = {"authorization": f"Bearer {tenant(house, f'{type(prompt).__name__} of much work')}"}
        body = {"model": "tiny", "prompt": prompt}
        num_answered = 0
        with httpx.Client(base_url=house.url, timeout=PATIENCE_S) as client:
            begun_s = time.monotonic()
            while (status := client.post("/v1/completions", json=body, headers=headers).status_code) == 400:
                num_answered += 1
            took_s = time.monotonic() - begun_s
        assert status == 429
        assert BURST_BYTES / most - 2 <= num_answered <= (BURST_BYTES + took_s * BODY_BYTES_PER_S) / most + 2


def test_large_bodies_for_the_admin_api_count_as_many_requests(house: House) -> None:
    key = asyncio.run(make_operator_key(house.dsn))
    with ExitStack() as stack:
        refusal(begun(house, stack, "/v1/organization/projects", key, times=80), "the admin API")


def tenant(house: House, name: str) -> str:
    """Create a tenant; return its key."""
    return asyncio.run(make_tenant(house.dsn, name, "poet", "3")).key


def begun(
    house: House,
    stack: ExitStack,
    path: str,
    key: str,
    *headers: str,
    num_bytes: int = SIZE,
    times: int = 2 * BURST_BYTES // SIZE,
) -> list[socket.socket]:
    """Send the heads of requests, without any bytes of their bodies; return the sockets."""
    lines = [f"POST {path} HTTP/1.1", "host: x", f"authorization: Bearer {key}", f"content-length: {num_bytes}"]
    sockets = [stack.enter_context(connect(house)) for _ in range(times)]
    for each in sockets:
        each.sendall("".join(f"{line}\r\n" for line in (*lines, *headers, "")).encode())
    return sockets


def refusal(sockets: list[socket.socket], what: str = "large requests") -> int:
    """Return the seconds in `retry-after` of the first reply, which must be a refusal.

    what: the requests of which there were too many.
    """
    answered, _, _ = select.select(sockets, [], [], PATIENCE_S)
    reply = Replies(answered[0]).next()
    assert reply.status_line.startswith("HTTP/1.1 429") and f"too many requests for {what}.".encode() in reply.body
    return int(reply.headers["retry-after"])
