"""The demo's experiment and the one that the guide has people make go on side by side, whichever starts first."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from gateway.cli.experiments.demo import LIKED, NUM_REQUESTS
from gateway.db.organization.audit import Author
from gateway.domain.experiments.effects import Mean, effect_of
from gateway.serve.demo_experiment import NAME, demo_experiment, make_demo_experiment
from tests.gateway.admin.experiments.conftest import Lab
from tests.gateway.bases import put_adapter

GUIDE = Path(__file__).parents[4] / "gateway" / "experiments" / "README.md"


@pytest.fixture
async def both(lab: Lab) -> list[str]:
    """Return the ids of the demo's draft and of the one in the guide."""
    async with lab.database.transaction() as conn:
        for name, letter in (("pirate", "d"), ("json", "e")):
            await put_adapter(conn, lab.project_id, name, digest=letter * 64, rank=8, size_bytes=1)
        organization: str = await conn.fetchval("SELECT organization_id FROM projects WHERE id = $1", lab.project_id)
        author = Author(
            organization_id=organization, kind="system", id="bootstrap", email=None, address="", request_id=""
        )
        await make_demo_experiment(conn, author, lab.project_id, "tiny")
    text = GUIDE.read_text().split("```json\n", 1)[1].split("```", 1)[0].replace("smollm2-135m-instruct", "tiny")
    reply = await lab.client.post(lab.path, json=json.loads(text))
    assert reply.status_code == 200, reply.text
    listed = (await lab.client.get(lab.path)).json()["data"]
    assert [each["name"] for each in listed] == [NAME, reply.json()["name"]]
    return [each["id"] for each in listed]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["demo's first", "guide's first"])
async def test_both_run_and_get_all_units(lab: Lab, both: list[str], order: tuple[int, int]) -> None:
    for at in order:
        reply = await lab.client.post(f"{lab.path}/{both[at]}/start", json={})
        assert reply.status_code == 200, reply.text
    layers = (await lab.client.get(f"{lab.project}/experiment_layers")).json()["data"]
    assert {layer["free"] for layer in layers} == {0} and len(layers) == 2


def test_the_traffic_of_the_demo_is_enough_to_prove_its_effect() -> None:
    """The effect is proven in 99 of 100 runs, with the intervals that every experiment gets."""
    rng, analysis = random.Random(1), demo_experiment("tiny").analysis
    num_proven = 0
    for _ in range(500):
        num_units = sum(rng.random() < 0.5 for _ in range(NUM_REQUESTS))
        control, treatment = (
            _mean(units, sum(rng.random() < liked for _ in range(units)))
            for units, liked in zip((num_units, NUM_REQUESTS - num_units), LIKED, strict=True)
        )
        found = effect_of(control, treatment, analysis.alpha, analysis.tightest_at)
        num_proven += found.log_e >= -math.log(analysis.alpha)
    assert num_proven >= 495


def _mean(units: int, liked: int) -> Mean:
    part = liked / units
    return Mean(units, part, part * (1 - part) / (units - 1))
