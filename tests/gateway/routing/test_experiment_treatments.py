"""The engine gets the fields that the arm sets, and the ledger records whether the arm could set them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.domain.adapters.defaults import Defaults
from tests.gateway.experiments.making import ArmOf
from tests.gateway.routing.lab import EMBEDDINGS, Lab, arm_of
from tests.patience import PATIENCE_S

WARM = Defaults(temperature=0.25, max_tokens=3, system_prompt="be warm")
FORCED = {"x-lorikeet-arm": "warm"}
SYSTEM = {"role": "system", "content": "be cold"}
USER = {"role": "user", "content": "hello"}


async def was_delivered(lab: Lab, request_id: str) -> bool:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            for row in await lab.rows("ledger"):
                if row["request_id"] == request_id:
                    return bool(row["experiment_delivered"])


@pytest.mark.parametrize("mode", ["fill", "replace"])
async def test_what_is_open_is_set_and_what_is_given_only_if_the_arm_replaces(lab: Lab, mode: Any) -> None:
    adapter_sets = {"temperature": 0.75, "top_p": 0.5, "system_prompt": "be a bot", "max_tokens": 5}
    async with lab.connected() as conn:
        await conn.execute(
            "UPDATE adapters SET defaults = $2 WHERE project_id = $1",
            lab.tenant.project_id,
            json.dumps(adapter_sets),
        )
    await lab.start((ArmOf("control", "bot", 1), ArmOf("warm", "bot", 2, defaults=WARM, mode=mode)))
    open_ = await lab.ask("ann", headers=FORCED, max_tokens=None)
    asked = lab.request(open_)
    assert (asked.sampling.temperature, asked.sampling.top_p, asked.sampling.max_tokens) == (0.25, 0.5, 3)
    assert await was_delivered(lab, open_.headers["x-request-id"])
    given = await lab.ask("ann", headers=FORCED, temperature=1.5, max_tokens=4, messages=[SYSTEM, USER])
    replaced = lab.request(given)
    expected = (0.25, 3) if mode == "replace" else (1.5, 4)
    assert (replaced.sampling.temperature, replaced.sampling.max_tokens) == expected
    assert await was_delivered(lab, given.headers["x-request-id"]) == (mode == "replace")
    assert (replaced.prompt_token_ids == asked.prompt_token_ids) == (mode == "replace")
    for field in ({"temperature": 1.5}, {"max_tokens": 4}, {"messages": [SYSTEM, USER]}):
        reply = await lab.ask("ann", headers=FORCED, **({"max_tokens": None} | field))
        assert await was_delivered(lab, reply.headers["x-request-id"]) == (mode == "replace")
    control = await lab.ask("ann", headers={"x-lorikeet-arm": "control"}, max_tokens=None)
    assert lab.request(control).sampling.temperature == 0.75
    assert await was_delivered(lab, control.headers["x-request-id"])


async def test_an_embedding_has_nothing_to_set(lab: Lab) -> None:
    await lab.start((ArmOf("control", "bot", 1), ArmOf("warm", "bot", 2, defaults=WARM)))
    for number in range(8):
        reply = await lab.ask(f"user-{number}", EMBEDDINGS)
        assert await was_delivered(lab, reply.headers["x-request-id"]) == (arm_of(reply) == "control")
