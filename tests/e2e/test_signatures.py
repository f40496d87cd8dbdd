"""The right adapter in the right version answers, whatever happens to adapters meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import httpx

from tests.e2e.conftest import NUM_SLOTS, SIGNS
from tests.e2e.installation import Installation
from tests.e2e.signatures.tenants import Tenant, signatures
from tests.e2e.signatures.timeline import Answer
from tests.patience import PATIENCE_S

NUM_TENANTS, NUM_TENANTS_FULL = 6, 8
NUM_ADAPTERS, NUM_ADAPTERS_FULL = 3, 5
"""The number of adapters of each tenant."""

NUM_CLIENTS = 16
NUM_REQUESTS, NUM_REQUESTS_FULL = 300, 100_000
CHANGE_EVERY_S, CHANGE_EVERY_S_FULL = 2.0, 1.0
"""Seconds between changes of each tenant; an upload takes as much processor time as some thirty requests."""

BUSY_S = 20.0
"""Seconds by which a gateway may follow late where the machine has other work, in one answer of a hundred."""


async def test_no_answer_comes_from_a_wrong_adapter_or_version(signs: Installation, tmp_path: Path, full: bool) -> None:
    seed = int(os.environ.get("FIRST_SEED", "0"))
    rng, outcomes = random.Random(seed), Counter[str]()
    num_requests = NUM_REQUESTS_FULL if full else NUM_REQUESTS
    operator = {"authorization": f"Bearer {(signs.data_dir / 'operator.key').read_text().strip()}"}
    num_tenants = NUM_TENANTS_FULL if full else NUM_TENANTS
    num_adapters = NUM_ADAPTERS_FULL if full else NUM_ADAPTERS
    change_every_s = CHANGE_EVERY_S_FULL if full else CHANGE_EVERY_S
    assert num_tenants * num_adapters > 2 * NUM_SLOTS
    limits = httpx.Limits(max_connections=num_tenants + NUM_CLIENTS)
    async with (
        httpx.AsyncClient(base_url=signs.url, timeout=PATIENCE_S, limits=limits, trust_env=False) as http,
        httpx.AsyncClient(base_url=signs.url, headers=operator, timeout=PATIENCE_S, trust_env=False) as admin,
    ):
        tenants = await _tenants(admin, signs, tmp_path, rng, num_tenants, num_adapters)
        stop = asyncio.Event()
        changing = [asyncio.create_task(_keep_changing(tenant, stop, change_every_s)) for tenant in tenants]
        share = num_requests // NUM_CLIENTS
        clients = [_client(http, tenants, random.Random(f"{seed}-{n}"), share, outcomes) for n in range(NUM_CLIENTS)]
        try:
            await asyncio.gather(*clients)
        finally:
            stop.set()
            await asyncio.gather(*changing)
    num_changes = sum(tenant.num_changes for tenant in tenants)
    print(f"seed {seed}: {dict(outcomes)}, {num_changes} changes")
    assert outcomes["answered"] > num_requests / 2
    assert outcomes["late"] <= num_requests / 100
    assert num_changes > num_tenants


async def _tenants(
    admin: httpx.AsyncClient,
    signs: Installation,
    folder: Path,
    rng: random.Random,
    num_tenants: int,
    num_adapters: int,
) -> list[Tenant]:
    model, fresh = Path(signs.env["LORIKEET_MODEL"]), signatures(rng)
    tenants = []
    for number in range(num_tenants):
        project = (await admin.post("/v1/organization/projects", json={"name": f"tenant-{number}"})).json()["id"]
        key = (await admin.post(f"/v1/organization/projects/{project}/api_keys", json={"name": "key"})).json()["value"]
        place = folder / str(number)
        tenant_rng = random.Random(rng.random())
        tenants.append(Tenant(admin, project, key, SIGNS, model, place, tenant_rng, fresh, num_adapters))
    await asyncio.gather(*(tenant.begin() for tenant in tenants))
    return tenants


async def _keep_changing(tenant: Tenant, stop: asyncio.Event, every_s: float) -> None:
    while not stop.is_set():
        await tenant.change()
        try:
            await asyncio.wait_for(stop.wait(), every_s)
        except TimeoutError:
            continue


async def _client(
    http: httpx.AsyncClient, tenants: list[Tenant], rng: random.Random, num_requests: int, outcomes: Counter[str]
) -> None:
    for _ in range(num_requests):
        tenant = rng.choice(tenants)
        model_id, timeline = rng.choice(tenant.model_ids())
        body = {"model": model_id, "prompt": "hello", "max_tokens": 2, "temperature": 0, "logprobs": 3}
        start_s = time.monotonic()
        if rng.random() < 0.1:
            await _leave(http, tenant.key, body)
            outcomes["left"] += 1
            continue
        reply = await http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {tenant.key}"})
        possible = timeline.possible(start_s, time.monotonic())
        if reply.status_code in (400, 500, 502, 503):
            possible |= timeline.possible(start_s - BUSY_S, time.monotonic())
            assert None in possible and "adapter" in reply.json()["error"]["message"], (model_id, possible, reply.text)
            outcomes["deleted meanwhile"] += 1
            continue
        answer = _answer(reply)
        if answer not in possible:  # a recent answer, on a machine that is busy
            possible = timeline.possible(start_s - BUSY_S, time.monotonic())
            outcomes["late"] += 1
        assert answer in possible, (model_id, answer, possible, reply.headers, reply.text)
        outcomes["answered" if answer else "absent"] += 1


async def _leave(http: httpx.AsyncClient, key: str, body: dict[str, object]) -> None:
    """Begin a stream and close it at once."""
    streamed = {**body, "max_tokens": 50, "stream": True}
    async with http.stream("POST", "/v1/completions", json=streamed, headers={"authorization": f"Bearer {key}"}):
        return


def _answer(reply: httpx.Response) -> Answer:
    """Return the three most likely tokens, which are the same at both positions."""
    if reply.status_code == 404:
        assert reply.json()["error"]["code"] == "model_not_found", reply.text
        return None
    assert reply.status_code == 200, reply.text
    top = [
        sorted(each, key=each.__getitem__, reverse=True)
        for each in reply.json()["choices"][0]["logprobs"]["top_logprobs"]
    ]
    assert len(top) == 2 and top[0][:3] == top[1][:3], reply.text
    first, second, third = top[0][:3]
    return first, second, third
