"""Two tenants who want the same pool, and what each gets of it: 4 replicas, 2 gateways, engines with the real scheduler
and steps of a fixed time; all else is as in an installation.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncpg
import msgspec

from engine.config import model_digest
from engine.scheduling.fairness import DECODE_COST
from gateway.db.pools.replicas import add_running_replica
from gateway.db.pools.served import list_served
from gateway.pools.first_pool import make_pool
from gateway.settings import Settings
from tests.engine.scheduling.fairness_simulator import percentile
from tests.gateway.model_folder import make_model_folder
from tests.installation.gateway_process import GatewayProcess
from tests.installation.processes import ChildProcess
from tests.installation.tenants import Key, make_key
from tests.patience import PATIENCE_S

POOL = "tiny"
NUM_REPLICAS, PLACES, STEP_S = 4, 4, 0.02
"""The number of replicas, the places of each, and the seconds of a step. A run has 300 answers of the victim; with one
place each, the third slowest would differ by half between two runs."""

QUIET = 2 * NUM_REPLICAS * PLACES
"""The number of requests that the victim keeps running: its share of the pool, and as many that wait."""

START_S, WARM_UP_S = 4.0, 7.0
"""Requests begin one after the other, so that their arrival is no burst; what is measured comes later."""


class Tenant(msgspec.Struct):
    """A tenant, and its measured answers since the warm-up."""

    key: Key
    num_tokens: float = 0.0
    """The tokens of prompts and completions, weighted as engines charge them: a completion token is `DECODE_COST`."""
    num_answers: int = 0
    ttfts_ms: list[int] = []
    """Milliseconds to the first text of requests that began after the warm-up."""
    others: list[str] = []
    """The replies that were not answers, in words."""


class Fleet(msgspec.Struct):
    """The gateways over four paced engines, and the DSN of their database."""

    gateways: list[GatewayProcess]
    dsn: str


@contextmanager
def running_fleet(dsn: str, data_dir: Path) -> Iterator[Fleet]:
    """Serve one model over four paced engines and a migrated database until the context is left."""
    folder = make_model_folder(data_dir / POOL)
    settings = Settings(
        data_dir=data_dir, model=str(folder), model_name=POOL, drain_seconds=1.0, max_connections_per_address=8192
    )
    settings.run_dir.mkdir(parents=True, exist_ok=True)
    addresses = [f"ipc://{settings.run_dir}/{number}.sock" for number in range(NUM_REPLICAS)]
    with ExitStack() as stack:
        for address in addresses:
            flags = ["--endpoint", address, "--model-dir", str(folder)]
            flags += ["--step-s", str(STEP_S), "--max-num-seqs", str(PLACES)]
            engine = ChildProcess([sys.executable, "-m", "tests.faults.pools.paced_engine", *flags])
            engine.start()
            stack.callback(engine.kill)
        asyncio.run(_rows(dsn, folder, addresses))
        gateways = [GatewayProcess(settings, dsn, number) for number in range(2)]
        for gateway in gateways:
            stack.callback(gateway.close)
            gateway.start()
        for gateway in gateways:
            gateway.wait_ready()
        yield Fleet(gateways, dsn)


async def _rows(dsn: str, folder: Path, addresses: list[str]) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        async with conn.transaction():
            digest = model_digest(folder)
            assert await make_pool(conn, POOL, model=POOL, folder=folder, base_digest=digest, address=addresses[0])
        [pool] = await list_served(conn)
        for address in addresses[1:]:
            await add_running_replica(conn, pool.row.id, 1, address)
    finally:
        await conn.close()


async def ask(
    port: int, key: Key, prompt: list[int], max_tokens: int, *, model: str = POOL
) -> tuple[int | None, int, str]:
    """Send a streamed request over a new connection.

    Return the milliseconds to its first text (None if none came), max_tokens, and the last line of the reply.

    max_tokens: the tokens of the answer.
    """
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    head = [
        "POST /v1/completions HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Authorization: Bearer {key.secret}",
        "Connection: close",
        f"Content-Length: {len(data)}",
    ]
    begun_s = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write("\r\n".join([*head, "", ""]).encode() + data)
        ttft_ms, last = None, ""
        async for raw in reader:
            line = raw.decode().strip()
            if line.startswith("data: {") and ttft_ms is None:
                ttft_ms = round((time.monotonic() - begun_s) * 1e3)
            if line.startswith(("data:", "{", "HTTP/1.1 ")):
                last = line
        return ttft_ms, max_tokens, last
    finally:
        writer.close()


async def _run(fleet: Fleet, num_noisy: int, measured_s: float, seed: int) -> tuple[Tenant, Tenant]:
    """Run a victim beside a tenant with `num_noisy` running requests. Return both, with answers since the warm-up.

    measured_s: the seconds that are measured after the warm-up.
    """
    tenants = [Tenant(await make_key(fleet.dsn, f"{name}-{num_noisy}")) for name in ("victim", "noisy")]
    turns, begun_s = itertools.count(), time.monotonic()

    async def client(tenant: Tenant, number: int) -> None:
        rng = random.Random(f"{seed}-{number}-{tenant.key.id}")
        await asyncio.sleep(rng.random() * START_S)
        while True:
            port = fleet.gateways[next(turns) % len(fleet.gateways)].port
            prompt = [rng.randrange(3, 250) for _ in range(rng.randrange(20, 60))]
            is_measured = time.monotonic() - begun_s > WARM_UP_S
            ttft_ms, num_tokens, last = await ask(port, tenant.key, prompt, rng.randrange(10, 30))
            if last != "data: [DONE]":
                tenant.others.append(last)
                await asyncio.sleep(0.1)
            elif time.monotonic() - begun_s > WARM_UP_S:
                tenant.num_tokens += len(prompt) + DECODE_COST * num_tokens
                tenant.num_answers += 1
                if is_measured and ttft_ms is not None:
                    tenant.ttfts_ms.append(ttft_ms)

    counts = (QUIET, num_noisy)
    clients = [client(tenant, each) for tenant, count in zip(tenants, counts, strict=True) for each in range(count)]
    tasks = [asyncio.create_task(each) for each in clients]
    await asyncio.sleep(WARM_UP_S + measured_s)
    failed = [task.exception() for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not failed, failed[0]
    return tenants[0], tenants[1]


async def figures(fleet: Fleet, num_noisy: int, measured_s: float) -> tuple[float, float]:
    """Return the victim's share beside num_noisy requests of another tenant, and its p99 time to a first text.

    measured_s: the seconds that are measured after the warm-up.
    """
    async with asyncio.timeout(PATIENCE_S):
        victim, noisy = await _run(fleet, num_noisy, measured_s, seed=0)
    assert victim.others == [] and noisy.others == [], (victim.others[:3], noisy.others[:3])
    share = victim.num_tokens / (victim.num_tokens + noisy.num_tokens)
    p99_ms = percentile(victim.ttfts_ms, 0.99)
    print(
        f"{QUIET} requests beside {num_noisy}: share {share:.3f} of {victim.num_answers + noisy.num_answers} answers, "
        f"first text p50 {percentile(victim.ttfts_ms, 0.5):.0f} ms, p99 {p99_ms:.0f} ms",
        file=sys.stderr,
    )
    return share, p99_ms
