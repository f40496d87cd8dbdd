"""Votes over three gateways that are killed meanwhile: an answered vote is on disk, and the same vote counts once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack

import asyncpg
import httpx
import pytest

from gateway.settings import Settings
from tests.gateway.evaluation.furniture import connected, put_experiment, put_metrics, put_request
from tests.gateway.limits.fleet import Fleet
from tests.gateway.live import BASE, FakeEngine
from tests.gateway.model_folder import make_model_folder
from tests.installation.gateway_process import GatewayProcess
from tests.installation.tenants import make_key
from tests.patience import PATIENCE_S

NUM_SENDERS = 6
NUM_SAME, NUM_SAME_FULL = 300, 1_000
NUM_KILLS, NUM_KILLS_FULL = 4, 50
NUM_KILLED, NUM_KILLED_FULL = 6, 100


@pytest.fixture(scope="module")
def fleet(module_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("votes")
    model_dir = make_model_folder(folder / "model")
    settings = Settings(data_dir=folder, model=str(model_dir), model_name=BASE)
    settings.run_dir.mkdir(parents=True)
    with ExitStack() as stack:
        stack.callback(FakeEngine(settings.engine.endpoint, model_dir).stop)
        gateways = [GatewayProcess(settings, module_dsn, number) for number in range(3)]
        for gateway in gateways:
            stack.callback(gateway.close)
            gateway.start()
        for gateway in gateways:
            gateway.wait_ready()
        yield Fleet(module_dsn, [gateway.url for gateway in gateways], gateways)


async def votes_of(conn: asyncpg.Connection, project_id: str) -> list[asyncpg.Record]:
    """Return all rows of a project's feedback."""
    return list(await conn.fetch("SELECT id, metric, value FROM feedback WHERE project_id = $1", project_id))


async def test_the_same_vote_hundreds_of_times_is_one(fleet: Fleet, full: bool) -> None:
    tenant, chance = await make_key(fleet.dsn, "same"), random.Random(1)
    async with connected(fleet.dsn) as conn:
        await put_metrics(conn, tenant.project_id)
        request_id = await put_request(conn, tenant.project_id, await put_experiment(conn, tenant.project_id))
        left, answers = [NUM_SAME_FULL if full else NUM_SAME], set()
        body = {"request_id": request_id, "metric": "thumbs_up", "value": True, "id": "vote-1"}

        async def send() -> None:
            async with httpx.AsyncClient(timeout=PATIENCE_S, headers=tenant.headers) as client:
                while left[0] > 0:
                    try:
                        reply = await client.post(f"{chance.choice(fleet.urls)}/v1/feedback", json=body)
                    except httpx.TransportError:  # the gateway was killed
                        continue
                    assert reply.status_code == 200, reply.text
                    answers.add(reply.content)
                    left[0] -= 1

        async def kill() -> None:
            for _ in range(NUM_KILLS_FULL if full else NUM_KILLS):
                gateway = chance.choice(fleet.gateways)
                gateway.kill()
                gateway.start()
                await asyncio.to_thread(gateway.wait_ready)

        await asyncio.gather(kill(), *(send() for _ in range(NUM_SENDERS)))
        rows = await votes_of(conn, tenant.project_id)
        assert [(row["metric"], row["value"]) for row in rows] == [("thumbs_up", 1)]
        assert len(answers) == 1
        events = await conn.fetchval("SELECT count(*) FROM experiment_events WHERE feedback_id = $1", rows[0]["id"])
        assert events <= 1, "a repeated vote changes nothing, so that nobody hears of it"


async def test_a_gateway_killed_after_its_answer_has_lost_nothing(fleet: Fleet, full: bool) -> None:
    tenant = await make_key(fleet.dsn, "killed")
    async with connected(fleet.dsn) as conn:
        await put_metrics(conn, tenant.project_id)
        experiment_id = await put_experiment(conn, tenant.project_id)
        for number in range(NUM_KILLED_FULL if full else NUM_KILLED):
            gateway = fleet.gateways[number % 3]
            await asyncio.to_thread(gateway.wait_ready)
            request_id = await put_request(conn, tenant.project_id, experiment_id)
            body = {"request_id": request_id, "metric": "stars", "value": 1 + number % 5}
            async with httpx.AsyncClient(timeout=PATIENCE_S, headers=tenant.headers) as client:
                reply = await client.post(f"{gateway.url}/v1/feedback", json=body)
            gateway.kill()
            assert reply.status_code == 200, reply.text
            row = await conn.fetchrow("SELECT value FROM feedback WHERE id = $1", reply.json()["id"])
            assert row is not None
            assert row["value"] == (1 + number % 5) * 1_000_000
            gateway.start()
