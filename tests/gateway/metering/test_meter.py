"""Usage reaches the ledger once, and is acknowledged once it is on disk, whatever the database does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import msgspec
import pytest
from prometheus_client import CollectorRegistry

from engine.protocol import FinishReason, GenerateRequest, SamplingParams, UsageRecord
from gateway.backends.usage import Count
from gateway.db.ledger.journals import engine_usage, lost_journals
from gateway.db.ledger.usage import UsageEvent, list_usage_events
from gateway.db.pool import Database
from gateway.metering.folder import segments_in
from gateway.metering.meter import Meter
from gateway.metering.service import Metering
from gateway.metering.tag import encode_tag
from gateway.observability.metrics import Metrics
from tests.conftest import with_database
from tests.gateway.metering.records import TAG, record
from tests.gateway.unlimited import unlimited
from tests.patience import PATIENCE_S


class Source:
    """A fake backend, as far as the meter knows it."""

    def __init__(self) -> None:
        self.acknowledged: list[tuple[str, int]] = []
        self.changed = asyncio.Event()

    async def acknowledge(self, keys: list[tuple[str, int]]) -> None:
        self.acknowledged += keys
        self.changed.set()

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.acknowledged) < count:
                await self.changed.wait()
                self.changed.clear()


class Gateway(msgspec.Struct):
    """The metering of one gateway, over a folder that is left as it is when `killed`."""

    metering: Metering
    registry: CollectorRegistry

    @property
    def meter(self) -> Meter:
        return self.metering.meter

    def record(self, usage: UsageRecord, source: Source | None = None, ttft_ms: float | None = None) -> None:
        """Record usage.

        source: the backend that counted it; None for usage that the gateway counted itself. ttft_ms: the milliseconds
        to the first token; None: not known.
        """
        engine_id = "engine" if source is not None else ""
        self.meter.record(usage, engine_id=engine_id, source=source, ttft_ms=ttft_ms, latency_ms=None)

    def dispatch(self, request_id: str, journal_id: str | None = None) -> GenerateRequest:
        tag = msgspec.structs.replace(TAG, journal_id=journal_id or self.meter.journal_id)
        request = GenerateRequest(
            request_id, [1, 2, 3], SamplingParams(max_tokens=10), tenant="t", meter=encode_tag(tag)
        )
        self.meter.dispatched(request, "engine")
        return request

    def counted(self) -> tuple[float | None, ...]:
        """Return the counted prompt tokens, completion tokens and rows from the Prometheus metrics."""
        label = {"model_name": "tiny"}
        return (
            self.registry.get_sample_value("vllm:prompt_tokens_total", label),
            self.registry.get_sample_value("vllm:generation_tokens_total", label),
            self.registry.get_sample_value("lorikeet_usage_events_written_total"),
        )


@asynccontextmanager
async def gateway_on(root: Path, database: Database, max_journal_bytes: int = 1 << 20) -> AsyncIterator[Gateway]:
    registry = CollectorRegistry()
    metering = Metering(
        root,
        database,
        unlimited(database),
        Metrics(registry),
        database_id="database",
        max_journal_bytes=max_journal_bytes,
    )
    metering.start()
    try:
        yield Gateway(metering, registry)
    finally:
        await metering.stop()


@asynccontextmanager
async def database_away(postgres: str, dsn: str) -> AsyncIterator[None]:
    name = urlsplit(dsn).path.lstrip("/")
    admin = await asyncpg.connect(with_database(postgres, "postgres"))
    try:
        await admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name)
        yield
    finally:
        await admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        await admin.close()


@pytest.fixture
async def gateway(database: Database, tmp_path: Path) -> AsyncIterator[Gateway]:
    async with gateway_on(tmp_path, database) as gateway:
        yield gateway


async def rows_by_request(database: Database, count: int = 0) -> dict[str, UsageEvent]:
    """Wait until the ledger has `count` rows, and return them by request id."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with database.acquire() as conn:
                events = await list_usage_events(conn, "proj", 10_000)
            if len(events) >= count:
                return {event.request_id: event for event in events}
            await asyncio.sleep(0.01)


async def test_a_usage_is_written_once_and_acknowledged_as_often_as_told(gateway: Gateway, database: Database) -> None:
    source = Source()
    for count, request_id in enumerate(("req_1", "req_2", "req_1"), start=1):
        gateway.record(record(request_id), source, ttft_ms=1.5)
        await source.wait_for(count)
        await rows_by_request(database, min(count, 2))
    events = await rows_by_request(database)
    assert sorted(events) == ["req_1", "req_2"]
    event = events["req_1"]
    assert (event.prompt_tokens, event.completion_tokens, event.ttft_ms) == (3, 4, 1.5)
    assert (event.model, event.adapter_version, event.stream) == ("tiny:a", 2, True)
    assert event.created_at.timestamp() == 1_700_000_000


async def test_every_row_of_an_aborted_line_is_the_operators_and_what_begins_again_is_billed(
    gateway: Gateway, database: Database
) -> None:
    gateway.meter.disown("req_1", range(8))
    for request_id in ("req_1", "req_1.1", "req_1.12", "req_2", "req_11.1"):
        gateway.record(record(request_id))
    gateway.record(msgspec.structs.replace(record("req_1.2"), attempt=8))
    events = await rows_by_request(database, 6)
    unbilled = {request_id for request_id, event in events.items() if event.finish_reason == "superseded"}
    assert unbilled == {"req_1", "req_1.1", "req_1.12"}
    assert {events[each].prompt_tokens + events[each].completion_tokens for each in unbilled} == {0}
    assert events["req_1.2"].completion_tokens == 4


async def test_engines_may_forget_before_the_database_has_it_and_nothing_is_lost(
    database: Database, dsn: str, postgres: str, tmp_path: Path
) -> None:
    source = Source()
    async with gateway_on(tmp_path, database, max_journal_bytes=1200) as gateway:
        async with database_away(postgres, dsn):
            for number in range(3):
                assert gateway.meter.has_room == (number < 2)
                gateway.record(record(f"req_{number}"), source)
            await source.wait_for(3)
            assert not gateway.meter.has_room
        assert len(await rows_by_request(database, 3)) == 3
        async with asyncio.timeout(PATIENCE_S):
            while not gateway.meter.has_room:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)


async def test_a_gateway_that_stops_without_its_database_leaves_its_usage_to_the_next(
    database: Database, dsn: str, postgres: str, tmp_path: Path
) -> None:
    async with database_away(postgres, dsn), gateway_on(tmp_path, database) as gateway:
        gateway.record(record("req_1"), Source())
    assert segments_in(tmp_path / "0")
    async with gateway_on(tmp_path, database):
        assert list(await rows_by_request(database, 1)) == ["req_1"]
    assert not segments_in(tmp_path / "0")


async def test_usage_that_the_ledger_refuses_does_not_hold_up_other_usage(database: Database, tmp_path: Path) -> None:
    async with gateway_on(tmp_path, database) as gateway:
        gateway.record(record("req_1"), Source())
        gateway.record(record("req_2", completion_tokens=2**63), Source())
        gateway.record(record("req_3"), Source())
        assert sorted(await rows_by_request(database, 2)) == ["req_1", "req_3"]
    assert segments_in(tmp_path / "0"), "it stays for whoever can write it"


@pytest.mark.parametrize("is_copied", [True, False])
async def test_an_attempt_is_superseded_whether_or_not_its_count_is_copied(
    gateway: Gateway, database: Database, is_copied: bool
) -> None:
    """A line of a batch begins again soon after its engine died, when the ledger may not have the dead attempt yet."""
    gateway.record(record("req_1", "error"))
    if is_copied:
        await rows_by_request(database, 1)
        await until_copied(gateway)
    gateway.meter.superseded(record("req_1", "error", prompt_tokens=0, completion_tokens=0), engine_id="", source=None)
    await until_copied(gateway)
    (row,) = (await rows_by_request(database, 1)).values()
    assert (row.finish_reason, row.prompt_tokens, row.completion_tokens) == ("superseded", 0, 0)


@pytest.mark.parametrize("order", ["the gateway's first", "the engine's first", "both at once"])
@pytest.mark.parametrize("engine_says", ["abort", "error"])
async def test_the_engines_own_count_replaces_what_a_gateway_saw_before_it_lost_the_engine(
    gateway: Gateway, database: Database, order: str, engine_says: FinishReason
) -> None:
    seen = (record("req_1", "error", completion_tokens=2), None, 1.5)
    exact = (record("req_1", engine_says, completion_tokens=5, cached_tokens=1), Source(), None)
    for usage, source, ttft_ms in [exact, seen] if order == "the engine's first" else [seen, exact]:
        gateway.record(usage, source, ttft_ms)
        if order != "both at once":
            await rows_by_request(database, 1)
    await until_copied(gateway)
    (row,) = (await rows_by_request(database, 1)).values()
    assert (row.finish_reason, row.prompt_tokens, row.completion_tokens, row.cached_tokens) == (engine_says, 3, 5, 1)
    assert row.ttft_ms == (None if order == "the engine's first" else 1.5)
    # Prometheus only adds up: what it counted first stays, and nothing is counted twice.
    assert gateway.counted() == (3, 5 if order == "the engine's first" else 2, 1)
    async with database.acquire() as conn:
        assert await engine_usage(conn, ["engine"]) == {"engine": (3, 5)}


async def until_copied(gateway: Gateway) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while gateway.registry.get_sample_value("lorikeet_usage_events_waiting"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_no_row_says_less_than_a_client_has_seen(gateway: Gateway, database: Database) -> None:
    gateway.record(record("req_1", "error", completion_tokens=6))
    await rows_by_request(database, 1)
    gateway.record(record("req_1", "abort", completion_tokens=5), Source())
    await until_copied(gateway)
    (row,) = (await rows_by_request(database)).values()
    assert (row.finish_reason, row.completion_tokens) == ("abort", 6)


@pytest.mark.parametrize("order", ["the gateway's first", "the engine's first"])
async def test_what_an_engine_refused_is_no_error_whoever_tells_first(
    gateway: Gateway, database: Database, order: str
) -> None:
    nothing = record("req_1", "error", prompt_tokens=0, completion_tokens=0)

    def told_by_engine() -> None:  # to another gateway, which does not know why
        gateway.record(nothing, Source())

    def told_by_gateway() -> None:
        gateway.meter.record(nothing, engine_id="", source=None, ttft_ms=None, latency_ms=None, refused=True)

    both = [told_by_gateway, told_by_engine]
    for tell in both if order == "the gateway's first" else reversed(both):
        tell()
        await rows_by_request(database, 1)
        await until_copied(gateway)
    (row,) = (await rows_by_request(database, 1)).values()
    assert (row.finish_reason, row.prompt_tokens, row.completion_tokens) == ("refused", 0, 0)


async def test_an_attempt_that_never_ran_is_a_row_without_tokens(gateway: Gateway, database: Database) -> None:
    gateway.record(record("req_1", "error", prompt_tokens=0, completion_tokens=0), Source())
    (row,) = (await rows_by_request(database, 1)).values()
    assert (row.finish_reason, row.prompt_tokens, row.completion_tokens) == ("error", 0, 0)


@pytest.mark.parametrize(
    "tag",
    [b"?", encode_tag(msgspec.structs.replace(TAG, created_at_ns=-1)), encode_tag(TAG).replace(b"proj", b"\xff" * 4)],
)
async def test_usage_of_an_unknown_kind_stays_with_its_engine(gateway: Gateway, tag: bytes) -> None:
    source = Source()
    gateway.record(msgspec.structs.replace(record("req_1"), meter=tag), source)
    gateway.record(record("req_2"), source)
    await source.wait_for(1)
    assert source.acknowledged == [("req_2", 0)]


async def test_a_stop_writes_waiting_usage(database: Database, tmp_path: Path) -> None:
    source = Source()
    async with gateway_on(tmp_path, database) as gateway:
        for number in range(1200):
            gateway.record(record(f"req_{number}"), source)
    assert len(source.acknowledged) == 1200
    assert len(await rows_by_request(database)) == 1200
    assert not segments_in(tmp_path / "0")


async def test_what_is_lost_with_a_journal_is_known_less_what_an_engine_can_tell(
    database: Database, dsn: str, tmp_path: Path
) -> None:
    """A folder is lost while two requests run; their engine hands one of them to another gateway."""
    async with (
        await Database.connect(dsn, min_size=1, max_size=1) as of_first,
        gateway_on(tmp_path / "first", of_first) as first,
    ):
        for name in ("told", "lost"):
            told = first.dispatch(name)
            first.meter.progressed([Count(name, 0, 3, 2)])
        first.record(record("done"), Source())
        await rows_by_request(database, 1)
        async with database.acquire() as conn:
            async with asyncio.timeout(PATIENCE_S):
                while await conn.fetchval("SELECT open_requests FROM journals") != 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            # Without the first's only connection nobody hears of it meanwhile.
            async with of_first.acquire(), gateway_on(tmp_path / "second", database) as second:
                await conn.execute(
                    "UPDATE journals SET heard_at = heard_at - interval '1 hour' WHERE open_requests > 0"
                )
                assert [journal.open_requests for journal in await lost_journals(conn)] == [2]
                usage = msgspec.structs.replace(record("told"), meter=told.meter)
                second.record(usage, Source())
                await rows_by_request(database, 2)
                assert [(lost.id, lost.open_requests) for lost in await lost_journals(conn)] == [
                    (first.meter.journal_id, 1)
                ]
            async with asyncio.timeout(PATIENCE_S):
                while await lost_journals(conn):  # noqa: ASYNC110 - until the first is heard of again
                    await asyncio.sleep(0.05)


async def test_a_journal_that_ends_with_nothing_open_leaves_no_trace(database: Database, tmp_path: Path) -> None:
    async with gateway_on(tmp_path, database) as gateway:
        gateway.dispatch("req_1")
        gateway.record(record("req_1"), Source())
        await rows_by_request(database, 1)
    async with database.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM journals") == 0
