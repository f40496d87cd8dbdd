"""Requests as expensive to read or to refuse as a client can make them: each field of each body, and each header.

No request makes a callback on a gateway's event loop take more than `MAX_HOLD_S` of processor time. Streams beside the
requests go on: the slowest hundredth of the gaps between two texts is at most `MAX_SLOWER` times that of streams alone.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import msgspec
import structlog

from gateway.db.migrate import migrate
from gateway.reference.openapi import document
from tests.drills.drill import Drill, Outcome, print_progress
from tests.drills.ground import Ground, running_ground
from tests.drills.noise import CONTEXT, Noise, neighbour, prepare
from tests.engine.scheduling.fairness_simulator import percentile
from tests.faults.processes import Postgres
from tests.gateway.model_folder import make_model_folder
from tests.installation.beats import longest_beat_s
from tests.installation.live_gateway import BASE, LiveGateway, running_gateways
from tests.installation.tenants import Key, make_key
from tests.patience import PATIENCE_S

MAX_HOLD_S, TRIES = 0.05, 5
MAX_SLOWER = 1.2
NUM_BODIES_OF_A_PROJECT = 3
"""The number of bodies that are sent with one project's key: so few that the project's pace refuses none."""

SIZE, HEADER_SIZE = (4 << 20) - 1000, 60_000
USER = {"role": "user", "content": "x"}
OPERATORS = ("/v1/organization", "/admin")
MINIMAL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 1},
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/embeddings": {"input": "x"},
    "/v1/messages": {"messages": [USER], "max_tokens": 1},
    "/v1/responses": {"input": "x", "max_output_tokens": 16},
    "/tokenize": {"prompt": "x"},
}
"""The required fields of each operation's body, besides the model."""

HEADERS = (
    "accept", "accept-encoding", "accept-language", "authorization", "connection", "content-type", "cookie", "expect",
    "forwarded", "idempotency-key", "if-none-match", "openai-beta", "openai-organization", "origin", "range", "te",
    "traceparent", "tracestate", "upgrade", "user-agent", "x-api-key", "x-forwarded-for", "x-lorikeet-arm",
    "x-lorikeet-experiment", "x-lorikeet-unit", "x-request-id", "x-unknown",
)  # fmt: skip

TEXTS = {"letters": "a", "commas": "a,", "semicolons": "a;", "quotes": '"\\', "digits": "1"}
"""The building blocks of header values."""

NUM_STREAMS, STREAM_TOKENS = 8, 400
"""The streams of the tenant whose gaps are measured, and the tokens of each."""


class ExpensiveRequest(msgspec.Struct, frozen=True):
    """A request that may be expensive to handle, with words that distinguish it from the others."""

    name: str
    path: str
    body: bytes
    headers: dict[str, str] = {}


class Size(msgspec.Struct, frozen=True):
    """The size of a measurement."""

    one_in: int = 1
    """N: one in N of the expensive requests is sent, drawn at random."""
    rounds: int = 6
    """The number of pairs of phases, one without the expensive requests and one beside them, of phase_s seconds
    each."""
    phase_s: float = 12.0


FULL, SMALL = Size(), Size(one_in=24, rounds=2, phase_s=5.0)


def fillings() -> dict[str, bytes]:
    """Return values of a field that are as large as a body may be, by the name of their kind."""
    return {
        "arrays": b"[" + b"[]," * (SIZE // 3) + b"1]",
        "objects": b"[" + b"{}," * (SIZE // 3) + b"1]",
        "texts": b"[" + b'"",' * (SIZE // 3) + b"1]",
        "digits": b"1" * SIZE,
    }


def fields_of(described: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each field of each body that tenants send, with the path of its operation.

    described: the OpenAPI document.
    """
    for path, methods in sorted(described["paths"].items()):
        content = methods.get("post", {}).get("requestBody", {}).get("content", {})
        if "application/json" in content and not path.startswith(OPERATORS):
            for name in sorted(_properties(described, content["application/json"]["schema"])):
                yield path, name


def _properties(described: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    if reference := schema.get("$ref"):
        kind, name = reference.split("/")[2:]
        return _properties(described, described["components"][kind][name])
    found = set(schema.get("properties", {}))
    for each in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        found |= _properties(described, each)
    return found


def expensive_requests(described: dict[str, Any]) -> Iterator[ExpensiveRequest]:
    """Yield requests with each filling in each field of each body, and with texts of the largest size in each
    header."""
    filled = fillings()
    for path, field in fields_of(described):
        good = {"model": BASE} | MINIMAL.get(path, {})
        for kind, value in filled.items():
            body = msgspec.json.encode(good | {field: msgspec.Raw(value)})
            yield ExpensiveRequest(f"{path} {field}: {kind}", path.replace("{", "").replace("}", ""), body)
    path = "/v1/chat/completions"
    body = msgspec.json.encode({"model": BASE} | MINIMAL[path])
    for name in HEADERS:
        for kind, text in (
            ("letters", "a"),
            ("commas", "a,"),
            ("semicolons", "a;"),
            ("quotes", '"\\'),
            ("digits", "1"),
        ):
            yield ExpensiveRequest(f"{name}: {kind}", path, body, {name: text * (HEADER_SIZE // len(text))})
    yield ExpensiveRequest("many headers", path, body, {f"x-{number}": "a" for number in range(5000)})


class Sender:
    """A client that sends expensive requests to a gateway in this process, and records how long its loop was blocked.

    A beat is the time for which one request blocked the loop. longest: the longest beat in seconds, and the name of its
    request. slow: a line for each request that blocked the loop for too long in every try.
    """

    def __init__(self, gateway: LiveGateway, dsn: str) -> None:
        self.statuses = Counter[int]()
        self.longest = (0.0, "")
        self.slow: list[str] = []
        self._gateway = gateway
        self._dsn = dsn
        self._key: Key | None = None
        self._num_left = 0
        self._http = httpx.Client(base_url=gateway.url, timeout=PATIENCE_S, trust_env=False)

    def send(self, expensive: ExpensiveRequest) -> None:
        """Send a request; repeat it a few times if it blocked the loop, since other work of the machine only makes a
        beat longer."""
        beats_s = [self._once(expensive)]
        while beats_s[-1] > MAX_HOLD_S and len(beats_s) < TRIES:
            beats_s.append(self._once(expensive))
        self.longest = max(self.longest, (min(beats_s), expensive.name))
        if min(beats_s) > MAX_HOLD_S:
            self.slow.append(f"{expensive.name}: {1000 * min(beats_s):.0f} ms")

    def _once(self, expensive: ExpensiveRequest) -> float:
        if self._key is None or not self._num_left:
            self._key = asyncio.run(make_key(self._dsn, f"expensive {self.statuses.total()}"))
            self._num_left = NUM_BODIES_OF_A_PROJECT
        self._num_left -= 1
        loop, is_over = self._gateway.loop, Future[None]()
        assert loop is not None
        beating = asyncio.run_coroutine_threadsafe(longest_beat_s(is_over), loop)
        headers = {**self._key.headers, "content-type": "application/json"} | expensive.headers
        try:
            self.statuses[self._http.post(expensive.path, content=expensive.body, headers=headers).status_code] += 1
        except httpx.TransportError:  # where the head is too long, the connection ends with the refusal
            self.statuses[0] += 1
        finally:
            is_over.set_result(None)
        return beating.result(PATIENCE_S)


def every_field(size: Size, folder: Path, rng: random.Random) -> Outcome:
    """Send every request that is expensive for the gateway, or one in `size.one_in` of them, to a gateway of its own.

    Raises AssertionError: when a request holds up the event loop, or the server fails at one.
    """
    (folder / "data").mkdir()
    postgres, log = Postgres(folder / "postgres"), (folder / "gateway.log").open("w")
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(log))
    number = 0
    try:
        asyncio.run(migrate(postgres.dsn))
        model = make_model_folder(folder / "model")
        with running_gateways(postgres.dsn, model, data_dir=folder / "data", max_body_bytes=4 << 20) as installed:
            gc.collect()
            gc.freeze()  # as a gateway does once it has started
            sender = Sender(installed.gateway, postgres.dsn)
            assert installed.gateway.app is not None
            for each in expensive_requests(document(installed.gateway.app)):
                if rng.randrange(size.one_in) == 0:
                    number += 1
                    sender.send(each)
    finally:
        gc.unfreeze()
        structlog.reset_defaults()
        log.close()
        postgres.stop()
    longest_s, name = sender.longest
    remark = (
        f"{number} requests: {dict(sorted(sender.statuses.items()))}; the loop is kept for at most "
        f"{1000 * longest_s:.0f} ms of processor time ({name}); load {os.getloadavg()[0]:.0f}"
    )
    assert number and not sender.slow, f"{remark}; {sender.slow[:5]}"
    assert not [status for status in sender.statuses if status >= 500 and status != 503], remark
    return Outcome(remark=remark)


class Gaps(msgspec.Struct):
    """The milliseconds between two consecutive texts of streams."""

    alone_ms: list[float] = []
    beside_ms: list[float] = []

    @property
    def ratio(self) -> float:
        return percentile(self.beside_ms, 0.99) / percentile(self.alone_ms, 0.99)

    def __str__(self) -> str:
        alone, beside = ([percentile(each, part) for part in (0.5, 0.99)] for each in (self.alone_ms, self.beside_ms))
        return (
            f"gap p50 {alone[0]:.1f} -> {beside[0]:.1f} ms, p99 {alone[1]:.1f} -> {beside[1]:.1f} ms, "
            f"ratio {self.ratio:.2f} of {len(self.alone_ms)} and {len(self.beside_ms)}"
        )


class Streams:
    """Streams that are kept open, each begun anew where it ends, and the gaps between their texts.

    The same streams go on alone and beside noise, and all of them run before any noise begins: so no gap has a start of
    a stream in it, nor a machine that is still getting ready.
    """

    def __init__(self, ground: Ground, key: Key) -> None:
        self._urls = [f"{gateway.url}/v1/completions" for gateway in ground.gateways]
        self._key = key
        self._gaps_ms: list[float] | None = None
        self._texts = Counter[int]()

    async def run(self) -> None:
        """Keep the streams open until cancelled."""
        async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http, asyncio.TaskGroup() as group:
            for number in range(NUM_STREAMS):
                group.create_task(self._client(http, number))

    async def until_all_run(self) -> None:
        """Wait until each stream has received texts since this call."""
        self._texts.clear()
        async with asyncio.timeout(PATIENCE_S):
            while sum(count > 1 for count in self._texts.values()) < NUM_STREAMS:  # noqa: ASYNC110 - eight events
                await asyncio.sleep(0.05)

    async def gaps_ms(self, seconds: float) -> list[float]:
        """Wait for some seconds, and return the milliseconds of each gap that ended in them."""
        self._gaps_ms = found = list[float]()
        await asyncio.sleep(seconds)
        self._gaps_ms = None
        return found

    async def _client(self, http: httpx.AsyncClient, number: int) -> None:
        body = {"model": "small", "prompt": [5, 6, 7], "max_tokens": STREAM_TOKENS, "ignore_eos": True, "stream": True}
        while True:
            url = self._urls[number % len(self._urls)]
            async with http.stream("POST", url, json=body, headers=self._key.headers) as reply:
                assert reply.status_code == 200, await reply.aread()
                last_s = 0.0
                async for line in reply.aiter_lines():
                    if not line.startswith("data: {"):
                        continue
                    now_s = time.monotonic()
                    if last_s and self._gaps_ms is not None:
                        self._gaps_ms.append(1000 * (now_s - last_s))
                    self._texts[number] += 1
                    last_s = now_s


async def _measure(ground: Ground, key: Key, noise: Noise, size: Size) -> Gaps:
    streams = Streams(ground, key)
    running, measuring = asyncio.create_task(streams.run()), asyncio.create_task(_rounds(streams, noise, size))
    await asyncio.wait((running, measuring), return_when=asyncio.FIRST_COMPLETED)
    is_broken = running.done()  # streams end by an error alone
    for task in (running, measuring):
        task.cancel()
    error, _ = await asyncio.gather(running, measuring, return_exceptions=True)
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if is_broken and isinstance(error, BaseException):
        raise error
    return measuring.result()


async def _rounds(streams: Streams, noise: Noise, size: Size) -> Gaps:
    gaps = Gaps()
    for _ in range(size.rounds):
        await streams.until_all_run()
        gaps.alone_ms += await streams.gaps_ms(size.phase_s)
        with noise.on():
            await asyncio.sleep(1.0)
            gaps.beside_ms += await streams.gaps_ms(size.phase_s)
        await asyncio.sleep(1.0)
        print_progress(f"  {gaps}")
    return gaps


def streams_beside(size: Size, folder: Path, rng: random.Random) -> Outcome:
    """Measure streams alone and beside large bodies.

    Raises AssertionError: when their texts come too late.
    """
    data = folder / "data"
    data.mkdir()
    kind = "4 MiB bodies"
    with running_ground(data, context=CONTEXT) as ground:
        site = asyncio.run(prepare(ground, kind, folder / "adapter", 0))
        victim = asyncio.run(make_key(ground.postgres.dsn, "victim"))
        with neighbour(kind, site) as noise:
            tries = list[Gaps]()
            while not tries or (tries[-1].ratio > MAX_SLOWER and len(tries) < 3):
                tries.append(asyncio.run(_measure(ground, victim, noise, size)))
        best = min(tries, key=lambda each: each.ratio)
        statuses = ", ".join(f"{count} x {status}" for status, count in sorted(noise.statuses.items()))
        remark = f"{best} (try {len(tries)}); beside: {statuses}; load {os.getloadavg()[0]:.0f}"
        assert best.ratio <= MAX_SLOWER and noise.statuses[400], remark
        ground.settle()
        return Outcome(remark=remark)


DRILLS = (
    Drill(
        "every field and header",
        "none keeps the loop for 50 ms of processor time",
        partial(every_field, FULL),
        partial(every_field, SMALL),
    ),
    Drill(
        "streams beside 4 MiB bodies",
        "the p99 of the gaps between texts is at most 1.2 times that alone",
        partial(streams_beside, FULL),
        partial(streams_beside, SMALL),
    ),
)
