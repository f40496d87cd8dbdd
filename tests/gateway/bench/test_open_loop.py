"""Requests that a server loses are errors of its row, whenever and however it loses them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress

import pytest

from gateway.bench.http import connect, post
from gateway.bench.open_loop import FAILED, Connections, as_fast_as_possible, at_rate

REQUEST = post("/", "key", b"{}")
REPLY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class ClosingServer:
    """A fake server that closes a connection after `answers` answers.

    loses_next: True: the server reads one more request before it closes the connection, and does not answer it.
    """

    def __init__(self, answers: int, *, loses_next: bool) -> None:
        self.answers, self.loses_next = answers, loses_next
        self.num_lost = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError, asyncio.IncompleteReadError):
            for _ in range(self.answers):
                await reader.readexactly(len(REQUEST))
                writer.write(REPLY)
            if self.loses_next:
                await reader.readexactly(len(REQUEST))
                self.num_lost += 1


@asynccontextmanager
async def connected(server: ClosingServer, count: int) -> AsyncIterator[tuple[Connections, Callable[[], None]]]:
    """Give open connections, and a function that stops the server from listening."""
    listening = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    connections = Connections([await connect("127.0.0.1", port) for _ in range(count)])
    try:
        yield connections, listening.close
    finally:
        connections.close()
        listening.close()


async def test_a_connection_that_was_closed_is_opened_again() -> None:
    async with connected(ClosingServer(1, loses_next=False), 1) as (connections, close):
        statuses = []
        for _ in range(3):
            statuses.append(await connections.ask(REQUEST))
            await asyncio.sleep(0.05)  # the connection notices its end
        assert statuses == [200] * 3
        close()
        assert await connections.ask(REQUEST) == FAILED


@pytest.mark.parametrize("row_of", ["at_rate", "as_fast_as_possible"])
async def test_requests_that_a_server_loses_are_counted_as_errors(row_of: str) -> None:
    server = ClosingServer(3, loses_next=True)
    async with connected(server, 4) as (connections, _):
        if row_of == "at_rate":
            row = await at_rate(connections, [REQUEST], 200, 0.5, random.Random(0))
        else:
            row = await as_fast_as_possible(connections, [REQUEST], 4, 0.2)
    assert row["errors"] == row["statuses"]["0"] > 0
    assert row["errors"] <= server.num_lost, "those of the warm-up are not counted"
    assert row["requests"] == row["errors"] + row["statuses"]["200"]
    assert 0 < row["errors"] / row["requests"] < 0.5


async def test_all_requests_to_a_closed_server_are_errors() -> None:
    async with connected(ClosingServer(0, loses_next=False), 2) as (connections, close):
        close()
        await asyncio.sleep(0.05)
        row = await at_rate(connections, [REQUEST], 100, 0.2, random.Random(0))
    assert (row["per_s"], row["ms_p50"]) == (0.0, None)
    assert row["errors"] == row["requests"] > 0
