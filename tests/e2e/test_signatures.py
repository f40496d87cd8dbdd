"""The right adapter in the right version, whatever happens to adapters meanwhile: 8 tenants with 5 adapters each."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.installation import Installation
from tests.e2e.signatures.model import make_signature_model
from tests.e2e.signatures.tenants import Tenant, signatures
from tests.e2e.signatures.timeline import Answer
from tests.patience import PATIENCE_S

NUM_TENANTS, NUM_ADAPTERS = 8, 5
NUM_CLIENTS = 16
NUM_REQUESTS, NUM_REQUESTS_FULL = 400, 100_000
NUM_SLOTS = 12
"""Of the engine's device: most adapters are evicted again and again."""

CHANGE_EVERY_S = 1.0
BUSY_S = 20.0
"""By which a gateway may follow late where the machine has other work, in one answer of a hundred."""

BASE = "signs"


@pytest.fixture
def installation(open_folder: Path) -> Iterator[Installation]:
    model = make_signature_model(open_folder / "signature-model")
    installation = Installation(open_folder / "signatures", flags=("--gateways", "2"))
    installation.env |= {
        "LORIKEET_MODEL": str(model),
        "LORIKEET_MODEL_NAME": BASE,
        "LORIKEET_DTYPE": "float32",
        "LORIKEET_QUANTIZATION": "none",
        "LORIKEET_MAX_ADAPTERS": str(NUM_SLOTS),
        "LORIKEET_KV_CACHE_BYTES": "64MiB",
        "LORIKEET_ADAPTER_GRACE_SECONDS": "3",  # deleted content leaves while requests run
    }
    installation.start()
    yield installation
    assert installation.stop() == 0


async def test_no_answer_comes_from_a_wrong_adapter_or_version(
    installation: Installation, tmp_path: Path, full: bool
) -> None:
    seed = int(os.environ.get("FIRST_SEED", "0"))
    rng, outcomes = random.Random(seed), Counter[str]()
    num_requests = NUM_REQUESTS_FULL if full else NUM_REQUESTS
    operator = {"authorization": f"Bearer {(installation.data_dir / 'operator.key').read_text().strip()}"}
    limits = httpx.Limits(max_connections=NUM_TENANTS + NUM_CLIENTS)
    async with (
        httpx.AsyncClient(base_url=installation.url, timeout=PATIENCE_S, limits=limits, trust_env=False) as http,
        httpx.AsyncClient(base_url=installation.url, headers=operator, timeout=PATIENCE_S, trust_env=False) as admin,
    ):
        tenants = await _tenants(admin, installation, tmp_path, rng)
        stop = asyncio.Event()
        changing = [asyncio.create_task(_keep_changing(tenant, stop)) for tenant in tenants]
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
    assert num_changes > NUM_TENANTS


async def _tenants(
    admin: httpx.AsyncClient, installation: Installation, folder: Path, rng: random.Random
) -> list[Tenant]:
    model, fresh = Path(installation.env["LORIKEET_MODEL"]), signatures(rng)
    tenants = []
    for number in range(NUM_TENANTS):
        project = (await admin.post("/v1/organization/projects", json={"name": f"tenant-{number}"})).json()["id"]
        key = (await admin.post(f"/v1/organization/projects/{project}/api_keys", json={"name": "key"})).json()["value"]
        place = folder / str(number)
        tenant_rng = random.Random(rng.random())
        tenants.append(Tenant(admin, project, key, BASE, model, place, tenant_rng, fresh, NUM_ADAPTERS))
    await asyncio.gather(*(tenant.begin() for tenant in tenants))
    return tenants


async def _keep_changing(tenant: Tenant, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await tenant.change()
        try:
            await asyncio.wait_for(stop.wait(), CHANGE_EVERY_S)
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
        if answer not in possible:  # of what it stood for lately, on a machine that is busy
            possible = timeline.possible(start_s - BUSY_S, time.monotonic())
            outcomes["late"] += 1
        assert answer in possible, (model_id, answer, possible, reply.headers, reply.text)
        outcomes["answered" if answer else "absent"] += 1


async def _leave(http: httpx.AsyncClient, key: str, body: dict[str, object]) -> None:
    """A stream that its client closes at once."""
    streamed = {**body, "max_tokens": 50, "stream": True}
    async with http.stream("POST", "/v1/completions", json=streamed, headers={"authorization": f"Bearer {key}"}):
        return


def _answer(reply: httpx.Response) -> Answer:
    """The three most likely tokens, which are the same at both positions."""
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
