"""The tables that drills and soaks print tell whether everything held."""

from __future__ import annotations

import asyncio
import contextlib
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.drills import requests
from tests.drills.__main__ import DRILLS, HEAD, Row, line_of
from tests.drills.distances import DelayProxy
from tests.drills.drill import Outcome
from tests.drills.growth import slope
from tests.drills.neighbours import MAX_SLOWER, VictimWaits
from tests.drills.noise import KINDS
from tests.drills.processors import Processors, busy_processors, seconds_between
from tests.drills.requests import HEADER_SIZE, HEADERS, TEXTS, expensive_requests, fields_of, fillings
from tests.drills.soak import State, Stretch, table

TIMES_S = [10.0 * number for number in range(100)]


def test_what_only_scatters_is_flat_and_what_leaks_grows() -> None:
    rng = random.Random(1)
    steady = [100 + rng.uniform(-1, 1) for _ in TIMES_S]
    assert slope(TIMES_S, steady).is_flat
    leaking = [value + 0.01 * time_s for time_s, value in zip(TIMES_S, steady, strict=True)]
    found = slope(TIMES_S, leaking)
    assert not found.is_flat and 30 < found.per_hour < 42
    assert slope(TIMES_S, [0.0] * 15 + steady[15:]).is_flat, "a start is no leak"
    assert slope([], []).is_flat and slope([1.0], [5.0]).is_flat


def test_each_drill_has_a_name_and_a_line_as_wide_as_the_tables_head() -> None:
    assert len({drill.name for drill in DRILLS}) == len(DRILLS)
    line = line_of(Row("a", "held", 1.0, Outcome(outcomes={"answered": 3, "cut off": 1}, silence_s=0.5)))
    assert line == "| a | held | 3 of 4 | 1 cut off | 0.5 | 0.0 | - |"
    assert line.count("|") == HEAD.splitlines()[0].count("|")


def test_a_soak_with_one_wrong_answer_has_not_held() -> None:
    stretches = [Stretch(0, 600.0, {"answered": 10}, {"gateway killed": 1}, [], [], 1.0)]
    assert table(State(1, stretches))[1]
    wrong = Stretch(0, 600.0, {"answered": 9, "WRONG": 1}, {}, ["another model's"], [], 1.0)
    text, held = table(State(1, [*stretches, wrong]))
    assert not held and "another model's" in text and "answered                                 19" in text


def test_a_victim_waits_by_the_slowest_hundredth() -> None:
    quick, slow = [50] * 990, [70] * 10
    assert VictimWaits(quick + slow, quick + slow).ratio == 1.0
    assert VictimWaits(quick + slow, [50] * 980 + [200] * 20).ratio > MAX_SLOWER
    assert "p99 50 -> 200 ms" in str(VictimWaits([50] * 1000, [50] * 980 + [200] * 20))
    assert VictimWaits([0] * 10, [1] * 10).ratio == 1.0, "nothing is divided by a wait of no time"


def test_a_part_takes_what_its_processes_and_those_they_started_take() -> None:
    program = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\nsys.stdin.read()"
    shell = subprocess.Popen(
        ["sh", "-c", '"$0" -c "$1"; true', sys.executable, program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    parts = Processors({"shell": lambda: [shell.pid], "nobody": list})
    before = parts.seconds()
    assert shell.stdout is not None and shell.stdout.readline() == b"\n"
    running = seconds_between(before, parts.seconds())
    assert running["shell"] >= 0.25 and running["nobody"] == 0.0
    shell.communicate(b"")
    assert busy_processors({"a": 0.5, "b": 1.0}, 2.0) == "a 0.25, b 0.50"


def test_every_field_of_every_body_and_every_header_is_sent_with_each_filling() -> None:
    schemas = {
        "Common": {"properties": {"model": {}, "stop": {}}},
        "Chat": {"allOf": [{"$ref": "#/components/schemas/Common"}], "properties": {"messages": {}}},
    }
    chat = {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Chat"}}}}}
    paths = {"/v1/chat/completions": {"post": chat}, "/v1/organization/x": {"post": chat}, "/v1/models": {"get": {}}}
    described = {"paths": paths, "components": {"schemas": schemas}}
    assert list(fields_of(described)) == [("/v1/chat/completions", name) for name in ("messages", "model", "stop")]
    expensive = {each.name: each for each in expensive_requests(described)}
    bodies = [each for each in expensive.values() if not each.headers]
    assert len(bodies) == 3 * len(fillings()) and len(expensive) == len(bodies) + len(HEADERS) * len(TEXTS) + 1
    assert all(4_000_000 < len(each.body) <= 4 << 20 for each in bodies)
    assert expensive["/v1/chat/completions stop: objects"].body.startswith(b'{"model":"tiny","messages":[')
    assert len(expensive["traceparent: commas"].headers["traceparent"]) == HEADER_SIZE


def test_each_kind_of_noise_has_a_drill_and_a_smaller_one() -> None:
    small = {drill.name for drill in DRILLS if drill.small is not None}
    assert {f"noisy neighbour: {kind}" for kind in KINDS} < small


async def test_a_far_server_gets_everything_in_order_and_later(tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()
        ended.set()

    ended = asyncio.Event()
    server = await asyncio.start_unix_server(echo, tmp_path / "socket")
    proxy = DelayProxy(str(tmp_path / "socket"))
    try:
        proxy.delay_s, begun_s = 0.05, time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        sent = bytes(range(256)) * 4096
        writer.write(sent)
        assert await reader.read(1) == sent[:1]
        assert time.monotonic() - begun_s >= 2 * proxy.delay_s
        assert await reader.readexactly(len(sent) - 1) == sent[1:]
        writer.close()
        await ended.wait()
    finally:
        proxy.stop()
        server.close()


@asynccontextmanager
async def slow_streams(status: str = "200 OK") -> AsyncIterator[tuple[Any, list[int]]]:
    """Serve streams with a text every 5 ms that end after 20. Give an installation, and the number of each stream's
    texts.
    """
    served, handlers = list[int](), set[asyncio.Task[Any] | None]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        handlers.add(asyncio.current_task())
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
            writer.write(f"HTTP/1.1 {status}\r\nconnection: close\r\n\r\n".encode())
            number = len(served)
            served.append(0)
            await asyncio.sleep(0.05 * (number < requests.NUM_STREAMS))  # the first ones take a while to start
            for _ in range(20):
                writer.write(b"data: {}\n\n")
                await writer.drain()
                served[number] += 1
                await asyncio.sleep(0.005)

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    gateway = SimpleNamespace(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with server:
        yield SimpleNamespace(gateways=[gateway]), served
    await asyncio.gather(*(task for task in handlers if task is not None), return_exceptions=True)


class FakeNoise:
    """Noise that records the number of streams with texts at its start."""

    def __init__(self, served: list[int]) -> None:
        self.num_streams: list[int] = []
        self._served = served

    @contextmanager
    def on(self) -> Iterator[None]:
        self.num_streams.append(sum(count > 1 for count in self._served))
        yield


async def test_streams_all_run_before_any_noise_begins_and_go_on_beside_it() -> None:
    """If the machine is too busy for more than a text of each stream in a phase, phases are longer."""
    key: Any = SimpleNamespace(headers={})
    for phase_s in (0.2, 1.0, 5.0):
        async with slow_streams() as (ground, served):
            noise: Any = FakeNoise(served)
            gaps = await requests._measure(ground, key, noise, requests.Size(rounds=1, phase_s=phase_s))
        assert len(noise.num_streams) == 1 and noise.num_streams[0] >= requests.NUM_STREAMS
        if min(len(gaps.alone_ms), len(gaps.beside_ms)) > requests.NUM_STREAMS:
            return
    raise AssertionError(f"streams came to an end: {gaps}")


async def test_a_stream_that_is_refused_ends_the_drill_and_says_why() -> None:
    key: Any = SimpleNamespace(headers={})
    async with slow_streams("503 Service Unavailable") as (ground, served):
        noise: Any = FakeNoise(served)
        with pytest.raises(AssertionError, match="data"):
            await requests._measure(ground, key, noise, requests.Size(rounds=1, phase_s=0.2))
    assert noise.num_streams == []
