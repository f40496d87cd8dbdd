"""Running engines are shown with the names of the caller's own adapters and tenants, and with their speed."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from adapters.ref import content_key
from engine.protocol import STEP_BUCKETS_S, EngineLimits, EngineStats, TenantStats
from gateway.backends.snapshot import EngineRates, EngineSnapshot, HeartbeatTrend, step_ms_p50
from gateway.db.ledger.journals import report_journal
from gateway.db.pool import Database
from tests.gateway.admin_server import serve_admin
from tests.gateway.billing.books import open_books

DIGEST = "a" * 64
LIMITS = EngineLimits(max_model_len=64, max_num_seqs=8, max_waiting=16, block_size=16, num_blocks=100)


async def add_adapter(database: Database, project_id: str, name: str) -> None:
    from tests.gateway.bases import put_adapter

    async with database.acquire() as conn:
        await put_adapter(conn, project_id, name, digest=DIGEST, rank=2, size_bytes=10)


async def first_lines(reply: httpx.Response, count: int, start: str) -> AsyncIterator[str]:
    async for line in reply.aiter_lines():
        if line.startswith(start):
            yield line
            count -= 1
        if not count:
            return


async def test_engines_name_the_callers_adapters_and_tenants_and_nobody_elses(
    database: Database, tmp_path: Path
) -> None:
    acme, other = await open_books(database), await open_books(database, "theirs", "other")
    for books in (acme, other):
        await add_adapter(database, books.project_id, "pirate")
    stats = EngineStats(
        num_running=3,
        kv_blocks_used=7,
        kv_blocks_total=100,
        tenants={books.project_id: TenantStats(2, 1, 0.5) for books in (acme, other)},
        resident_adapters=[content_key(other.project_id, DIGEST), content_key(acme.project_id, DIGEST)],
    )
    ready = EngineSnapshot(
        id="engine", model="tiny", state="ready", detail="ready", since=1, stats=stats, limits=LIMITS, device="cpu"
    )
    away = EngineSnapshot(id="", model="tiny", state="unreachable", detail="no engine answers", since=2)
    async with (
        serve_admin(database, tmp_path, snapshots=[ready, away]) as server,
        server.client(server.operator_key) as client,
    ):
        shown, gone = (await client.get("/engines")).json()["data"]
        assert (shown["state"], shown["num_running"], shown["max_running"], shown["device"]) == ("ready", 3, 8, "cpu")
        assert [(each["name"], each["project_name"]) for each in shown["resident_adapters"]] == [("pirate", "acme")]
        assert [(each["name"], each["num_running"]) for each in shown["tenants"]] == [("acme", 2)]
        assert (gone["state"], gone["kv_blocks_total"], gone["resident_adapters"]) == ("unreachable", 0, [])
        await server.user("books@example.com", "billing")
        async with server.person("books@example.com") as accountant:
            shown, _ = (await accountant.get("/engines")).json()["data"]
            assert (shown["num_running"], shown["resident_adapters"]) == (3, [])
            async with accountant.stream("GET", "/live") as reply:
                (event,) = [line async for line in first_lines(reply, 1, "data: {")]
        assert '"num_running":3' in event and "pirate" not in event


async def test_gateways_are_those_that_were_heard_of_lately(database: Database, tmp_path: Path) -> None:
    async with database.acquire() as conn:
        await report_journal(conn, "old", 2)
        await conn.execute("UPDATE journals SET heard_at = heard_at - interval '1 minute'")
        await report_journal(conn, "before", 0)  # a gateway of a version that does not report its version
        await report_journal(conn, "here", 0, version="1.2.3")
        await report_journal(conn, "here", 5)  # as the ledger's writer does
    async with serve_admin(database, tmp_path) as server, server.client(server.operator_key) as client:
        gateways = {each["id"]: each for each in (await client.get("/engines")).json()["gateways"]}
    assert set(gateways) == {"before", "here"}
    assert (gateways["here"]["version"], gateways["here"]["requests_running"]) == ("1.2.3", 5)
    assert abs(gateways["here"]["started_at"] - time.time()) < 60
    assert gateways["before"]["version"] is gateways["before"]["started_at"] is None


def counts(**by_bucket: int) -> list[int]:
    steps = [0] * (len(STEP_BUCKETS_S) + 1)
    for bucket, count in by_bucket.items():
        steps[int(bucket.removeprefix("b"))] = count
    return steps


def test_rates_are_those_of_the_last_seconds() -> None:
    trend = HeartbeatTrend()
    assert trend.rates == EngineRates()
    for second in range(30):  # 10 steps and 40 tokens a second, twice as many from second 15 on
        fast = max(0, second - 15)
        trend.add(
            100.0 + second,
            EngineStats(generation_tokens_total=40 * (second + fast), step_counts=counts(b2=10 * (second + fast))),
        )
    assert (trend.rates.steps_per_s, trend.rates.tokens_per_s) == (20.0, 80.0)
    trend.forget()
    assert trend.rates == EngineRates()


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (counts(), None),
        (counts(b0=2), 2.5),
        (counts(b1=1, b4=1), 10.0),
        (counts(b4=4), 40.0),
        (counts(b13=3), 10_000.0),
    ],
)
def test_the_median_step_lies_within_its_bucket(steps: list[int], expected: float | None) -> None:
    assert step_ms_p50(steps) == (expected if expected is None else pytest.approx(expected))
