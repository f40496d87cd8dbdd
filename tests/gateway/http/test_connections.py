"""One address cannot hold every connection; a refused connection is answered, and other clients notice nothing."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import httpx
import pytest
import uvicorn
import uvloop
from litestar import get
from prometheus_client import CollectorRegistry

from gateway.assembly.app import server_config
from gateway.domain.tenancy.addresses import parse_network
from gateway.http.envelope import Application
from gateway.http.protocol.cap import ConnectionCap
from gateway.http.server import Server, Stages
from gateway.observability.metrics import Metrics
from gateway.settings import Settings
from tests.patience import PATIENCE_S

MAX_CONNECTIONS = 3


def test_leaving_makes_room_and_leaves_no_trace() -> None:
    cap = ConnectionCap(2)
    assert [cap.enter("192.0.2.1") for _ in range(3)] == [True, True, False]
    assert cap.enter("192.0.2.2")
    cap.leave("192.0.2.1")
    assert cap.enter("192.0.2.1")
    for address in ("192.0.2.1", "192.0.2.1", "192.0.2.2"):
        cap.leave(address)
    assert not cap._num_open


def test_a_trusted_proxy_and_an_absent_cap_are_unbounded() -> None:
    exempt = ConnectionCap(1, [parse_network("10.0.0.0/8")])
    assert all(exempt.enter("10.0.0.1") for _ in range(10))
    assert all(ConnectionCap(0).enter("192.0.2.1") for _ in range(10))


@get("/")
async def hello() -> str:
    return "hello"


@pytest.fixture
async def running() -> AsyncIterator[tuple[uvicorn.Server, int]]:
    """Give a server and its port."""
    app = Application(
        metrics=Metrics(CollectorRegistry()), route_handlers=[hello], openapi_config=None, logging_config=None
    )
    # asyncio turns off Nagle's algorithm only where the protocol is named; replies would wait 40 ms for a late ACK.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # a client that connects before the server runs waits for it
    settings = Settings(max_connections_per_address=MAX_CONNECTIONS, drain_seconds=1)
    server = uvicorn.Server(server_config(settings, app))
    serving = asyncio.create_task(server.serve([listener]))
    yield server, listener.getsockname()[1]
    server.should_exit = True
    await serving
    listener.close()


@pytest.fixture
def url(running: tuple[uvicorn.Server, int]) -> str:
    return f"http://127.0.0.1:{running[1]}"


async def test_a_connection_too_many_gets_429_and_room_comes_back(url: str) -> None:
    async with httpx.AsyncClient(timeout=PATIENCE_S) as other:
        clients = [httpx.AsyncClient(timeout=PATIENCE_S) for _ in range(MAX_CONNECTIONS)]
        for client in clients:
            assert (await client.get(url)).status_code == 200
        refused = await other.get(url)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert (await clients[0].get(url)).status_code == 200, "those that are open stay so"
        await clients[0].aclose()
        async with asyncio.timeout(PATIENCE_S):
            while (await other.get(url)).status_code != 200:
                pass
        for client in clients[1:]:
            await client.aclose()


async def test_a_request_that_has_come_when_its_idle_connection_is_closed_is_answered(
    running: tuple[uvicorn.Server, int],
) -> None:
    server, port = running
    request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    (reader, writer), (idle, idle_writer) = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        for each in (writer, idle_writer):
            each.write(request)
        for each in (reader, idle):
            await each.readuntil(b"hello")
        writer.write(request)  # it reaches the kernel at once, and the server has no turn of the loop to read it
        for connection in list(server.server_state.connections):
            connection.shutdown()
        reply = await reader.read()
        assert reply.startswith(b"HTTP/1.1 200") and b"connection: close" in reply.lower()
        assert await idle.read() == b""
    for each in (writer, idle_writer):
        each.close()


async def test_a_head_of_which_a_part_was_read_when_its_connection_is_closed_is_answered(
    running: tuple[uvicorn.Server, int],
) -> None:
    server, port = running
    request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(PATIENCE_S):
        writer.write(request)
        await reader.readuntil(b"hello")
        writer.write(request[:9])
        (connection,) = server.server_state.connections
        while connection._is_silent:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        connection.shutdown()
        writer.write(request[9:])
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()


@pytest.mark.parametrize("num_clients", [1, 300])
def test_connections_that_wait_to_be_accepted_when_the_server_stops_are_answered(num_clients: int) -> None:
    """On the loop of a gateway, which accepts one connection in each of its turns."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_stop_with_waiting_clients(num_clients))


async def _stop_with_waiting_clients(num_clients: int) -> None:
    app = Application(
        metrics=Metrics(CollectorRegistry()), route_handlers=[hello], openapi_config=None, logging_config=None
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=num_clients)
    stages = Stages(leave=lambda: None, begin_drain=lambda: None, end_generation=lambda: None)
    server = Server(server_config(Settings(), app), app, stages, drain_s=PATIENCE_S)
    serving = asyncio.create_task(server.serve([listener]))
    async with asyncio.timeout(PATIENCE_S), contextlib.AsyncExitStack() as stack:
        while not server.started:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.01)
        clients = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(num_clients)]
        for client in clients:
            client.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        stopping = asyncio.create_task(server.shutdown([listener]))  # it has had no turn to accept the clients
        replies = await asyncio.gather(*map(_read_all, clients))
        assert [reply[:12] for reply in replies] == [b"HTTP/1.1 200"] * num_clients
        await stopping
    server.should_exit = True
    await serving


async def _read_all(client: socket.socket) -> bytes:
    reader, writer = await asyncio.open_connection(sock=client.dup())
    try:
        return await reader.read()
    finally:
        writer.close()
