"""`python -m gateway.bench.traces`: the processor time that tracing adds to a request, in this process.

Runs the tracing steps of a request's path, with three spans a request: the server's, the model call's and the engine's,
over a replica that answers at once. Spans are encoded and sent to a collector that runs in another process; the
processor time that this process spends on encoding and sending counts. Each row is compared with the same path without
any trace. The yardstick, where OpenTelemetry's SDK is installed, is its own three spans with as many attributes,
encoded and not sent.

With --model-dir, latencies of whole gateways follow (`trace_latencies`): without traces, and with every request traced
to a collector that answers, to a slow one, to one that never answers, and to one that is not there.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import msgspec
import uvloop
from prometheus_client import CollectorRegistry, Counter

from adapters.ref import AdapterRef
from engine.protocol import GenerateRequest, SamplingParams, Usage
from gateway.backends.generation import Generation, Item, Piece
from gateway.backends.pool import PoolRevision, Replica
from gateway.bench.trace_latencies import print_latencies, running_collector
from gateway.domain.adapters.defaults import NO_DEFAULTS
from gateway.domain.pools.drivers import OWN_DRIVER
from gateway.domain.tenancy.principal import Principal
from gateway.domain.tracing import names
from gateway.domain.tracing.sampler import Sampler
from gateway.http.request.call import Call
from gateway.http.server_span import end_server_span
from gateway.observability.tracing.exporter import MAX_WAITING, Exporter
from gateway.observability.tracing.trace import UNTRACED, Traced, Tracer, context_without_spans
from gateway.pipeline.context import RequestContext
from gateway.pipeline.model_call import ModelCall
from gateway.routing.route import Route, RoutedAdapter

PATH = "/v1/chat/completions"
HEADER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
MODEL = "tiny:pirate"
SPANS = 3


class _Backend:
    """Answers each request at once, in as many items as a stream has."""

    def __init__(self, num_items: int) -> None:
        self._num_items = num_items

    async def generate(self, generation: Generation) -> AsyncGenerator[Item]:
        for at in range(self._num_items):
            yield [Piece(0, "a", finish_reason="stop" if at == self._num_items - 1 else None)]
        arrived_ns = time.time_ns() if generation.trace else 0
        yield Usage(20, self._num_items, queue_ms=1.0, prefill_ms=2.0, decode_ms=3.0, arrived_unix_ns=arrived_ns)


class RequestPath:
    """The steps of a request that tracing is part of."""

    def __init__(self, num_items: int) -> None:
        adapter = RoutedAdapter(
            "adp_1",
            AdapterRef("proj_1", "pirate", 1, "a" * 64),
            "a" * 64,
            NO_DEFAULTS,
            datetime.datetime.now(datetime.UTC),
            is_shared=False,
        )
        self._route = Route(MODEL, MODEL, "tiny", adapter)
        self._pool = cast("PoolRevision", SimpleNamespace(name="tiny", driver=OWN_DRIVER))
        self._replica = Replica("rep_1", cast("Any", _Backend(num_items)))
        self._principal = cast("Principal", None)
        self._request = GenerateRequest("req_1", [1] * 20, SamplingParams(max_tokens=num_items, seed=1), "proj_1")

    async def run(self, traced: Traced) -> None:
        """Run one request."""
        http = Call("req_1", 0, trace=traced, status=200, tenant="proj_1", api_key_id="key_1", model=MODEL)
        context = RequestContext(
            principal=self._principal, request_id="req_1", model=MODEL, endpoint=PATH, stream=True, trace=traced
        )
        call = ModelCall.begin(context, MODEL)
        generation = Generation(self._request, trace=traced.header)
        if call is not None:
            call.prepared(self._route, self._pool, [self._request], context)
        backend = self._replica.backend
        items = backend.generate(generation) if call is None else call.attempt(self._replica, generation)
        async for _ in items:
            pass
        if call is not None:
            call.end()
        if traced.trace is not None:
            end_server_span(traced.trace, http, method="POST", scheme="https", route=PATH, is_our_fault=False)


class Row(msgspec.Struct, frozen=True):
    """The processor time of one way to trace requests, in microseconds a request."""

    name: str
    us: float
    """The processor time, in microseconds a request."""
    note: str = ""


async def cpu_us(
    path: RequestPath, begin: Callable[[str], Traced], header: str, number: int, wait: Callable[[], bool]
) -> float:
    """Return the microseconds of processor time of a request, over all threads.

    wait: tells whether to send spans first. number: the number of requests. header: the header `traceparent` of each;
    "" for none.
    """

    async def run(number: int) -> None:
        for at in range(number):
            await path.run(begin(header))
            if not at % 256:
                await asyncio.sleep(0)
                while wait():  # noqa: ASYNC110 - no event tells
                    await asyncio.sleep(0.001)

    await run(number // 20)
    before_s = time.process_time()
    await run(number)
    return (time.process_time() - before_s) / number * 1e6


async def measure(number: int, num_items: int, collector_url: str) -> list[Row]:
    """Return a row for each way to trace: not at all, with a header that is only passed on, never, and every request.

    The last two have a tracer and a collector. Rows after the first state the time beyond the row without traces.

    number: the requests of each way. num_items: the items of a reply. collector_url: the address to send spans to.
    """
    path = RequestPath(num_items)

    def never() -> bool:
        return False

    none_us = await cpu_us(path, lambda _: UNTRACED, "", number, never)
    rows = [Row("without any trace", none_us)]
    off_us = await cpu_us(path, context_without_spans, HEADER, number, never)
    rows.append(Row("off, with the client's traceparent", off_us - none_us))
    both: tuple[Literal["always_off"], Literal["always_on"]] = ("always_off", "always_on")
    for name in both:
        registry = CollectorRegistry()
        outcomes = Counter("spans", "Spans.", ["outcome"], registry=registry)
        exporter = Exporter(
            collector_url,
            {},
            {
                "gateway": {names.SERVICE_NAME: names.GATEWAY, names.SERVICE_INSTANCE_ID: "host:1"},
                "engine": {names.SERVICE_NAME: names.ENGINE},
            },
            outcomes,
            version="1",
            every_s=0.05,
        )
        exporter.start()
        tracer = Tracer(Sampler(name, 1.0), exporter)
        us = await cpu_us(path, tracer.begin, HEADER, number, partial(_is_behind, exporter))
        await exporter.stop()
        sent = registry.get_sample_value("spans_total", {"outcome": "sent"}) or 0.0
        rows.append(Row(f"{name}, with a collector", us - none_us, f"{sent:.0f} spans sent"))
    return rows


def _is_behind(exporter: Exporter) -> bool:
    return exporter.num_waiting > MAX_WAITING / 2


def sdk_us(number: int) -> float | None:
    """Return the microseconds in which OpenTelemetry's SDK makes a request's three spans; None if it is not installed.

    number: how often the spans are made.
    """
    try:
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace import set_span_in_context
    except ImportError:
        return None

    class Encoding:
        def export(self, spans: Sequence[Any]) -> None:
            encode_spans(spans).SerializeToString()

        def shutdown(self) -> None: ...

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(cast("Any", Encoding()), max_queue_size=1 << 20))
    tracer = provider.get_tracer(names.SCOPE)
    sizes = (10, 16, 9)  # attributes of the spans of `RequestPath`

    def one() -> None:
        opened: list[Any] = []
        for size in sizes:
            within = set_span_in_context(opened[-1]) if opened else None
            values = {f"gen_ai.request.attribute_{at}": at if at % 2 else "a value" for at in range(size)}
            opened.append(tracer.start_span("chat tiny", context=within, attributes=values))
        for span in reversed(opened):
            span.end()

    for _ in range(100):
        one()
    before_s = time.process_time()
    for _ in range(number):
        one()
    provider.force_flush()
    return (time.process_time() - before_s) / number * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if spans were lost, requests failed, or a collector made answers late, else 0.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.traces", description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="requests of each row")
    parser.add_argument("--items", type=int, default=16, help="items of each reply")
    parser.add_argument("--model-dir", type=Path, help="a prepared model's folder, to measure latencies as well")
    parser.add_argument("--rates", type=float, nargs="*", default=[200.0], help="requests per second, for latencies")
    parser.add_argument("--seconds", type=float, default=15.0, help="seconds of each round of latencies")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of latencies, in each of which all ways have a turn"
    )
    parser.set_defaults(tenants=10)
    args = parser.parse_args(argv)
    with running_collector() as url, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(measure(args.requests, args.items, url))
    yardstick = sdk_us(max(args.requests // 10, 100))
    if yardstick is not None:
        rows.append(Row("the SDK's three spans", yardstick, "encoded, not sent"))
    for row in rows:
        sys.stdout.write(f"{row.name:<36}{row.us:>8.1f} us of processor time a request  {row.note}\n")
    expected = SPANS * (args.requests + args.requests // 20)
    good = any(row.note == f"{expected} spans sent" for row in rows)
    if args.model_dir is not None:
        good = print_latencies(args) and good
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
