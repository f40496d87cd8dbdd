"""One unit gets one arm, whichever gateway and endpoint it asks, and the ledger names the arm that the reply named."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gateway.domain.experiments.assignment import assign
from gateway.domain.experiments.feedback.vote_ids import is_signed, request_id_of
from tests.gateway.experiments.making import set_state
from tests.gateway.routing.lab import CHAT, COMPLETIONS, EMBEDDINGS, HEADER, Lab, arm_of
from tests.patience import PATIENCE_S, least

WITHIN_S = 1.0


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
        for name in ("api_key_id", "endpoint", "stream", "service_tier"):
            assert exposed[row["request_id"]][name] == row[name]
    assert len({row["gateway"] for row in exposed.values()}) == 2, "each gateway's journal"
    noted = {digests[row["digest"]]: (row["epoch"], row["arm"]) for row in await lab.rows("experiment_units", 20)}
    assert noted == {unit: (1, int(arm == "warm")) for unit, arm in arms.items()}


async def test_a_reply_of_an_experiment_can_be_voted_on_at_once(lab: Lab) -> None:
    await lab.start()
    reply = await lab.ask("ann")
    signed, request_id = reply.json()["id"], reply.headers["x-request-id"]
    assert (len(signed), request_id_of(signed)) == (len("chatcmpl-") + 32, request_id)
    key = await lab.key()
    assert is_signed(key, signed)
    assert not is_signed(key, signed[:-1] + ("a" if signed[-1] != "a" else "b"))
    plain = await lab.ask("ann", model="tiny:bot")
    assert len(plain.json()["id"]) == len("chatcmpl-") + 24
    assert HEADER not in plain.headers


async def test_a_request_outside_the_analysis_gets_the_control_or_the_arm_it_names_and_is_counted_by_reason(
    lab: Lab,
) -> None:
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
    async with asyncio.timeout(PATIENCE_S):
        while sum(row["num_requests"] for row in await lab.rows("experiment_reasons", 3)) < 5:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
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
    async with lab.connected() as conn:

        async def become(state: str, expected: str) -> float:
            """Set the state; return the seconds until both gateways follow it."""
            await set_state(conn, made.id, state)
            set_at_s = time.monotonic()
            for gateway in range(2):
                while f'arm="{expected}"' not in (await lab.ask(unit, gateway=gateway)).headers[HEADER]:
                    assert time.monotonic() < set_at_s + PATIENCE_S
            return time.monotonic() - set_at_s

        async def pause_and_go_on() -> float:
            return max(await become("paused", "control"), await become("running", "warm"))

        assert await least(pause_and_go_on, WITHIN_S) < WITHIN_S
        await become("stopped", "control")
