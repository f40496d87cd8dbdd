"""Connections that send nothing, or not all of a head, are closed at their limit; those with requests go on, and the
gateway can open files whatever clients hold."""

from __future__ import annotations

import asyncio
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
import uvicorn
from litestar import get
from prometheus_client import CollectorRegistry

from gateway.assembly.app import server_config
from gateway.http.envelope import Application
from gateway.observability.metrics import Metrics
from gateway.settings import Settings
from gateway.support.descriptors import RESERVED, max_connections
from tests.patience import PATIENCE_S, least

HEAD_S = 0.5
NUM_CONNECTIONS = 201
REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
HALF = REQUEST[:20]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@get("/")
async def answer_slowly() -> str:
    """Return a reply after a longer time than a head may take."""
    await asyncio.sleep(HEAD_S * 2)
    return "hello"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    app = Application(
        metrics=Metrics(CollectorRegistry()), route_handlers=[answer_slowly], openapi_config=None, logging_config=None
    )
    listener = socket.create_server(("127.0.0.1", 0), backlog=NUM_CONNECTIONS)
    settings = Settings(head_seconds=HEAD_S, max_connections_per_address=0, drain_seconds=1)
    server = uvicorn.Server(server_config(settings, app))
    serving = asyncio.create_task(server.serve([listener]))
    yield int(listener.getsockname()[1])
    server.should_exit = True
    await serving
    listener.close()


async def drip(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send byte after byte, each long before the limit, while the connection is open."""
    for byte in data:
        if writer.is_closing():
            return
        writer.write(bytes([byte]))
        await asyncio.sleep(HEAD_S / 5)


async def end_of(connection: Streams) -> bytes:
    """Return the remaining bytes until the server closes the connection."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await connection[0].read()
    except ConnectionError:  # a last byte crossed the end
        return b""
    finally:
        connection[1].close()


async def reply_of(connection: Streams) -> bytes:
    """Return the head of a reply whose body is "hello"."""
    async with asyncio.timeout(PATIENCE_S):
        head = await connection[0].readuntil(b"\r\n\r\n")
        assert await connection[0].readexactly(5) == b"hello"
    return head


async def test_connections_without_a_whole_head_are_all_closed(port: int) -> None:
    """This test has fewer connections and a shorter limit than a server, where 2,000 close within 15 s at a 10 s
    limit."""

    async def until_all_are_closed_s() -> float:
        connections: list[Streams] = []
        drips = []
        for number in range(NUM_CONNECTIONS):
            connections.append(await asyncio.open_connection("127.0.0.1", port))
            writer = connections[-1][1]
            if number % 3 == 1:
                writer.write(HALF)  # at once, since all of them together may take longer to open than a head may
            elif number % 3 == 2:
                drips.append(asyncio.create_task(drip(writer, REQUEST[:-2] + b"x: " + b"y" * 1000)))
        loop = asyncio.get_running_loop()
        started_s = loop.time()
        ends = await asyncio.gather(*map(end_of, connections))
        ended_s = loop.time()
        assert set(ends[0::3]) == {b""}, "to silence there is nothing to answer"
        assert all(end.startswith(b"HTTP/1.1 408 ") and b'"code":"request_timeout"' in end for end in ends[1::3])
        for dripping in drips:
            dripping.cancel()
        return ended_s - started_s

    limit_s = 15 - 10 + HEAD_S
    assert await least(until_all_are_closed_s, limit_s) < limit_s


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nx: " + b"y" * 1000, b"\r\n" * 500], ids=["head", "empty lines"])
async def test_a_head_that_drips_after_a_reply_ends_the_connection(port: int, data: bytes) -> None:
    connection = await asyncio.open_connection("127.0.0.1", port)
    connection[1].write(REQUEST)
    assert b" 200 " in await reply_of(connection)
    dripping = asyncio.create_task(drip(connection[1], data))
    async with asyncio.timeout(HEAD_S * 100):  # half as long as it drips
        await end_of(connection)
    dripping.cancel()


async def test_requests_that_run_and_idle_connections_are_left_alone(port: int) -> None:
    connection = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(2):
        connection[1].write(REQUEST)
        assert b" 200 " in await reply_of(connection)
        await asyncio.sleep(HEAD_S * 1.5)  # uvicorn's own timer for idle connections is longer
    connection[1].write(REQUEST + HALF)  # the next one's head began while the first is answered
    assert b" 200 " in await reply_of(connection)
    connection[1].write(REQUEST[len(HALF) :])
    assert b" 200 " in await reply_of(connection)
    connection[1].close()


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, limits[1]), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_clients_never_take_the_last_descriptors(few_descriptors: None) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert max_connections() == soft - RESERVED
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    assert max_connections() == 50, "half, where there are few"


LIMITED_SERVER = """
import resource, socket
import uvicorn
from litestar import get
from prometheus_client import CollectorRegistry
from gateway.http.envelope import Application
from gateway.assembly.app import server_config
from gateway.support.descriptors import raise_descriptor_limit
from gateway.observability.metrics import Metrics
from gateway.settings import Settings

resource.setrlimit(resource.RLIMIT_NOFILE, (50, 200))
raise_descriptor_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200

@get("/")
async def hello() -> str:
    with open("/dev/null"):
        return "hello"

metrics = Metrics(CollectorRegistry())
app = Application(metrics=metrics, route_handlers=[hello], openapi_config=None, logging_config=None)
listener = socket.create_server(("127.0.0.1", 0), backlog=50)
config = server_config(Settings(head_seconds=3, max_connections_per_address=60), app)
config.log_level = "critical"
print(listener.getsockname()[1], flush=True)
uvicorn.Server(config).run([listener])
"""


@pytest.fixture
def limited_port() -> Iterator[int]:
    """Give the port of a server with 200 file descriptors, of which clients may take 100, and one address 60."""
    with subprocess.Popen([sys.executable, "-c", LIMITED_SERVER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


async def connections_from(address: str, port: int, count: int) -> list[Streams]:
    return [await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)) for _ in range(count)]


async def answer(address: str, port: int) -> bytes:
    """Return the status line of the reply to a request from this address."""
    ((reader, writer),) = await connections_from(address, port, 1)
    writer.write(REQUEST)
    async with asyncio.timeout(PATIENCE_S):
        line = await reader.readline()
    writer.close()
    return line


async def test_another_client_is_served_beside_one_that_opens_all_it_can(limited_port: int) -> None:
    """One client opens 250 connections against 200 descriptors; 1,024 against 1,024 takes longer and shows no more."""
    held = await connections_from("127.0.0.1", limited_port, 250)
    assert b" 200 " in await answer("127.0.0.2", limited_port)
    assert b" 429 " in await answer("127.0.0.1", limited_port)
    held += await connections_from("127.0.0.3", limited_port, 60)
    assert b" 503 " in await answer("127.0.0.2", limited_port), "addresses together are bounded as well"
    async with asyncio.timeout(PATIENCE_S):
        while b" 200 " not in await answer("127.0.0.2", limited_port):
            pass  # until what is silent has ended
    for _, writer in held:
        writer.close()
