"""Hostile adapters uploaded one after the other, beside requests that go on."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import httpx

from tests.adapters.hostile.mutants import make
from tests.drills.drill import Drill, Outcome, measure
from tests.drills.ground import Ground, running_ground
from tests.drills.growth import MIB, rss_bytes
from tests.drills.traffic import Traffic
from tests.gateway.admin.adapter_uploads import CONFIG, WEIGHTS
from tests.installation.tenants import make_key, make_operator_key
from tests.patience import PATIENCE_S

NUM_PROJECTS, NUM_OF_EACH = 8, 4
MAX_GROWN_BYTES = 256 * MIB


def _files_of(made: Path) -> dict[str, bytes]:
    """Return the files to upload of a hostile folder, or the hostile file."""
    if made.is_dir():
        return {name: (made / name).read_bytes() for name in (CONFIG, WEIGHTS) if (made / name).is_file()}
    return {"file": made.read_bytes()}


def _make(seed: int, folder: Path) -> dict[str, bytes]:
    folder.mkdir(parents=True)
    return _files_of(make(seed, folder))


async def _flood(ground: Ground, folder: Path, seed: int) -> tuple[Counter[int], int]:
    gateway, statuses = ground.gateways[0], Counter[int]()
    assert gateway.pid is not None
    key, before, most = await make_operator_key(ground.postgres.dsn), rss_bytes(gateway.pid), 0
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=gateway.url, headers=headers, timeout=PATIENCE_S, trust_env=False) as http:
        for number in range(NUM_PROJECTS):
            project = (await make_key(ground.postgres.dsn, f"hostile {number}")).project_id
            for index in range(NUM_OF_EACH):
                files = _make(seed + number * NUM_OF_EACH + index, folder / f"{number}-{index}")
                url = f"/v1/organization/projects/{project}/adapters"
                statuses[(await http.post(url, data={"name": "hostile"}, files=files)).status_code] += 1
                most = max(most, rss_bytes(gateway.pid) - before)
    return statuses, most


def hostile_adapters(folder: Path, rng: random.Random) -> Outcome:
    data = folder / "data"
    data.mkdir()

    def fault(ground: Ground, traffic: Traffic, rng: random.Random) -> str:
        statuses, most = asyncio.run(_flood(ground, folder / "made", rng.randrange(1 << 20)))
        remark = f"{dict(sorted(statuses.items()))}, RSS + {most / MIB:.0f} MiB"
        assert all(status < 500 for status in statuses) and most < MAX_GROWN_BYTES, remark
        return remark

    with running_ground(data) as ground:
        return measure(ground, fault, rng)


DRILLS = (Drill("hostile adapters", "refused by name, no fault of the server, nobody waits", hostile_adapters),)
