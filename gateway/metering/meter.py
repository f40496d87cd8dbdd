"""From the usage that backends report to rows of the ledger; a backend may forget a usage once its row is there.

Knows neither prices nor how a token is made.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Collection
from itertools import islice

import msgspec
import structlog

from engine.protocol import Usage, UsageRecord
from gateway.backends.base import Acknowledged
from gateway.db.leases import write_leases
from gateway.db.pool import UNAVAILABLE, Database
from gateway.db.usage import UsageEvent, write_usage_events
from gateway.limits.holdings import Row
from gateway.limits.limiter import Limiter
from gateway.metering.tag import decode_tag
from gateway.observe import Metrics

log = structlog.get_logger(__name__)

MAX_WAITING = 100_000
MAX_BATCH = 500
LINGER_S = 0.02
"""Between the starts of two transactions, so that events under load are written together: a transaction for each of
them would cost more than its request."""

INSERT_TIMEOUT_S = 10.0
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0

EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)


class _Waiting(msgspec.Struct, frozen=True):
    event: UsageEvent
    usage: Usage
    source: Acknowledged | None

    @property
    def attempt(self) -> tuple[str, int]:
        """The key of its row."""
        return self.event.request_id, self.event.attempt

    @property
    def key(self) -> tuple[str, int, int]:
        """What one source tells again is the same; another one may know better."""
        return *self.attempt, id(self.source)


class Meter:
    """The gateway's `UsageSink`. Works between `start` and `stop`.

    While the database is away, events wait here and their backends keep them too. What a request had reserved of its
    tenant's limits is settled by the transaction that writes its event.
    """

    def __init__(
        self, database: Database, metrics: Metrics, limiter: Limiter, *, max_waiting: int = MAX_WAITING
    ) -> None:
        self._database = database
        self._limiter = limiter
        self._metrics = metrics
        self._max_waiting = max_waiting
        self._waiting: dict[tuple[str, int, int], _Waiting] = {}  # in the order in which they are written
        self._wake = asyncio.Event()
        self._stopping = False
        self._writer: asyncio.Task[None] | None = None

    @property
    def has_room(self) -> bool:
        """Whether new requests may start: what they use must find a place."""
        return len(self._waiting) < self._max_waiting

    def dispatched(self, request_id: str) -> None:
        self._limiter.dispatched(request_id)

    def record(
        self, usage: UsageRecord, *, source: Acknowledged | None, ttft_ms: float | None, latency_ms: float | None
    ) -> None:
        try:
            event = _event(usage, ttft_ms, latency_ms)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            # Not acknowledged, so the engine keeps it and whoever can read it still may.
            log.error("usage_without_meter_tag", request_id=usage.request_id, error=str(error))
            return
        if source is not None:
            self._limiter.ended(usage.request_id, usage.usage)
        else:
            self._limiter.seen(usage.request_id, usage.usage)
        waiting = _Waiting(event, usage.usage, source)
        self._waiting.setdefault(waiting.key, waiting)
        self._metrics.usage_waiting.set(len(self._waiting))
        self._wake.set()

    def given_up(self, request_ids: Collection[str]) -> None:
        self._limiter.given_up(request_ids)

    def start(self) -> None:
        self._writer = asyncio.create_task(self._write())

    async def stop(self, timeout_s: float) -> None:
        """Write what waits, for at most timeout_s; what is not written by then was not acknowledged either."""
        if self._writer is None:
            return
        self._stopping = True
        self._wake.set()
        _, late = await asyncio.wait([self._writer], timeout=timeout_s)
        for writer in late:
            writer.cancel()
            await asyncio.wait([writer])
            log.error("usage_not_written", num_events=len(self._waiting))

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        backoff_s, limit, began_s = FIRST_BACKOFF_S, MAX_BATCH, float("-inf")
        while self._waiting or not self._stopping:
            if not self._waiting:
                await self._wake.wait()
                self._wake.clear()
                continue
            if not self._stopping:
                await asyncio.sleep(began_s + LINGER_S - loop.time())
            began_s = loop.time()
            batch = self._next_batch(limit)
            try:
                new = await self._insert(batch)
            except UNAVAILABLE as error:
                log.warning("ledger_unavailable", error=repr(error), num_waiting=len(self._waiting))
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
                continue
            except Exception as error:
                # An event that the ledger refuses must not hold up the others: go on one at a time, and it goes last.
                if limit == 1:
                    log.error("usage_refused", request_id=batch[0].event.request_id, error=repr(error))
                    self._waiting[batch[0].key] = self._waiting.pop(batch[0].key)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(2 * backoff_s, MAX_BACKOFF_S)
                limit = 1
                continue
            backoff_s, limit = FIRST_BACKOFF_S, min(2 * limit, MAX_BATCH)
            self._written(batch, new)
            await _acknowledge(batch)

    async def _insert(self, batch: list[_Waiting]) -> set[tuple[str, int]]:
        events = [waiting.event for waiting in batch]
        rows = [Row(waiting.event.request_id, is_final=waiting.source is not None) for waiting in batch]
        async with (
            self._limiter.settling(rows) as leases,
            asyncio.timeout(INSERT_TIMEOUT_S),
            self._database.acquire() as conn,
        ):
            if not leases.amounts:
                return await write_usage_events(conn, events)
            async with conn.transaction():
                new = await write_usage_events(conn, events)
                await write_leases(conn, leases.gateway_id, leases.amounts)
                return new

    def _next_batch(self, limit: int) -> list[_Waiting]:
        """The first ones, each attempt once."""
        batch: dict[tuple[str, int], _Waiting] = {}
        for waiting in islice(self._waiting.values(), limit):
            batch.setdefault(waiting.attempt, waiting)
        return list(batch.values())

    def _written(self, batch: list[_Waiting], new: set[tuple[str, int]]) -> None:
        for waiting in batch:
            del self._waiting[waiting.key]
            if waiting.attempt in new:
                self._metrics.count_usage(waiting.event, waiting.usage)
        self._metrics.usage_written.inc(len(new))
        self._metrics.usage_waiting.set(len(self._waiting))


async def _acknowledge(batch: list[_Waiting]) -> None:
    by_source: dict[int, tuple[Acknowledged, list[tuple[str, int]]]] = {}
    for waiting in batch:
        if waiting.source is not None:
            by_source.setdefault(id(waiting.source), (waiting.source, []))[1].append(waiting.attempt)
    for source, attempts in by_source.values():
        await source.acknowledge(attempts)


def _event(record: UsageRecord, ttft_ms: float | None, latency_ms: float | None) -> UsageEvent:
    """Raises msgspec.DecodeError or UnicodeDecodeError when the record carries no tag of ours."""
    tag = decode_tag(record.meter)
    usage = record.usage
    return UsageEvent(
        request_id=record.request_id,
        attempt=record.attempt,
        organization_id=tag.organization_id,
        project_id=tag.project_id,
        api_key_id=tag.api_key_id,
        endpoint=tag.endpoint,
        model=tag.model,
        adapter_id=tag.adapter_id,
        adapter_version=tag.adapter_version,
        adapter_digest=tag.adapter_digest,
        stream=tag.stream,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        discarded_tokens=usage.discarded_tokens,
        finish_reason=record.finish_reason,
        queue_ms=usage.queue_ms,
        prefill_ms=usage.prefill_ms,
        decode_ms=usage.decode_ms,
        ttft_ms=ttft_ms,
        latency_ms=latency_ms,
        adapter_load_bytes=usage.adapter_load_bytes,
        created_at=EPOCH + datetime.timedelta(microseconds=tag.created_at_ns // 1000),
        finished_at=datetime.datetime.now(datetime.UTC),
    )
