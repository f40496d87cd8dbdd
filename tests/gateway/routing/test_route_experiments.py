"""Experiments as targets of routes: an experiment takes part in a request that it answers or ends, and in no other."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from gateway.db.limits.limits import set_limit
from gateway.db.routing import routes
from gateway.domain.limits.limit import Limit
from tests.gateway.live import BASE
from tests.gateway.routing.lab import HEADER, Lab
from tests.patience import PATIENCE_S

ADAPTER = f"{BASE}:bot"


async def refuse_adapter(lab: Lab) -> None:
    """Set a limit of the project that refuses the model of all arms."""
    async with lab.connected() as conn:
        organization = await conn.fetchval("SELECT organization_id FROM projects WHERE id = $1", lab.tenant.project_id)
        await set_limit(conn, Limit("", organization, lab.tenant.project_id, None, ADAPTER, "requests", "day", 0, True))


async def make_route(lab: Lab, name: str, *, on: str) -> None:
    nodes = [{"target": "support-bot"}, {"target": BASE}]
    document = {"root": {"fallback": {"nodes": nodes, "on": [on]}}}
    async with lab.connected() as conn, conn.transaction():
        assert await routes.create_route(conn, lab.tenant.project_id, name, json.dumps(document))


async def until_known(lab: Lab, model: str) -> httpx.Response:
    """Send requests until the gateway knows the route; return the reply."""
    async with asyncio.timeout(PATIENCE_S):
        while (reply := await lab.ask("ann", model=model)).status_code == 404:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.05)
    return reply


async def noted(lab: Lab) -> list[Any]:
    """Return the requests recorded as refused, after waiting for all earlier notes to be written."""
    before = len(await lab.rows("experiment_reasons", 0))
    await lab.ask(None, model="support-bot")  # names no unit, which is a note of its own
    await lab.rows("experiment_reasons", before + 1)
    return [row for row in await lab.rows("experiment_requests", 0) if row["num_refused"]]


async def test_a_refusal_that_another_target_follows_is_none_of_the_experiments(lab: Lab) -> None:
    await refuse_adapter(lab)
    await lab.start()
    await make_route(lab, "followed", on="rate_limited")
    reply = await until_known(lab, "followed")
    assert (reply.status_code, reply.headers["x-lorikeet-target"]) == (200, BASE), reply.text
    assert HEADER not in reply.headers
    assert await noted(lab) == []
    assert await lab.rows("experiment_units", 0) == []


async def test_a_refusal_that_ends_the_request_is_the_experiments(lab: Lab) -> None:
    await refuse_adapter(lab)
    await lab.start()
    await make_route(lab, "ended", on="failed")
    reply = await until_known(lab, "ended")
    assert (reply.status_code, HEADER in reply.headers) == (429, True), reply.text
    assert [row["num_refused"] for row in await noted(lab)] == [1]


async def test_an_experiment_that_answers_a_route_has_its_part(lab: Lab) -> None:
    await lab.start()
    await make_route(lab, "answered", on="failed")
    reply = await until_known(lab, "answered")
    assert (reply.status_code, reply.headers["x-lorikeet-target"]) == (200, "support-bot"), reply.text
    assert reply.headers[HEADER].startswith('"support-tone";v=1;arm=')
    assert await lab.rows("experiment_units")
