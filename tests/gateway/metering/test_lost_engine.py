"""The usage that a lost engine may have made stays reserved of its tenant's limits until a report comes or the wait
is over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from engine.protocol import GenerateRequest, SamplingParams, Usage, UsageRecord
from gateway.db.limits.leases import PostgresLeases
from gateway.db.limits.limits import LimitLoader, list_limits, set_limit
from gateway.db.organization.organizations import ensure_organization
from gateway.db.organization.projects import create_project
from gateway.db.pool import Database
from gateway.domain.errors import LimitReached
from gateway.domain.limits.clock import DatabaseClock
from gateway.domain.limits.limit import Limit
from gateway.domain.limits.work import PromptWork
from gateway.domain.tenancy.principal import Principal
from gateway.limits.limiter import Admission, Limiter
from gateway.limits.rules import Rules
from gateway.metering.service import Metering
from gateway.metering.tag import encode_tag
from gateway.observability.metrics import Metrics
from tests.gateway.metering.records import TAG
from tests.gateway.metering.test_meter import Source
from tests.gateway.unlimited import Free
from tests.patience import PATIENCE_S

MOST = 13  # tokens a day: a prompt of 3 and a completion of 10


class House(msgspec.Struct):
    """The limiter and the metering of one gateway, and a caller with a limit."""

    database: Database
    limiter: Limiter
    metering: Metering
    caller: Principal

    async def admit(self, request_id: str) -> Admission:
        """Admit a prompt of 3 tokens and up to 10 completion tokens."""
        return await self.limiter.admit(
            self.caller, "tiny", (PromptWork(request_id, 3, 1, 10),), service_tier="default", min_tokens=1, capacity=100
        )

    def record(self, admission: Admission, num_tokens: int, source: Source | None) -> None:
        """Record usage of req_1.

        source: the backend of the engine's own count; None for the gateway's count of the tokens it has seen.
        """
        usage = Usage(prompt_tokens=3, completion_tokens=num_tokens)
        told = UsageRecord("req_1", 0, "error" if source is None else "abort", usage, self.tag(admission))
        engine_id = "engine" if source is not None else ""
        self.metering.meter.record(told, engine_id=engine_id, source=source, ttft_ms=None, latency_ms=None)

    def tag(self, admission: Admission) -> bytes:
        ids = {"organization_id": self.caller.organization_id, "project_id": self.caller.project_id}
        return encode_tag(msgspec.structs.replace(TAG, **ids, created_at_ns=admission.instant_ns))

    async def used(self, expected: int) -> None:
        """Wait until the limit has settled `expected`."""
        async with asyncio.timeout(PATIENCE_S), self.database.acquire() as conn:
            while True:
                (found,) = await list_limits(conn, self.caller.organization_id, self.caller.project_id)
                if found.used == expected:
                    return


@pytest.fixture
async def house(database: Database, tmp_path: Path) -> AsyncIterator[House]:
    async with database.acquire() as conn:
        organization = await ensure_organization(conn, "default")
        project = await create_project(conn, organization.id, "acme")
        assert project is not None
        await set_limit(conn, Limit("", organization.id, project.id, None, None, "tokens", "day", MOST, True))
    clock = DatabaseClock(time.monotonic)
    limiter = Limiter(PostgresLeases(database), Rules(LimitLoader(database)), clock, Free())
    metrics = Metrics(CollectorRegistry())
    metering = Metering(tmp_path, database, limiter, metrics, database_id="database", max_journal_bytes=1 << 20)
    await limiter.start()
    metering.start()
    yield House(database, limiter, metering, Principal(organization.id, project.id, "key", frozenset()))
    await metering.stop()
    await limiter.stop()


async def lose_engine(house: House) -> Admission:
    """Lose an engine that runs req_1, after 2 tokens of its completion."""
    admission = await house.admit("req_1")
    sampling = SamplingParams(max_tokens=admission.cap)
    request = GenerateRequest("req_1", [1, 2, 3], sampling, tenant="t", meter=house.tag(admission))
    house.metering.meter.dispatched(request, "engine")
    house.record(admission, 2, None)
    admission.close()
    await house.used(5)
    return admission


async def test_the_possible_usage_of_a_lost_engine_stays_reserved_until_the_wait_is_over(house: House) -> None:
    await lose_engine(house)
    with pytest.raises(LimitReached):
        await house.admit("req_2")
    house.metering.meter.given_up(["req_1"])
    assert (await house.admit("req_2")).cap == MOST - 5 - 3


async def test_a_lost_engines_own_count_is_billed_once_and_frees_the_rest(house: House) -> None:
    admission = await lose_engine(house)
    house.record(admission, 4, Source())
    assert (await house.admit("req_2")).cap == MOST - 7 - 3
    await house.used(7)


async def test_a_request_that_is_tried_again_keeps_its_reservation_and_pays_for_the_second_attempt(
    house: House,
) -> None:
    admission = await house.admit("req_1")
    sampling = SamplingParams(max_tokens=admission.cap)
    request = GenerateRequest("req_1", [1, 2, 3], sampling, tenant="t", meter=house.tag(admission))
    house.metering.meter.dispatched(request, "engine")
    seen = UsageRecord("req_1", 0, "error", Usage(3, 2), request.meter)
    house.metering.meter.superseded(seen, engine_id="", source=None)
    house.metering.meter.dispatched(msgspec.structs.replace(request, attempt=1), "other")
    admission.close()
    woken = Source()
    house.record(admission, 9, woken)
    await woken.wait_for(1)
    with pytest.raises(LimitReached):
        await house.admit("req_2")
    answered = UsageRecord("req_1", 1, "stop", Usage(3, 4), request.meter)
    house.metering.meter.record(answered, engine_id="other", source=Source(), ttft_ms=1.0, latency_ms=2.0)
    assert (await house.admit("req_2")).cap == MOST - 7 - 3
    await house.used(7)
    async with house.database.acquire() as conn:
        rows = await conn.fetch("SELECT attempt, finish_reason, discarded_tokens FROM usage_attempts ORDER BY attempt")
    assert [tuple(row) for row in rows] == [(0, "superseded", 2), (1, "stop", 0)]


@pytest.mark.parametrize("closes_first", [False, True])
async def test_a_request_that_found_no_other_engine_leaves_nothing_reserved(house: House, closes_first: bool) -> None:
    admission = await house.admit("req_1")
    sampling = SamplingParams(max_tokens=admission.cap)
    request = GenerateRequest("req_1", [1, 2, 3], sampling, tenant="t", meter=house.tag(admission))
    house.metering.meter.dispatched(request, "engine")
    if closes_first:
        admission.close()
    seen = UsageRecord("req_1", 0, "error", Usage(0, 0), request.meter)
    house.metering.meter.superseded(seen, engine_id="", source=None)
    admission.close()
    assert (await house.admit("req_2")).cap == MOST - 3
