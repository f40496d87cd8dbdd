"""The admin API takes no database connection away from requests, and each caller's pace is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import httpx

from gateway.admin.access import BYTES_PER_REQUEST
from gateway.assembly.services import CONNECTIONS
from gateway.db.pool import Database
from gateway.pipeline.placing import MISSES_BURST
from gateway.support.pace import Pace
from tests.gateway.admin_server import MAX_BODY_BYTES, serve_admin
from tests.gateway.conftest import House
from tests.installation.tenants import make_key
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

WAITING = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'audit_log'::regclass"


async def test_reports_that_hang_leave_the_look_up_of_keys_alone(house: House) -> None:
    fresh = await make_key(house.dsn, "newcomer")
    conn = await asyncpg.connect(house.dsn)
    try:
        await conn.execute("BEGIN; LOCK TABLE audit_log IN ACCESS EXCLUSIVE MODE")
        async with httpx.AsyncClient(base_url=house.url, timeout=PATIENCE_S) as client:
            headers = {"authorization": f"Bearer {house.operator_key}"}
            url = "/v1/organization/audit_logs"
            reports = [asyncio.create_task(client.get(url, headers=headers)) for _ in range(2 * CONNECTIONS)]

            async def all_wait() -> bool:
                return bool(await conn.fetchval(WAITING) > 0)

            await until(all_wait)
            reply = await client.get("/v1/models", headers={"authorization": f"Bearer {fresh.secret}"})
            assert reply.status_code == 200, reply.text
            await conn.execute("ROLLBACK")
            assert {report.status_code for report in await asyncio.gather(*reports)} <= {200, 503}
    finally:
        await conn.close()


async def test_each_caller_of_the_admin_api_has_a_pace(database: Database, tmp_path: Path) -> None:
    pace = Pace(0.001, 5, what="the admin API", whose="This key or user")
    async with serve_admin(database, tmp_path, pace=pace) as server:
        other = await server.admin_key("admin_read")
        async with server.client(server.operator_key) as operator, server.client(other) as reader:
            replies = [await operator.get("/projects/proj_none") for _ in range(6)]
            assert [reply.status_code for reply in replies] == [404] * 5 + [429]
            assert int(replies[-1].headers["retry-after"]) > 60
            assert replies[-1].json()["error"]["message"].startswith("This key or user has sent too many requests")
            assert (await reader.get("/projects/proj_none")).status_code == 404


async def test_one_body_in_chunks_for_the_admin_api_is_not_too_fast(database: Database, tmp_path: Path) -> None:
    """A chunked body passes although it exceeds the pace, as a body with a length does; the next request is refused
    instead."""
    size = MAX_BODY_BYTES - 100
    pace = Pace(0.001, 1 + size / BYTES_PER_REQUEST / 2, what="the admin API", whose="This key or user")

    async def body() -> AsyncIterator[bytes]:
        yield b" " * size
        yield b'{"name": "chunks"}'

    async with serve_admin(database, tmp_path, pace=pace) as server, server.client(server.operator_key) as operator:
        reply = await operator.post("/projects", content=body(), headers={"content-type": "application/json"})
        assert reply.status_code == 200, reply.text
        assert (await operator.get("/projects/proj_none")).status_code == 429


async def test_a_project_that_asks_for_models_it_has_not_is_slowed_down(house: House) -> None:
    key = await make_key(house.dsn, "guesser")
    async with httpx.AsyncClient(base_url=house.url, timeout=PATIENCE_S) as client:
        headers = {"authorization": f"Bearer {key.secret}"}
        body = {"prompt": "x", "max_tokens": 1}
        statuses = []
        for number in range(6 * int(MISSES_BURST)):
            reply = await client.post("/v1/completions", headers=headers, json=body | {"model": f"none-{number}"})
            statuses.append(reply.status_code)
            if reply.status_code == 429:
                break
    assert set(statuses) == {404, 429} and len(statuses) >= MISSES_BURST
