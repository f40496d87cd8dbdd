"""One unit gets one arm, whichever gateway and endpoint it asks, and the ledger says what the reply said."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import asyncpg
import httpx
import msgspec
import pytest

from gateway.domain.experiments.assignment import assign, unit_digest
from gateway.domain.experiments.vote_ids import is_signed, request_id_of
from tests.gateway.experiments.making import ArmOf, Made, set_state, start_experiment
from tests.gateway.routing.conftest import City, Tenant
from tests.patience import PATIENCE_S

ARMS = (ArmOf("control", "bot", 1), ArmOf("warm", "bot", 2))
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HEADER = "x-lorikeet-experiment"


class Lab(msgspec.Struct, frozen=True):
    """A tenant with an experiment, and a client of each gateway."""

    city: City
    tenant: Tenant
    clients: list[httpx.AsyncClient]

    async def start(self, arms: tuple[ArmOf, ...] = ARMS, **fields: Any) -> Made:
        conn = await asyncpg.connect(self.city.dsn)
        try:
            return await start_experiment(conn, self.tenant.project_id, arms, **fields)
        finally:
            await conn.close()

    async def ask(self, unit: str | None, path: str = CHAT, gateway: int = 0, **fields: Any) -> httpx.Response:
        """Ask the experiment; headers are a field of that name."""
        prompt: dict[str, Any] = {COMPLETIONS: {"prompt": "hello"}, EMBEDDINGS: {"input": "hello"}}.get(
            path, {"messages": [{"role": "user", "content": "hello"}]}
        )
        headers = fields.pop("headers", {})
        tokens = {} if path == EMBEDDINGS else {"max_tokens": 2}
        user = {} if unit is None else {"user": unit}
        body = {"model": "support-bot"} | prompt | tokens | user | fields
        return await self.clients[gateway].post(path, json=body, headers=headers)

    async def rows(self, table: str, least: int = 1) -> list[asyncpg.Record]:
        """The project's rows of a table, once there are so many."""
        of = "project_id = $1"
        if table in ("experiment_units", "experiment_reasons", "experiment_events"):
            of = "experiment_id IN (SELECT id FROM experiments WHERE project_id = $1)"
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = await self.city.fetch(f"SELECT * FROM {table} WHERE {of}", self.tenant.project_id)
                if len(found) >= least:
                    return found
                await asyncio.sleep(0.05)

    async def digests(self, *units: str) -> dict[bytes, str]:
        """The units by their digests, with the secret that a gateway has read."""
        services = self.city.gateways[0]._services
        loop = self.city.gateways[0].loop
        assert services is not None and loop is not None
        found = services.pipeline._resolver._found[self.tenant.project_id]["support-bot"]
        return {unit_digest(found.project_key, unit): unit for unit in units}  # type: ignore[union-attr]


@pytest.fixture
async def lab(city: City, tenants: list[Tenant]) -> Lab:
    tenant = tenants[0]
    await tenant.put("bot", 1, 2, 3)
    return Lab(city, tenant, [await tenant.client(gateway) for gateway in range(2)])


def arm_of(reply: httpx.Response) -> str:
    """The arm that a reply's header names."""
    assert reply.status_code == 200, reply.text
    name, version, arm, reason = reply.headers[HEADER].split(";")
    assert (name, version, reason) == ('"support-tone"', "v=1", "reason=split")
    return str(arm.removeprefix('arm="').removesuffix('"'))


async def test_one_unit_has_one_arm_everywhere(lab: Lab) -> None:
    made = await lab.start()
    arms: dict[str, str] = {}
    for number in range(20):
        unit = f"user-{number}"
        arms[unit] = made.definition.arms[assign(made.split, unit, b"").arm].name
        for path in (CHAT, COMPLETIONS, EMBEDDINGS):
            for gateway in range(2):
                reply = await lab.ask(unit, path, gateway)
                assert arm_of(reply) == arms[unit]
                assert reply.headers["x-lorikeet-adapter"] == ("bot@1" if arms[unit] == "control" else "bot@2")
                assert reply.json()["model"] == "support-bot"
    assert set(arms.values()) == {"control", "warm"}
    rows = await lab.rows("ledger", 120)
    exposed = {row["request_id"]: row for row in await lab.rows("experiment_requests", 120)}
    digests = await lab.digests(*arms)
    for row in rows:
        unit = digests[exposed[row["request_id"]]["digest"]]
        index = [arm.name for arm in made.definition.arms].index(arms[unit])
        found = (row["experiment_id"], row["experiment_version"], row["experiment_arm"], row["experiment_epoch"])
        assert found == (made.id, 1, index, 1)
        assert row["adapter_version"] == index + 1
        assert row["experiment_delivered"] is True
        assert exposed[row["request_id"]]["created_at"] == row["created_at"]
    noted = {digests[row["digest"]]: (row["epoch"], row["arm"]) for row in await lab.rows("experiment_units", 20)}
    assert noted == {unit: (1, int(arm == "warm")) for unit, arm in arms.items()}


async def test_a_reply_of_an_experiment_can_be_voted_on_at_once(lab: Lab) -> None:
    await lab.start()
    reply = await lab.ask("ann")
    signed, request_id = reply.json()["id"], reply.headers["x-request-id"]
    assert (len(signed), request_id_of(signed)) == (len("chatcmpl-") + 32, request_id)
    found = lab.city.gateways[0]._services.resolver._found[lab.tenant.project_id]["support-bot"]  # type: ignore[union-attr]
    assert is_signed(found.project_key, signed)  # type: ignore[union-attr]
    assert not is_signed(found.project_key, signed[:-1] + ("a" if signed[-1] != "a" else "b"))  # type: ignore[union-attr]
    plain = await lab.ask("ann", model="tiny:bot")
    assert len(plain.json()["id"]) == len("chatcmpl-") + 24
    assert HEADER not in plain.headers


async def test_who_is_not_analysed_gets_the_control_and_is_counted_by_reason(lab: Lab) -> None:
    made = await lab.start(coverage=5_000)
    covered = [f"user-{number}" for number in range(200) if assign(made.split, f"user-{number}", b"").is_analysed]
    outside = next(f"user-{number}" for number in range(200) if f"user-{number}" not in covered)
    warm = next(unit for unit in covered if assign(made.split, unit, b"").arm == 1)
    asked = [
        (await lab.ask(None), "control", "default"),
        (await lab.ask(""), "control", "default"),
        (await lab.ask(outside), "control", "default"),
        (await lab.ask(warm, headers={HEADER: "off"}), "control", "targeting_match"),
        (await lab.ask(outside, headers={"x-lorikeet-arm": "warm"}), "warm", "targeting_match"),
    ]
    for reply, arm, reason in asked:
        assert reply.headers[HEADER] == f'"support-tone";v=1;arm="{arm}";reason={reason}'
    rows = await lab.rows("ledger", 5)
    assert [row["experiment_epoch"] for row in rows] == [0] * 5
    reasons = {row["reason"]: row["num_requests"] for row in await lab.rows("experiment_reasons", 3)}
    assert reasons == {"no_unit": 2, "not_covered": 1, "forced": 2}
    assert await lab.rows("experiment_requests", 0) == await lab.rows("experiment_units", 0) == []


async def test_an_arm_that_there_is_not_is_refused_by_its_header(lab: Lab) -> None:
    await lab.start()
    reply = await lab.ask("ann", headers={"x-lorikeet-arm": "cold"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "x-lorikeet-arm")
    assert (await lab.ask("ann", model="tiny:bot", headers={"x-lorikeet-arm": "cold"})).status_code == 200


@pytest.mark.parametrize(
    ("source", "fields"),
    [
        ("safety_identifier", {"safety_identifier": "ann"}),
        ("prompt_cache_key", {"prompt_cache_key": "ann"}),
        ("metadata.customer", {"metadata": {"customer": "ann"}, "store": False}),
        ("x-lorikeet-unit", {"headers": {"x-lorikeet-unit": "ann"}}),
    ],
)
async def test_a_unit_comes_from_one_source_alone(lab: Lab, source: str, fields: dict[str, Any]) -> None:
    made = await lab.start(unit=source)
    arm = made.definition.arms[assign(made.split, "ann", b"").arm].name
    assert arm_of(await lab.ask("bob", **fields)) == arm
    assert (await lab.ask("ann")).headers[HEADER].endswith("reason=default")


async def test_a_unit_in_a_header_is_text_of_a_bounded_length(lab: Lab) -> None:
    made = await lab.start(unit="x-lorikeet-unit")
    arm = made.definition.arms[assign(made.split, "é", b"").arm].name
    assert arm_of(await lab.ask(None, headers={"x-lorikeet-unit": "é".encode()})) == arm
    for wrong in (b"u" * 129, b"\xff"):
        reply = await lab.ask(None, headers={"x-lorikeet-unit": wrong})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "x-lorikeet-unit")


async def test_a_key_can_be_the_unit(lab: Lab) -> None:
    await lab.start(unit="api_key")
    arms = {arm_of(await lab.ask(None)) for _ in range(3)}
    assert len(arms) == 1


async def test_a_pause_holds_on_both_gateways_within_a_second(lab: Lab) -> None:
    made = await lab.start()
    unit = next(f"user-{n}" for n in range(100) if assign(made.split, f"user-{n}", b"").arm == 1)
    for gateway in range(2):
        assert arm_of(await lab.ask(unit, gateway=gateway)) == "warm"
    conn = await asyncpg.connect(lab.city.dsn)
    try:
        for state, expected in (("paused", "control"), ("running", "warm"), ("stopped", "control")):
            await set_state(conn, made.id, state)
            set_at = datetime.datetime.now()
            for gateway in range(2):
                while f'arm="{expected}"' not in (await lab.ask(unit, gateway=gateway)).headers[HEADER]:
                    assert (datetime.datetime.now() - set_at).total_seconds() < PATIENCE_S
    finally:
        await conn.close()
