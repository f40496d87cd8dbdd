"""Usage reaches the ledger once, and is acknowledged only then, whatever the database does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from engine.protocol import FinishReason, Usage, UsageRecord
from gateway.db.pool import Database
from gateway.db.usage import UsageEvent, list_usage_events
from gateway.metering.meter import Meter
from gateway.metering.tag import MeterTag, encode_tag
from gateway.observe import Metrics
from tests.conftest import with_database
from tests.gateway.unlimited import unlimited

TAG = MeterTag("org", "proj", "key", "/v1/completions", "tiny:a", "adpt", 2, "d" * 64, 1_700_000_000_000_000_000, True)


class Source:
    """What a backend is to the meter."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[str, int]] = []
        self.changed = asyncio.Event()

    async def acknowledge(self, keys: list[tuple[str, int]]) -> None:
        self.acknowledged += keys
        self.changed.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.acknowledged) < count:
                await self.changed.wait()
                self.changed.clear()


def record(request_id: str, finish_reason: FinishReason = "stop", **usage: int) -> UsageRecord:
    return UsageRecord(
        request_id, 0, finish_reason, Usage(**{"prompt_tokens": 3, "completion_tokens": 4, **usage}), encode_tag(TAG)
    )


def counted(registry: CollectorRegistry) -> tuple[float | None, ...]:
    """Prompt tokens, completion tokens and rows as Prometheus sees them."""
    label = {"model_name": "tiny"}
    return (
        registry.get_sample_value("vllm:prompt_tokens_total", label),
        registry.get_sample_value("vllm:generation_tokens_total", label),
        registry.get_sample_value("lorikeet_usage_events_written_total"),
    )


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
async def meter(database: Database, registry: CollectorRegistry) -> AsyncIterator[Meter]:
    meter = Meter(database, Metrics(registry), unlimited(database), max_waiting=3)
    meter.start()
    yield meter
    await meter.stop(5)


async def rows(database: Database) -> list[UsageEvent]:
    async with database.acquire() as conn:
        return await list_usage_events(conn, "proj", 10)


async def test_events_are_written_once_and_acknowledged_as_often_as_told(meter: Meter, database: Database):
    source = Source()
    for count, request_id in enumerate(("req_1", "req_2", "req_1"), start=1):
        meter.record(record(request_id), source=source, ttft_ms=1.5, latency_ms=2.5)
        await source.wait_for(count)
    async with database.acquire() as conn:
        events = await list_usage_events(conn, "proj", 10)
    assert [event.request_id for event in events] == ["req_1", "req_2"]
    assert (events[0].prompt_tokens, events[0].completion_tokens, events[0].ttft_ms) == (3, 4, 1.5)
    assert (events[0].model, events[0].adapter_version, events[0].stream) == ("tiny:a", 2, True)
    assert events[0].created_at.timestamp() == 1_700_000_000


async def test_nothing_is_lost_or_acknowledged_while_the_database_is_away(
    meter: Meter, database: Database, dsn: str, postgres: str
):
    source, name = Source(), urlsplit(dsn).path.lstrip("/")
    admin = await asyncpg.connect(with_database(postgres, "postgres"))
    try:
        await admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
        for number in range(3):
            meter.record(record(f"req_{number}"), source=source, ttft_ms=None, latency_ms=None)
        assert not meter.has_room
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await source.changed.wait()
        await admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    finally:
        await admin.close()
    await source.wait_for(3)
    assert meter.has_room
    async with database.acquire() as conn:
        assert len(await list_usage_events(conn, "proj", 10)) == 3


async def test_one_event_that_the_ledger_refuses_does_not_hold_up_the_others(database: Database):
    meter, source = Meter(database, Metrics(CollectorRegistry()), unlimited(database)), Source()
    meter.start()
    meter.record(record("req_1"), source=source, ttft_ms=None, latency_ms=None)
    meter.record(record("req_2", completion_tokens=2**63), source=source, ttft_ms=None, latency_ms=None)
    meter.record(record("req_3"), source=source, ttft_ms=None, latency_ms=None)
    await source.wait_for(2)
    await meter.stop(0.1)
    assert sorted(source.acknowledged) == [("req_1", 0), ("req_3", 0)]


@pytest.mark.parametrize("order", ["the gateway's first", "the engine's first", "both at once"])
@pytest.mark.parametrize("engine_says", ["abort", "error"])
async def test_the_engines_own_count_replaces_what_a_gateway_saw_before_it_lost_the_engine(
    meter: Meter, database: Database, registry: CollectorRegistry, order: str, engine_says: FinishReason
):
    gateway, engine = Source(), Source()
    seen = (record("req_1", "error", completion_tokens=2), gateway, 1.5)
    exact = (record("req_1", engine_says, completion_tokens=5, cached_tokens=1), engine, None)
    for usage, source, ttft_ms in [exact, seen] if order == "the engine's first" else [seen, exact]:
        meter.record(usage, source=source, ttft_ms=ttft_ms, latency_ms=None)
        if order != "both at once":
            await source.wait_for(1)
    await engine.wait_for(1)
    await gateway.wait_for(1)
    (row,) = await rows(database)
    assert (row.finish_reason, row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (engine_says, 3, 5, 1)
    assert row.ttft_ms == (None if order == "the engine's first" else 1.5)
    # Prometheus only adds up: what it counted first stays, and nothing is counted twice.
    assert counted(registry) == (3, 5 if order == "the engine's first" else 2, 1)


async def test_no_row_says_less_than_a_client_has_seen(meter: Meter, database: Database):
    gateway, engine = Source(), Source()
    meter.record(record("req_1", "error", completion_tokens=6), source=gateway, ttft_ms=1.5, latency_ms=None)
    await gateway.wait_for(1)
    meter.record(record("req_1", "abort", completion_tokens=5), source=engine, ttft_ms=None, latency_ms=None)
    await engine.wait_for(1)
    (row,) = await rows(database)
    assert (row.finish_reason, row.completion_tokens) == ("abort", 6)


async def test_an_attempt_that_never_ran_is_a_row_without_tokens(meter: Meter, database: Database):
    source = Source()
    refused = record("req_1", "error", prompt_tokens=0, completion_tokens=0)
    meter.record(refused, source=source, ttft_ms=None, latency_ms=None)
    await source.wait_for(1)
    (row,) = await rows(database)
    assert (row.finish_reason, row.prompt_tokens, row.completion_tokens) == ("error", 0, 0)


async def test_what_an_engine_tells_again_takes_no_second_place(database: Database):
    meter, source = Meter(database, Metrics(CollectorRegistry()), unlimited(database), max_waiting=2), Source()
    for _ in range(3):
        meter.record(record("req_1"), source=source, ttft_ms=None, latency_ms=None)
    assert meter.has_room
    meter.start()
    await meter.stop(5)
    assert source.acknowledged == [("req_1", 0)]


@pytest.mark.parametrize(
    "tag",
    [b"?", encode_tag(msgspec.structs.replace(TAG, created_at_ns=-1)), encode_tag(TAG).replace(b"proj", b"\xff" * 4)],
)
async def test_usage_of_an_unknown_kind_stays_with_its_engine(meter: Meter, tag: bytes):
    source = Source()
    meter.record(msgspec.structs.replace(record("req_1"), meter=tag), source=source, ttft_ms=None, latency_ms=None)
    meter.record(record("req_2"), source=source, ttft_ms=None, latency_ms=None)
    await source.wait_for(1)
    assert source.acknowledged == [("req_2", 0)]


async def test_stop_writes_what_waits(database: Database):
    meter, source = Meter(database, Metrics(CollectorRegistry()), unlimited(database)), Source()
    for number in range(1200):
        meter.record(record(f"req_{number}"), source=source, ttft_ms=None, latency_ms=None)
    meter.start()
    await meter.stop(10)
    assert len(source.acknowledged) == 1200
