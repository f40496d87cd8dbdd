"""`python -m gateway.bench.metering`: what metering itself costs, over a real journal and a real PostgreSQL.

Without HTTP and without engines: requests are dispatched, get their tokens in messages of many streams, and end, at a
fixed rate, in this process. Prints the processor time that this adds to the same load without a meter, per request, and
how far the ledger is behind. A program, never a timed test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from prometheus_client import CollectorRegistry

from engine.protocol import GenerateRequest, SamplingParams, Usage, UsageRecord
from gateway.backends.usage import Count
from gateway.billing.price_cache import PriceCache
from gateway.db.billing.prices import PriceLoader
from gateway.db.limits.leases import PostgresLeases
from gateway.db.limits.limits import LimitLoader
from gateway.db.migrate import migrate
from gateway.db.pool import Database
from gateway.domain.limits.clock import DatabaseClock
from gateway.limits.limiter import Limiter
from gateway.limits.rules import Rules
from gateway.metering.meter import Meter
from gateway.metering.service import Metering
from gateway.metering.tag import MeterTag, encode_tag
from gateway.observability.metrics import Metrics
from gateway.postgres.embedded import EmbeddedPostgres

PROMPT = [1] * 100
MAX_JOURNAL_BYTES = 64 << 20


class NoMeter:
    """A meter that records nothing, for the cost of the load alone."""

    has_room = True
    journal_id = "none"

    def dispatched(self, request: GenerateRequest, engine_id: str, *, num_prompt_tokens: int | None = None) -> None:
        """Do nothing with a request that was sent.

        num_prompt_tokens: not read.
        """

    def progressed(self, counts: list[Count]) -> None:
        """Do nothing with counts of tokens."""

    def record(self, usage: UsageRecord, **seen: Any) -> None:
        """Do nothing with usage."""


class NoEngine:
    """A stand-in for an engine, which has no usage to forget."""

    async def acknowledge(self, keys: list[tuple[str, int]]) -> None:
        """Return at once: no usage was remembered."""


class Load:
    """Requests of `chunks` tokens. Each step is one message with a token for every running stream."""

    def __init__(self, meter: Meter | NoMeter, num_streams: int, num_chunks: int) -> None:
        self._meter = meter
        self._num_streams = num_streams
        self._num_chunks = num_chunks
        self._source = NoEngine()
        self._run = os.urandom(4).hex()
        self._number = 0
        self.loop_s = 0.0
        """Seconds of processor time that the serving thread has spent in calls of the meter."""

    def batch(self) -> None:
        """Run num_streams requests from their dispatch to their end."""
        requests = [self._request() for _ in range(self._num_streams)]
        began_s = time.thread_time()
        for request in requests:
            self._meter.dispatched(request, "engine")
        self.loop_s += time.thread_time() - began_s
        self._report_chunks(requests)
        records = [
            UsageRecord(request.request_id, 0, "length", Usage(len(PROMPT), self._num_chunks), request.meter)
            for request in requests
        ]
        began_s = time.thread_time()
        for record in records:
            self._meter.record(record, engine_id="engine", source=self._source, ttft_ms=1.0, latency_ms=2.0)
        self.loop_s += time.thread_time() - began_s

    def _report_chunks(self, requests: Sequence[GenerateRequest]) -> None:
        for number in range(1, self._num_chunks + 1):
            began_s = time.thread_time()
            self._meter.progressed([Count(each.request_id, 0, len(PROMPT), number) for each in requests])
            self.loop_s += time.thread_time() - began_s

    def _request(self) -> GenerateRequest:
        self._number += 1
        tag = MeterTag(
            "org_bench",
            f"proj_{self._number % 10}",
            "key_bench",
            "/v1/chat/completions",
            "bench:adapter",
            "adpt_bench",
            1,
            "d" * 64,
            time.time_ns(),
            True,
            journal_id=self._meter.journal_id,
        )
        request_id = f"req_{self._run}{self._number:020}"
        sampling = SamplingParams(max_tokens=self._num_chunks)
        return GenerateRequest(request_id, PROMPT, sampling, tenant="bench", meter=encode_tag(tag))


class Run(msgspec.Struct, frozen=True):
    """The figures of one run."""

    num_requests: int
    num_refused: int
    """Requests for which the journal had no room."""
    elapsed_s: float
    cpu_s: float
    """The seconds of processor time of this process."""

    @property
    def cpu_us_per_request(self) -> float:
        """Microseconds of processor time for each request."""
        return self.cpu_s / self.num_requests * 1e6


async def drive(load: Load, meter: Meter | NoMeter, args: argparse.Namespace) -> Run:
    """Run the load at args.requests_per_s for args.seconds, and return its figures."""
    loop = asyncio.get_running_loop()
    num_requests, num_refused, before_s = 0, 0, time.process_time()
    start_s = loop.time()
    while (elapsed_s := loop.time() - start_s) < args.seconds:
        if meter.has_room:
            load.batch()
            num_requests += args.streams
        else:
            num_refused += args.streams
        due_s = start_s + (num_requests + num_refused) / args.requests_per_s
        await asyncio.sleep(max(0.0, due_s - loop.time()))
    return Run(num_requests, num_refused, elapsed_s, time.process_time() - before_s)


async def at_rate(args: argparse.Namespace, dsn: str, folder: Path) -> dict[str, Any]:
    """Measure the load at one rate, and return the row.

    Requests that are not in the ledger at the end are the ledger's delay.
    """
    registry = CollectorRegistry()
    no_meter = NoMeter()
    alone = await drive(Load(no_meter, args.streams, args.chunks), no_meter, args)
    async with await Database.connect(dsn) as database:
        prices = PriceCache(PriceLoader(database))
        clock = DatabaseClock(time.monotonic)
        limiter = Limiter(PostgresLeases(database), Rules(LimitLoader(database)), clock, prices)
        metering = Metering(
            folder,
            database,
            limiter,
            Metrics(registry),
            database_id="bench",
            max_journal_bytes=MAX_JOURNAL_BYTES,
        )
        metering.start()
        load = Load(metering.meter, args.streams, args.chunks)
        run = await drive(load, metering.meter, args)
        behind = int(registry.get_sample_value("lorikeet_usage_events_waiting") or 0)
        await metering.flush()
        await metering.stop()
    written = int(registry.get_sample_value("lorikeet_usage_events_written_total") or 0)
    return {
        "per_s": round(run.num_requests / run.elapsed_s),
        "requests": run.num_requests,
        "refused": run.num_refused,
        "behind": behind,
        "written": written,
        "streams": args.streams,
        "chunks": args.chunks,
        "meter_us_per_request": round(load.loop_s / run.num_requests * 1e6, 1),
        "added_us_per_request": round(run.cpu_us_per_request - alone.cpu_us_per_request, 1),
    }


@contextmanager
def database(folder: Path) -> Iterator[str]:
    """Run an embedded PostgreSQL with the schema within the context, and yield its connection string."""
    server = EmbeddedPostgres(folder)
    dsn = server.start()
    try:
        asyncio.run(migrate(dsn))
        yield dsn
    finally:
        server.stop()


def table_line(row: dict[str, Any]) -> str:
    """Return a row as a line of text."""
    return (
        f"{row['per_s']:>6} requests/s of {row['chunks']:>3} chunks, {row['streams']:>3} streams a message: "
        f"{row['meter_us_per_request']} us in the meter, {row['added_us_per_request']} us added in all per request; "
        f"ledger {row['behind']} behind at the end, {row['refused']} refused, {row['written']} written"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure each number of chunks; return 0 if the ledger has every request in the end, else 1.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.metering", description=__doc__)
    add = parser.add_argument
    add("--requests-per-s", type=float, default=2000.0)
    add("--seconds", type=float, default=10.0)
    add("--streams", type=int, default=32, help="requests that run at a time, and share a message of each step")
    add("--chunks", type=int, nargs="*", default=[1, 16, 64], help="tokens of each request, one row for each")
    add("--json", action="store_true", help="one JSON line per row instead of a table")
    args = parser.parse_args(argv)
    failed = False
    with tempfile.TemporaryDirectory(prefix="lorikeet-bench-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # PostgreSQL may have to run as another user
        with database(folder / "postgres") as dsn:
            for chunks in args.chunks:
                options = argparse.Namespace(**{**vars(args), "chunks": chunks})
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    row = runner.run(at_rate(options, dsn, folder / "journal"))
                sys.stdout.write(f"{json.dumps(row) if args.json else table_line(row)}\n")
                sys.stdout.flush()
                failed = failed or row["written"] < row["requests"]
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
