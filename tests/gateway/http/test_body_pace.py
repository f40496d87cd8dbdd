"""A project's large bodies have a pace, and a body beyond the pace is refused before it is read."""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import ExitStack

from gateway.http.bodies import BODY_BYTES_PER_S, BURST_BYTES
from tests.gateway.conftest import House
from tests.gateway.http.raw import Replies, connect
from tests.gateway.live import make_tenant
from tests.patience import PATIENCE_S

SIZE = 1 << 20
"""The largest body that the gateway of these tests takes."""


def test_a_body_beyond_the_pace_is_refused_before_it_is_sent(house: House) -> None:
    tenant = asyncio.run(make_tenant(house.dsn, "sends large bodies", "poet", "3"))

    def head(num_bytes: int) -> bytes:
        lines = ["host: x", f"authorization: Bearer {tenant.key}", f"content-length: {num_bytes}"]
        return "".join(f"{line}\r\n" for line in ("POST /v1/completions HTTP/1.1", *lines, "")).encode()

    with ExitStack() as stack:
        silent = []
        for _ in range(2 * BURST_BYTES // SIZE):
            silent.append(stack.enter_context(connect(house)))
            silent[-1].sendall(head(SIZE))
        assert refusal(silent) <= BURST_BYTES / BODY_BYTES_PER_S + 1
        # A length that no body may have is not counted: the next requests would wait for it.
        too_large = stack.enter_context(connect(house))
        too_large.sendall(head(1 << 40))
        assert Replies(too_large).next().status_line.startswith("HTTP/1.1 413")
        late = []
        for _ in range(2 * BURST_BYTES // SIZE):
            late.append(stack.enter_context(connect(house)))
            late[-1].sendall(head(SIZE))
        assert refusal(late) <= BURST_BYTES / BODY_BYTES_PER_S + 1


def refusal(sockets: list[socket.socket]) -> int:
    """Return the seconds after which the first of the requests that is answered may be sent again."""
    answered, _, _ = select.select(sockets, [], [], PATIENCE_S)
    reply = Replies(answered[0]).next()
    assert reply.status_line.startswith("HTTP/1.1 429") and b"rate_limit_exceeded" in reply.body
    return int(reply.headers["retry-after"])
