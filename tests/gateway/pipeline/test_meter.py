"""Usage reaches the ledger once, and is acknowledged only then, whatever the database does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import asyncpg
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from engine.protocol import Usage, UsageRecord
from gateway.db.pool import Database
from gateway.db.usage import list_usage_events
from gateway.metering.meter import Meter
from gateway.metering.tag import MeterTag, encode_tag
from gateway.observe import Metrics
from tests.conftest import with_database

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


def record(request_id: str, tag: MeterTag = TAG, **usage: int) -> UsageRecord:
    return UsageRecord(
        request_id, 0, "stop", Usage(**{"prompt_tokens": 3, "completion_tokens": 4, **usage}), encode_tag(tag)
    )


@pytest.fixture
async def meter(database: Database) -> AsyncIterator[Meter]:
    meter = Meter(database, Metrics(CollectorRegistry()), max_waiting=3)
    meter.start()
    yield meter
    await meter.stop(5)


async def test_events_are_written_once_and_acknowledged(meter: Meter, database: Database):
    source = Source()
    for request_id in ("req_1", "req_2", "req_1"):
        meter.record(record(request_id), source=source, ttft_ms=1.5, latency_ms=2.5)
    await source.wait_for(3)
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
    meter, source = Meter(database, Metrics(CollectorRegistry())), Source()
    meter.start()
    meter.record(record("req_1"), source=source, ttft_ms=None, latency_ms=None)
    meter.record(record("req_2", completion_tokens=2**63), source=source, ttft_ms=None, latency_ms=None)
    meter.record(record("req_3"), source=source, ttft_ms=None, latency_ms=None)
    await source.wait_for(2)
    await meter.stop(0.1)
    assert sorted(source.acknowledged) == [("req_1", 0), ("req_3", 0)]


async def test_usage_of_an_unknown_kind_stays_with_its_engine(meter: Meter):
    source = Source()
    meter.record(msgspec.structs.replace(record("req_1"), meter=b"?"), source=source, ttft_ms=None, latency_ms=None)
    meter.record(record("req_2"), source=source, ttft_ms=None, latency_ms=None)
    await source.wait_for(1)
    assert source.acknowledged == [("req_2", 0)]


async def test_stop_writes_what_waits(database: Database):
    meter, source = Meter(database, Metrics(CollectorRegistry())), Source()
    for number in range(1200):
        meter.record(record(f"req_{number}"), source=source, ttft_ms=None, latency_ms=None)
    meter.start()
    await meter.stop(10)
    assert len(source.acknowledged) == 1200
