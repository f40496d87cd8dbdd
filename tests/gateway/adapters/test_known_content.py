"""Two tenants who upload the same bytes learn nothing of each other, not even from how long an upload takes."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from pathlib import Path

import httpx

from adapters.digest import canonical_digest
from adapters.inspection import BaseShape, Bounds, Report
from adapters.peft_format import read_adapter
from gateway.db.pool import Database
from tests.gateway.admin.adapter_uploads import CONFIG, WEIGHTS, upload
from tests.gateway.admin_server import serve_admin, write_adapter

NUM_PAIRS, NUM_PAIRS_FULL = 100, 400


async def inspect_here(path: Path, into: Path, base: BaseShape, bounds: Bounds, *, niceness: int) -> Report:
    """Inspect an adapter in this process.

    A process of its own takes longest of all and knows nothing of the store, so that it would hide the difference.

    niceness: not read.
    """
    return await asyncio.to_thread(_inspect, path, into)


def _inspect(path: Path, into: Path) -> Report:
    size_bytes = sum(Path(shutil.copy(path / name, into)).stat().st_size for name in (CONFIG, WEIGHTS))
    adapter = read_adapter(into)
    return Report(canonical_digest(into), adapter.rank_max, size_bytes, len(adapter.modules), 0, [], {})


async def seconds_of_upload(client: httpx.AsyncClient, project: str, number: int, folder: Path) -> float:
    start_s = time.perf_counter()
    reply = await upload(client, project, f"a{number}", folder)
    assert (reply.status_code, reply.json()["changed"]) == (200, True), reply.text
    return time.perf_counter() - start_s


async def test_the_time_of_an_upload_does_not_tell_that_another_tenant_has_the_bytes(
    database: Database, tmp_path: Path, full: bool
) -> None:
    """Known bytes take longer than unknown ones with a probability of about a half.

    Each content is unknown once and known once; of two uploads, in random order, one is of either kind.
    """
    num_pairs, chance = NUM_PAIRS_FULL if full else NUM_PAIRS, random.Random(0)
    folders = [write_adapter(tmp_path / str(number), seed=number) for number in range(num_pairs + 1)]
    known: list[float] = []
    unknown: list[float] = []
    async with (
        serve_admin(database, tmp_path / "server", inspect=inspect_here) as server,
        server.client(server.operator_key) as client,
    ):
        names = ("acme", "globex")
        made = [(await client.post("/projects", json={"name": name})).json()["id"] for name in names]
        first, second = (f"/projects/{project_id}" for project_id in made)
        await seconds_of_upload(client, first, 0, folders[0])
        for number in range(num_pairs):
            pair = [(unknown, first, number + 1), (known, second, number)]
            for times, project, which in chance.sample(pair, 2):
                times.append(await seconds_of_upload(client, project, which, folders[which]))
        assert len(server.services.store.digests()) == num_pairs + 1
    longer = sum(mine > other for mine in known for other in unknown) / num_pairs**2
    print(f"known bytes take longer than unknown ones with probability {longer:.3f}")
    assert 0.35 < longer < 0.65  # a deviation of 0.15 is nearly four of one such measure
