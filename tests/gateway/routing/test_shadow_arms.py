"""A shadow arm gets copies of requests: no client notices the copies, each is billed once, and no unit counts them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import httpx
import pytest

from adapters.ref import content_key
from gateway.db.billing.prices import add_version
from gateway.domain.billing.book import ANY, SHADOW_TIER, Entry
from gateway.domain.experiments.definition import SHADOW_ARM
from gateway.domain.experiments.shadowing import OUTCOME_PREFIX, is_shadowed
from tests.gateway.experiments.making import ArmOf, set_state
from tests.gateway.routing.conftest import digest_of_version
from tests.gateway.routing.lab import CHAT, COMPLETIONS, EMBEDDINGS, HEADER, Lab
from tests.gateway.routing.test_experiment_refusals import limit
from tests.patience import PATIENCE_S

DARK = ArmOf("dark", "bot", 3)
OWN_HEADERS = {"x-request-id", "date", "openai-processing-ms", "x-ratelimit-remaining-requests"}
OWN_HEADERS |= {"x-ratelimit-reset-requests"}
"""Headers in which any two replies differ."""


_IN_FORCE = "SELECT FROM price_versions WHERE id = $1 AND effective_at <= clock_timestamp()"


async def outcomes(lab: Lab, num: int) -> dict[str, int]:
    """Wait until `num` outcomes of copies are recorded; return their numbers by outcome."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            rows = await lab.rows("experiment_reasons", 0)
            found = {
                row["reason"].removeprefix(OUTCOME_PREFIX): row["num_requests"]
                for row in rows
                if row["reason"].startswith(OUTCOME_PREFIX)
            }
            if sum(found.values()) >= num:
                return found
            await asyncio.sleep(0.05)


async def copies(lab: Lab, num: int) -> list[Any]:
    """Wait until the ledger has `num` rows of copies, and return them."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = [row for row in await lab.rows("ledger", 0) if row["service_tier"] == SHADOW_TIER]
            if len(found) >= num:
                return found
            await asyncio.sleep(0.05)


def shown(reply: httpx.Response) -> tuple[Any, ...]:
    """Return the parts of a reply that a client can compare: all but its ids and times."""
    headers = sorted((name, value) for name, value in reply.headers.items() if name not in OWN_HEADERS)
    if "event-stream" in reply.headers["content-type"]:
        events = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
        return reply.status_code, headers, [_without_own(event) for event in events]
    return reply.status_code, headers, _without_own(reply.json())


def _without_own(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in ("id", "created", "obfuscation")}


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"path": COMPLETIONS}])
async def test_replies_are_the_same_to_the_byte_with_a_shadow_and_without(lab: Lab, fields: dict[str, Any]) -> None:
    await limit(lab, "requests", "day", 1_000)
    made = await lab.start(shadow=DARK, share=0)

    async def ask() -> tuple[Any, ...]:
        return shown(await lab.ask("ann", **fields))

    await ask()  # the prompt is cached from now on
    plain = [await ask() for _ in range(3)]
    assert await copies(lab, 0) == []
    await set_share(lab, made.id, 10_000)
    async with asyncio.timeout(PATIENCE_S):
        while not await copies(lab, 0):
            await ask()
    assert [await ask() for _ in range(3)] == plain
    assert len(await copies(lab, 4)) >= 4


async def test_a_request_that_is_refused_is_not_copied(lab: Lab) -> None:
    await lab.start(shadow=DARK)
    reply = await lab.ask("ann", max_tokens=2_000_000)
    assert reply.status_code == 400
    assert (await lab.ask("ann")).status_code == 200
    assert await outcomes(lab, 1) == {"answered": 1}


async def set_share(lab: Lab, experiment_id: str, share: int) -> None:
    """Change the share of requests that the shadow arm gets."""
    async with lab.connected() as conn:
        await conn.execute(
            "UPDATE experiments SET definition = jsonb_set(definition, '{shadow,share}', $2::jsonb) WHERE id = $1",
            experiment_id,
            str(share),
        )


async def test_a_copy_is_a_request_of_its_own_in_the_ledger_and_in_no_unit(lab: Lab) -> None:
    async with lab.connected() as conn, conn.transaction():
        organization = await conn.fetchval("SELECT organization_id FROM projects WHERE id = $1", lab.tenant.project_id)
        entry = Entry(ANY, ANY, SHADOW_TIER, 3_000_000, 1_000_000, 7_000_000)
        version = await add_version(
            conn, organization, currency="usd", entries=[entry], discounts={}, effective_at=None
        )
    async with asyncio.timeout(PATIENCE_S):
        while not await lab.city.fetch(_IN_FORCE, version.id):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.1)
    made = await lab.start(shadow=DARK)
    replies = [await lab.ask(f"user-{n}", path) for n in range(3) for path in (CHAT, COMPLETIONS)]
    embedding = await lab.ask("user-0", EMBEDDINGS)
    rows = await copies(lab, 6)
    ids = {reply.headers["x-request-id"] for reply in replies}
    assert {row["request_id"] for row in rows} == {f"{request_id}_shadow" for request_id in ids}
    for row in rows:
        found = (row["experiment_id"], row["experiment_version"], row["experiment_arm"], row["experiment_epoch"])
        assert found == (made.id, 1, SHADOW_ARM, 0)
        assert (row["adapter_version"], row["completion_tokens"], row["finish_reason"]) == (3, 2, "length")
        uncached = row["prompt_tokens"] - row["cached_tokens"]
        assert row["cost_nanos"] == 3 * uncached + row["cached_tokens"] + 7 * 2 > 0
        asked = lab.city.engine.request(row["request_id"])
        assert (asked.tenant, asked.weight) == (f"{lab.tenant.project_id}/shadow", 0.1)
        assert asked.adapter == content_key(lab.tenant.project_id, digest_of_version(3))
    primaries = [row for row in await lab.rows("ledger", 13) if row["service_tier"] == "default"]
    assert {row["request_id"] for row in primaries} == ids | {embedding.headers["x-request-id"]}
    assert {row["cost_nanos"] for row in primaries} == {0}, "there is no price but that of copies"
    exposed = await lab.rows("experiment_requests", 7)
    assert {row["request_id"] for row in exposed} == {row["request_id"] for row in primaries}
    assert len(await lab.rows("experiment_units", 3)) == 3
    assert await outcomes(lab, 6) == {"answered": 6}
    await limit(lab, "cost_nanos", "day", sum(row["cost_nanos"] for row in rows) + 1)
    assert (await lab.ask("user-0", gateway=1)).status_code == 200
    assert await outcomes(lab, 7) == {"answered": 6, "refused": 1}, "one nano is left: too little for a copy"


async def test_copies_count_in_limits_of_cost_alone_and_a_refusal_drops_the_copy_alone(lab: Lab) -> None:
    for unit in ("requests", "tokens", "output_tokens"):
        await limit(lab, unit, "day", 3 if unit == "requests" else 100_000)
    await limit(lab, "concurrency", "none", 1)
    await lab.start(shadow=DARK)
    statuses = []
    for number in range(4):
        statuses.append((await lab.ask(f"user-{number}")).status_code)
        await copies(lab, min(number + 1, 3))
    assert statuses == [200, 200, 200, 429], "three requests a day, whatever is copied"
    primaries = [row for row in await lab.rows("ledger", 6) if row["service_tier"] == "default"]
    accounts = {
        row["unit"]: row["settled"]
        for row in await lab.city.fetch(
            "SELECT l.unit, a.settled FROM limits l JOIN limit_accounts a ON a.limit_id = l.id WHERE l.project_id = $1",
            lab.tenant.project_id,
        )
    }
    tokens = sum(row["prompt_tokens"] + row["completion_tokens"] for row in primaries)
    assert accounts == {"requests": 3, "tokens": tokens, "output_tokens": 6}
    await limit(lab, "input_tokens", "day", 10**6)
    (late,) = await lab.city.fetch(
        "SELECT a.settled FROM limits l JOIN limit_accounts a ON a.limit_id = l.id "
        "WHERE l.project_id = $1 AND l.unit = 'input_tokens'",
        lab.tenant.project_id,
    )
    assert late["settled"] == sum(row["prompt_tokens"] for row in primaries), "as a limit that is made later has it"


async def test_requests_are_answered_while_the_engine_of_the_shadow_fails(lab: Lab) -> None:
    made = await lab.start(shadow=DARK)
    lab.city.engine.break_on(content_key(lab.tenant.project_id, digest_of_version(3)))
    replies = [await lab.ask(f"user-{number}") for number in range(5)]
    assert {reply.status_code for reply in replies} == {200}
    assert await outcomes(lab, 5) == {"failed": 5}
    rows = await lab.rows("ledger", 5)
    assert {row["finish_reason"] for row in rows if row["service_tier"] == "default"} == {"length"}
    assert {row["completion_tokens"] for row in rows if row["service_tier"] == SHADOW_TIER} <= {0}
    await lab.tenant.put("bot", 4)
    async with lab.connected() as conn:
        await conn.execute(
            "UPDATE adapter_versions SET state = 'retired' WHERE version = 3 AND adapter_id IN "
            "(SELECT adapter_id FROM experiment_arms WHERE experiment_id = $1)",
            made.id,
        )
    async with asyncio.timeout(PATIENCE_S):
        while "target_gone" not in await outcomes(lab, 5):
            assert (await lab.ask("user-1")).status_code == 200


async def test_only_a_share_is_copied_and_nothing_that_asks_for_an_arm_or_while_it_is_paused(lab: Lab) -> None:
    made = await lab.start(shadow=DARK, share=3_000)
    ids = []
    for _ in range(40):
        ids.append((await lab.ask(None)).headers["x-request-id"])
        await lab.copied()
    wanted = {f"{each}_shadow" for each in ids if is_shadowed(made.split.seed, each, 3_000)}
    rows = await copies(lab, len(wanted))
    assert {row["request_id"] for row in rows} == wanted
    share = sum(is_shadowed(made.split.seed, f"req_{number}", 3_000) for number in range(10_000)) / 10_000
    assert 0.28 < share < 0.32
    async with lab.connected() as conn:
        await set_share(lab, made.id, 10_000)
        async with asyncio.timeout(PATIENCE_S):
            while len(await copies(lab, 0)) <= len(wanted):
                await lab.ask("ann")
        unwanted = [await lab.ask("ann", headers=each) for each in ({HEADER: "off"}, {"x-lorikeet-arm": "warm"})]
        await set_state(conn, made.id, "paused")
        unwanted += [await lab.until("disabled", "ann"), await lab.ask("ann"), await lab.ask("ann")]
        await set_state(conn, made.id, "running")
        await lab.copied()
        last = await lab.until("split", "ann")
    ids_now = set[str]()
    async with asyncio.timeout(PATIENCE_S):
        while f"{last.headers['x-request-id']}_shadow" not in ids_now:
            ids_now = {row["request_id"] for row in await copies(lab, len(ids_now) + 1)}
    assert not ids_now & {f"{reply.headers['x-request-id']}_shadow" for reply in unwanted}


async def test_no_copy_runs_for_a_client_that_left(lab: Lab) -> None:
    await lab.start(shadow=DARK)
    body = {"model": "support-bot", "prompt": "hello", "max_tokens": 400, "stream": True, "user": "ann"}
    with contextlib.suppress(httpx.HTTPError):
        async with lab.clients[0].stream("POST", COMPLETIONS, json=body) as reply:
            async for _ in reply.aiter_lines():
                break
    assert await outcomes(lab, 1) == {"client_gone": 1}
    assert await copies(lab, 0) == []
