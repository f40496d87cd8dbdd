"""OpenFeature's remote evaluation: the arm that the gateway serves, in the protocol's shapes, exposing nobody."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from tests.gateway.conftest import House
from tests.gateway.evaluation.furniture import connected
from tests.installation.tenants import make_key
from tests.installation.waiting import until
from tests.patience import PATIENCE_S

NUMBERS = itertools.count(1)
NUM_UNITS = 60


class FlagExperiment(msgspec.Struct, frozen=True):
    """A running experiment of the project acme, to be read as a flag."""

    house: House
    id: str
    name: str
    client: httpx.AsyncClient
    """A client with the project's key."""
    operator: httpx.AsyncClient
    path: str
    """The path of the experiment in the admin API."""

    async def flag(self, context: Any, name: str | None = None, **options: Any) -> httpx.Response:
        """Evaluate the flag for a context; return the reply.

        name: the name of the flag; None: that of the experiment.
        """
        return await self.client.post(
            f"/ofrep/v1/evaluate/flags/{self.name if name is None else name}", json={"context": context}, **options
        )

    async def arm_of(self, unit: str) -> str:
        """Send a chat request of a unit, and return the arm that its reply names."""
        body = {"model": self.name, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "user": unit}
        reply = await self.client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        return reply.headers["x-lorikeet-experiment"].split('arm="')[1].split('"')[0]


@pytest.fixture
async def flagged(house: House) -> AsyncIterator[FlagExperiment]:
    name = f"flag-{next(NUMBERS)}"
    definition = {
        "name": name,
        "model": name,
        "layer": name,
        "unit": {"from": "user"},
        "arms": [
            {"name": "control", "weight": 1, "target": {"model": "tiny"}},
            {"name": "warm", "weight": 1, "target": {"model": "tiny", "defaults": {"temperature": 0.5}}},
        ],
        "metrics": {"primary": [{"metric": "cost_nanos", "goal": "decrease"}]},
    }
    key = await make_key(house.dsn, name)
    path = f"/v1/organization/projects/{key.project_id}/experiments"
    operator = {"authorization": f"Bearer {house.operator_key}"}
    async with (
        httpx.AsyncClient(base_url=house.url, headers=operator, timeout=PATIENCE_S) as admin,
        httpx.AsyncClient(base_url=house.url, headers=key.headers, timeout=PATIENCE_S) as client,
    ):
        layer = await admin.post(path.replace("experiments", "experiment_layers"), json={"name": name})
        assert layer.status_code == 200, layer.text
        made = await admin.post(path, json=definition)
        assert made.status_code == 200, made.text
        own = f"{path}/{made.json()['id']}"

        async def is_started() -> bool:
            return (await admin.post(f"{own}/start")).status_code == 200

        await until(is_started, "the experiment does not start", pause_s=0.1)
        yield FlagExperiment(house, made.json()["id"], name, client, admin, own)
        await admin.post(f"{own}/stop")


async def test_the_arm_is_the_one_that_requests_get(flagged: FlagExperiment) -> None:
    arms = set()
    for number in range(NUM_UNITS):
        reply = await flagged.flag({"targetingKey": f"user-{number}", "plan": "gold"})
        assert reply.status_code == 200
        flag = reply.json()
        metadata = {"id": flagged.id, "version": 1, "model": flagged.name}
        arm = await flagged.arm_of(f"user-{number}")
        assert flag == {"key": flagged.name, "value": arm, "variant": arm, "reason": "SPLIT", "metadata": metadata}
        arms.add(arm)
    assert arms == {"control", "warm"}


async def test_asking_exposes_nobody(flagged: FlagExperiment) -> None:
    for number in range(20):
        await flagged.flag({"targetingKey": f"asked-{number}"})
    await flagged.arm_of("asked-0")
    async with connected(flagged.house.dsn) as conn:

        async def units() -> int:
            sql = "SELECT count(*) FROM experiment_units WHERE experiment_id = $1"
            return int(await conn.fetchval(sql, flagged.id))

        async def is_noted() -> bool:
            return await units() > 0

        await until(is_noted, "the unit of the request is not noted")
        assert await units() == 1


async def test_an_experiment_that_is_paused_is_disabled_everywhere(flagged: FlagExperiment) -> None:
    assert (await flagged.operator.post(f"{flagged.path}/pause")).status_code == 200

    async def is_disabled() -> bool:
        flag = (await flagged.flag({"targetingKey": "user-1"})).json()
        return (flag["reason"], flag["value"]) == ("DISABLED", "control")

    await until(is_disabled, "the flag is not disabled")


async def test_all_flags_of_a_unit_come_at_once_with_a_tag(flagged: FlagExperiment) -> None:
    body = {"context": {"targetingKey": "user-1"}}
    reply = await flagged.client.post("/ofrep/v1/evaluate/flags", json=body)
    one = (await flagged.flag({"targetingKey": "user-1"})).json()
    assert one in reply.json()["flags"]
    headers = {"if-none-match": reply.headers["etag"]}
    again = await flagged.client.post("/ofrep/v1/evaluate/flags", json=body, headers=headers)
    assert (again.status_code, again.content) == (304, b"")
    other = await flagged.client.post("/ofrep/v1/evaluate/flags", json=body, headers={"if-none-match": '"x"'})
    assert other.status_code == 200


WRONG: list[tuple[bytes, str]] = [
    (b'{"context": {}}', "TARGETING_KEY_MISSING"),
    (b"{}", "TARGETING_KEY_MISSING"),
    (b'{"context": {"targetingKey": ""}}', "TARGETING_KEY_MISSING"),
    (b'{"context": {"targetingKey": 5}}', "INVALID_CONTEXT"),
    (b'{"context": {"targetingKey": "%s"}}' % (b"x" * 513), "INVALID_CONTEXT"),
    (b'{"context": 5}', "PARSE_ERROR"),
    (b"{", "PARSE_ERROR"),
    (b"", "PARSE_ERROR"),
]


@pytest.mark.parametrize(("body", "code"), WRONG, ids=[f"{code}-{at}" for at, (_, code) in enumerate(WRONG)])
async def test_wrong_contexts_are_refused_in_the_protocols_shape(house: House, body: bytes, code: str) -> None:
    headers = {"authorization": f"Bearer {house.acme.key}", "content-type": "application/json"}
    async with httpx.AsyncClient(base_url=house.url, headers=headers, timeout=PATIENCE_S) as client:
        one = await client.post("/ofrep/v1/evaluate/flags/x", content=body)
        assert (one.status_code, one.json()["key"], one.json()["errorCode"]) == (400, "x", code)
        many = await client.post("/ofrep/v1/evaluate/flags", content=body)
        assert (many.status_code, many.json()["errorCode"]) == (400, code)
        assert set(one.json()) == {"key", "errorCode", "errorDetails"}


async def test_another_projects_flag_is_answered_like_one_that_does_not_exist(flagged: FlagExperiment) -> None:
    headers = {"authorization": f"Bearer {flagged.house.globex.key}"}
    answers = set()
    for name in (flagged.name, "none", "%00"):
        reply = await flagged.flag({"targetingKey": "user-1"}, name=name, headers=headers)
        answers.add((reply.status_code, reply.json()["errorCode"], reply.json()["errorDetails"]))
    assert len(answers) == 1
    assert answers.pop()[:2] == (404, "FLAG_NOT_FOUND")
    reply = await flagged.client.post(
        "/ofrep/v1/evaluate/flags", json={"context": {"targetingKey": "user-1"}}, headers=headers
    )
    assert flagged.name not in reply.text


async def test_the_official_sdk_shows_the_arm_that_requests_get(flagged: FlagExperiment) -> None:
    api = pytest.importorskip("openfeature.api")
    ofrep = pytest.importorskip("openfeature.contrib.provider.ofrep")
    from openfeature.evaluation_context import EvaluationContext

    key = flagged.house.acme.key
    provider = ofrep.OFREPProvider(flagged.house.url, headers_factory=lambda: {"Authorization": f"Bearer {key}"})

    def evaluate(unit: str | None, name: str) -> Any:
        return api.get_client().get_string_details(name, "none", EvaluationContext(targeting_key=unit))

    await asyncio.to_thread(api.set_provider_and_wait, provider)
    for number in range(20):
        found = await asyncio.to_thread(evaluate, f"user-{number}", flagged.name)
        assert (found.value, found.reason) == (await flagged.arm_of(f"user-{number}"), "SPLIT")
    missing = await asyncio.to_thread(evaluate, "user-1", "no-such-flag")
    assert (missing.value, missing.error_code.value) == ("none", "FLAG_NOT_FOUND")
    without = await asyncio.to_thread(evaluate, None, flagged.name)
    assert (without.value, without.error_code.value) == ("none", "TARGETING_KEY_MISSING")
