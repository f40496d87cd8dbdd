"""Health of live traffic over the admin API: a placeholder that many clients share, a treatment that clients undo."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from gateway.domain.adapters.defaults import Defaults
from tests.gateway.experiments.making import ArmOf, StartedExperiment
from tests.gateway.routing.lab import Lab, arm_of
from tests.patience import PATIENCE_S


async def read(
    lab: Lab,
    operator: httpx.AsyncClient,
    made: StartedExperiment,
    what: str,
    is_there: Callable[[dict[str, Any]], bool],
) -> dict[str, Any]:
    """Read health or results until `is_there` accepts them, and return them."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            reply = await operator.get(f"{lab.tenant.path}/experiments/{made.id}/{what}")
            assert reply.status_code == 200, reply.text
            if is_there(found := reply.json()):
                return found
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("placeholder", ["anonymous", "null"])
async def test_a_placeholder_that_many_share_is_one_unit_and_named_by_its_digest(
    lab: Lab, operator: httpx.AsyncClient, placeholder: str
) -> None:
    made = await lab.start()
    num_people, num_shared = 20, 110
    for number in range(num_people):
        await lab.ask(f"user-{number}")
    arms = {arm_of(await lab.ask(placeholder, gateway=number % 2)) for number in range(num_shared)}
    assert len(arms) == 1
    (digest,) = await lab.digests(placeholder)
    busy = {"digest": digest.hex(), "num_requests": num_shared}

    def is_counted(health: dict[str, Any]) -> bool:
        return health["num_waiting"] == 0 and any(busy.items() <= each.items() for each in health["busy_units"])

    found = await read(lab, operator, made, "health", is_counted)
    assert sum(arm["units"] for arm in found["arms"]) == num_people + 1
    assert len(found["busy_units"]) == 1, "people with one request each are not named"
    assert any("more than 1 % of the requests" in problem for problem in found["problems"])
    results = await read(lab, operator, made, "results", lambda results: bool(results["arms"]))
    assert sum(arm["units"] for arm in results["arms"]) == num_people + 1


async def test_clients_that_always_set_what_the_arm_sets_are_told_of(lab: Lab, operator: httpx.AsyncClient) -> None:
    warm = ArmOf("warm", "bot", 2, defaults=Defaults(temperature=0.25))
    made = await lab.start((ArmOf("control", "bot", 1), warm))
    units = [f"user-{number}" for number in range(24)]
    arms = [arm_of(await lab.ask(each, temperature=1.0)) for each in units]
    found = await read(
        lab, operator, made, "health", lambda health: sum(arm["units"] for arm in health["arms"]) == len(units)
    )
    told = {arm["name"]: (arm["units"], arm["compliance"]) for arm in found["arms"]}
    assert told == {"control": (arms.count("control"), 1.0), "warm": (arms.count("warm"), 0.0)}
    assert found["status"] == "warning"
    (problem,) = found["problems"]
    assert problem.startswith("0% of the units in warm") and "intention to treat" in problem
    results = await read(lab, operator, made, "results", lambda results: bool(results["arms"]))
    assert {arm["name"]: arm["compliance"] for arm in results["arms"]} == {"control": 1.0, "warm": 0.0}
