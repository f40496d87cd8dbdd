"""Refusals after a request got its arm are recorded; a missing arm is refused, and no other arm answers for it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from adapters.ref import content_key
from gateway.db.limits.limits import set_limit
from gateway.domain.experiments.assignment import assign
from gateway.domain.limits.limit import Limit
from gateway.pools.first_pool import make_pool
from tests.gateway.experiments.making import ArmOf, StartedExperiment
from tests.gateway.routing.conftest import digest_of_version
from tests.gateway.routing.lab import HEADER, Lab, arm_of
from tests.patience import PATIENCE_S


def unit_in(made: StartedExperiment, arm: int) -> str:
    """Return a unit that is assigned to this arm."""
    return next(f"user-{n}" for n in range(1_000) if assign(made.split, f"user-{n}", b"").arm == arm)


async def limit(lab: Lab, unit: Any, window: Any, most: int) -> None:
    async with lab.connected() as conn:
        organization = await conn.fetchval("SELECT organization_id FROM projects WHERE id = $1", lab.tenant.project_id)
        await set_limit(
            conn, Limit("", organization, lab.tenant.project_id, None, None, unit, window, most, True, (100,))
        )


@pytest.mark.parametrize(
    ("unit", "window", "most", "status"), [("requests", "day", 0, 429), ("output_tokens", "none", 1, 400)]
)
async def test_refusals_of_a_unit_are_noted_with_its_arm(
    lab: Lab, unit: Any, window: Any, most: int, status: int
) -> None:
    await limit(lab, unit, window, most)
    made = await lab.start()
    ann = unit_in(made, 1)
    replies = [await lab.ask(ann, gateway=0) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [status] * 3, replies[0].text
    assert {reply.headers[HEADER] for reply in replies} == {'"support-tone";v=1;arm="warm";reason=split'}
    refused = await lab.rows("experiment_requests")
    while sum(row["num_refused"] for row in refused) < 3:
        refused = await lab.rows("experiment_requests", len(refused) + 1)
    await lab.rows("experiment_sums")
    async with asyncio.timeout(PATIENCE_S):
        while not any(_says_refused(row) for row in await lab.rows("experiment_sums")):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.1)
    assert {row["request_id"] for row in refused} <= {reply.headers["x-request-id"] for reply in replies}
    assert {(row["epoch"], row["arm"]) for row in refused} == {(1, 1)}
    origins = {(row["endpoint"], row["stream"], row["service_tier"]) for row in refused}
    assert origins == {("/v1/chat/completions", False, "default")} and all(row["gateway"] for row in refused)
    (digest,) = await lab.digests(ann)
    assert {row["digest"] for row in (*refused, *await lab.rows("experiment_units"))} == {digest}
    assert await lab.rows("ledger", 0) == []


def _says_refused(row: Any) -> bool:
    """Tell whether a row of sums counts a unit of the second arm as refused."""
    return (row["metric"], row["arm"], row["n"], row["y"]) == ("refusal_rate", 1, 1, 1)


_RETIRE = """
    UPDATE adapter_versions SET state = 'retired'
    WHERE version = 2 AND adapter_id = (SELECT id FROM adapters WHERE project_id = $1)
"""


async def test_an_arm_that_is_gone_is_refused_and_no_other_arm_answers(lab: Lab) -> None:
    made = await lab.start()
    ann, bob = unit_in(made, 1), unit_in(made, 0)
    assert arm_of(await lab.ask(ann)) == "warm"
    async with lab.connected() as conn:
        await conn.execute(_RETIRE, lab.tenant.project_id)
    async with asyncio.timeout(PATIENCE_S):
        while (reply := await lab.ask(ann)).status_code == 200:
            assert arm_of(reply) == "warm"
    assert reply.json()["error"]["message"] == (
        "The model `support-bot` does not exist or you do not have access to it."
    )
    assert 'arm="warm";reason=split' in reply.headers[HEADER]
    assert arm_of(await lab.ask(bob)) == "control"
    async with asyncio.timeout(PATIENCE_S):
        while not any(row["num_refused"] for row in await lab.rows("experiment_requests")):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert {row["arm"] for row in await lab.rows("experiment_requests") if row["num_refused"]} == {1}


async def test_an_arm_whose_pool_the_project_may_not_use_is_refused(lab: Lab) -> None:
    other = f"other-{lab.tenant.project_id[-6:].lower()}"
    async with lab.connected() as conn, conn.transaction():
        row = await conn.fetchrow("SELECT model, folder, base_digest FROM pool_revisions LIMIT 1")
        assert row is not None
        folder = Path(row["folder"])
        await make_pool(conn, other, model=row["model"], folder=folder, base_digest=row["base_digest"], num_replicas=0)
        await conn.execute("UPDATE pools SET access = 'listed' WHERE name = $1", other)
    made = await lab.start((ArmOf("control", "bot"), ArmOf("elsewhere", pool=other)))
    assert (await lab.ask(unit_in(made, 1))).status_code == 404
    assert arm_of(await lab.ask(unit_in(made, 0))) == "control"


async def test_an_engine_that_is_full_is_asked_again_by_the_same_arm(lab: Lab) -> None:
    made = await lab.start()
    ann = unit_in(made, 1)
    key = content_key(lab.tenant.project_id, digest_of_version(2))
    lab.city.engine.fill(key)
    full = await lab.ask(ann)
    lab.city.engine.empty(key)
    assert (full.status_code, 'arm="warm"' in full.headers[HEADER]) == (503, True)
    assert arm_of(await lab.ask(ann, gateway=1)) == "warm"
    rows = {row["finish_reason"]: row["experiment_arm"] for row in await lab.rows("ledger", 2)}
    assert rows == {"error": 1, "length": 1}, "the ledger has it, so it is no refusal"
    assert [row["num_refused"] for row in await lab.rows("experiment_requests", 2)] == [0, 0]
