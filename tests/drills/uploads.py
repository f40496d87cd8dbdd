"""Hostile adapters uploaded one after the other: what they cost a gateway, and the requests beside them."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import shutil
from collections import Counter
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import httpx
import structlog

from gateway.adapters.cooldown import NUM_FREE
from gateway.admin.adapters.upload import ARCHIVE
from gateway.db.migrate import migrate
from tests.adapters import folders
from tests.adapters.hostile.mutants import make
from tests.drills.drill import Drill, Outcome, measure
from tests.drills.ground import Ground, running_ground
from tests.drills.growth import MIB, rss_bytes
from tests.drills.traffic import Traffic
from tests.faults.processes import Postgres
from tests.gateway.admin.adapter_uploads import CONFIG, WEIGHTS
from tests.gateway.model_folder import make_model_folder
from tests.installation.beats import longest_beat_s
from tests.installation.live_gateway import LiveGateway, running_gateways
from tests.installation.tenants import make_key, make_operator_key
from tests.patience import PATIENCE_S

NUM_PROJECTS, NUM_OF_EACH = 8, 4
MAX_GROWN_BYTES = 256 * MIB
MAX_BEAT_S, TRIES = 0.05, 5


def _files_of(made: Path) -> dict[str, bytes]:
    """Return the files to upload of a hostile folder, or the hostile file."""
    if made.is_dir():
        return {name: (made / name).read_bytes() for name in (CONFIG, WEIGHTS) if (made / name).is_file()}
    return {ARCHIVE: made.read_bytes()}


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


def model_of_mutants(folder: Path) -> Path:
    """Write a model with the shape that the fuzzer's adapters fit, so that undamaged ones are accepted."""
    config = make_model_folder(folder) / "config.json"
    shape = {
        "hidden_size": folders.HIDDEN,
        "intermediate_size": folders.INTERMEDIATE,
        "num_hidden_layers": folders.NUM_LAYERS,
        "num_attention_heads": folders.HIDDEN // folders.KEY_VALUE,
        "num_key_value_heads": 1,
    }
    config.write_text(json.dumps(json.loads(config.read_text()) | shape))
    return folder


class Uploader:
    """A client that uploads mutants to a gateway in this process, and records how long its loop was blocked.

    longest_s: the longest time for which an upload blocked the loop. slow: a line for each mutant that blocked it for
    too long in every try.
    """

    def __init__(self, gateway: LiveGateway, dsn: str, operator_key: str, folder: Path) -> None:
        self.statuses = Counter[int]()
        self.longest_s = 0.0
        self.slow: list[str] = []
        self._gateway = gateway
        self._dsn = dsn
        self._folder = folder
        self._project = ""
        self._num_left = 0
        headers = {"authorization": f"Bearer {operator_key}"}
        self._http = httpx.Client(base_url=gateway.url, headers=headers, timeout=PATIENCE_S, trust_env=False)

    def upload(self, seed: int) -> None:
        """Upload a mutant; repeat it a few times if it blocked the loop, since other work of the machine can only
        make that time longer."""
        made = self._folder / str(seed)
        files = _make(seed, made)
        shutil.rmtree(made)
        beats_s = [self._once(files)]
        while beats_s[-1] > MAX_BEAT_S and len(beats_s) < TRIES:
            beats_s.append(self._once(files))
        self.longest_s = max(self.longest_s, min(beats_s))
        if min(beats_s) > MAX_BEAT_S:
            self.slow.append(f"seed {seed}: {1000 * min(beats_s):.0f} ms")

    def _once(self, files: dict[str, bytes]) -> float:
        if not self._num_left:
            self._project = asyncio.run(make_key(self._dsn, f"hostile {self.statuses.total()}")).project_id
            self._num_left = NUM_FREE
        self._num_left -= 1
        loop, is_over = self._gateway.loop, Future[None]()
        assert loop is not None
        beating = asyncio.run_coroutine_threadsafe(longest_beat_s(is_over), loop)
        try:
            url = f"/v1/organization/projects/{self._project}/adapters"
            self.statuses[self._http.post(url, data={"name": "hostile"}, files=files).status_code] += 1
        finally:
            is_over.set_result(None)
        return beating.result(PATIENCE_S)


def many_hostile_adapters(number: int, folder: Path, rng: random.Random) -> Outcome:
    """Upload a number of the fuzzer's mutants, three for each project: the most before the project has to pause."""
    (folder / "data").mkdir()
    (folder / "made").mkdir()
    postgres, log = Postgres(folder / "postgres"), (folder / "gateway.log").open("w")
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(log))
    try:
        asyncio.run(migrate(postgres.dsn))
        operator_key = asyncio.run(make_operator_key(postgres.dsn))
        model = model_of_mutants(folder / "model")
        with running_gateways(postgres.dsn, model, data_dir=folder / "data") as installed:
            gc.collect()
            gc.freeze()  # as a gateway does once it has started
            uploader = Uploader(installed.gateway, postgres.dsn, operator_key, folder / "made")
            first = rng.randrange(1 << 30)
            for seed in range(first, first + number):
                uploader.upload(seed)
    finally:
        gc.unfreeze()
        structlog.reset_defaults()
        log.close()
        postgres.stop()
    remark = (
        f"{number} from seed {first}: {dict(sorted(uploader.statuses.items()))}; the loop is kept for at most "
        f"{1000 * uploader.longest_s:.0f} ms of processor time; load {os.getloadavg()[0]:.0f}"
    )
    assert set(uploader.statuses) == {200, 400}, remark
    assert not uploader.slow, f"{remark}; {uploader.slow[:5]}"
    return Outcome(remark=remark)


DRILLS = (
    Drill("hostile adapters", "refused by name, no fault of the server, nobody waits", hostile_adapters),
    Drill(
        "10,000 hostile adapters",
        "refused by name or taken; none keeps the loop for 50 ms of processor time",
        partial(many_hostile_adapters, 10_000),
        partial(many_hostile_adapters, 100),
    ),
)
