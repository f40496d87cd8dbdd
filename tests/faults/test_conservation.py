"""Whatever is killed, whenever: client-seen <= billed <= produced, each attempt once, nothing reserved by anybody who
is gone.

Half of the requests go to an experiment whose shadow arm gets copies of the requests, for which the same holds.

A point is a fault at a random moment of a streaming load. `FIRST_SEED=k` with `--full` begins with seed k.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg

from gateway.domain.billing.book import SHADOW_TIER
from tests.faults.conservation import check_conservation
from tests.faults.processes import Gateway
from tests.faults.site import Site
from tests.faults.watcher import Watcher
from tests.gateway.experiments.making import ArmOf, start_experiment
from tests.gateway.live import BASE

POINTS_PER_SEED = 20
FULL_POINTS = 1000
NUM_CLIENTS = 12
SEEDS_PER_FREEZE = 3
"""One seed in this many freezes the database, once, since a database is slow to freeze and to thaw. Gateways and
engines, which may be frozen past their heartbeats, are frozen at full size only."""


EXPERIMENT = "support-bot"


async def start_shadowed(site: Site) -> None:
    """Start an experiment of the site's tenant, with a shadow arm that gets a copy of each request."""
    conn = await asyncpg.connect(site.postgres.dsn)
    try:
        arms = (ArmOf("control"), ArmOf("warm"))
        await start_experiment(conn, site.key.project_id, arms, pool=BASE, model=EXPERIMENT, shadow=ArmOf("dark"))
    finally:
        await conn.close()


class Faults:
    """Faults of a site, drawn by weight. Killed processes are started again at once, so that some are killed while they
    start."""

    def __init__(self, site: Site, rng: random.Random, *, with_freeze: bool, with_long_freezes: bool) -> None:
        self._site = site
        self._rng = rng
        self._kinds: list[tuple[Callable[[], None], int]] = [
            (self._kill_gateway, 8),
            (self._kill_engine, 5),
            (self._kill_gateway_and_engine, 3),
            (self._kill_all, 1),
            (site.postgres.restart, 1),
            (site.postgres.kill, 1),
            (self._freeze_gateway, int(with_long_freezes)),
            (self._freeze_engine, int(with_long_freezes)),
        ]
        self._with_freeze = with_freeze

    def cause_one(self) -> None:
        if self._with_freeze:
            self._with_freeze = False
            with self._site.postgres.frozen():
                time.sleep(self._rng.uniform(0.2, 1.0))
                self._kill_gateway()
            return
        kinds, weights = zip(*self._kinds, strict=True)
        self._rng.choices(kinds, weights)[0]()

    def _kill_gateway(self) -> None:
        self._again(self._rng.choice(self._site.gateways))

    def _kill_engine(self) -> None:
        self._site.engine.kill()
        self._site.engine.start()

    def _kill_gateway_and_engine(self) -> None:
        gateway = self._rng.choice(self._site.gateways)
        gateway.kill()
        self._kill_engine()
        gateway.start()

    def _kill_all(self) -> None:
        for gateway in self._site.gateways:
            gateway.kill()
        self._kill_engine()
        for gateway in self._site.gateways:
            gateway.start()

    def _freeze_gateway(self) -> None:
        """Freeze a gateway for up to five seconds, which may be long enough that its engine gives it up."""
        with self._rng.choice(self._site.gateways).frozen():
            time.sleep(self._rng.uniform(0.1, 5.0))

    def _freeze_engine(self) -> None:
        with self._site.engine.frozen():
            time.sleep(self._rng.uniform(0.1, 5.0))

    @staticmethod
    def _again(gateway: Gateway) -> None:
        gateway.kill()
        gateway.start()


async def load(site: Site, rng: random.Random, stop: threading.Event) -> None:
    """Send requests from many clients, some of which leave early, until `stop` is set; return once all clients have
    finished."""

    async def client() -> None:
        while not stop.is_set():
            fields: dict[str, object] = {"max_tokens": rng.randint(1, 80), "n": rng.choice([1, 1, 1, 2])}
            if rng.random() < 0.2:
                fields["stop"] = "v"
            if rng.random() < 0.5:
                fields["stream_options"] = {"include_usage": True}
            if rng.random() < 0.5:
                fields |= {"model": EXPERIMENT, "user": f"user-{rng.randrange(20)}"}
            leave_after = rng.randint(0, 30) if rng.random() < 0.3 else None
            seen = await Watcher(site, rng.randrange(len(site.gateways)), **fields).run(leave_after)
            if seen.status != 200:
                await asyncio.sleep(0.05)  # refused: what a client does with retry-after

    await asyncio.gather(*(client() for _ in range(NUM_CLIENTS)))


def run_seed(folder: Path, seed: int, *, full: bool) -> int:
    """Run a site under faults until all is quiet again; return the number of streams that faults cut.

    full: True: the long size; False: that of CI.

    Raises AssertionError: when usage was lost or billed twice.
    """
    rng = random.Random(seed)
    folder.mkdir(mode=0o711)
    site, stop = Site(folder, num_gateways=2), threading.Event()
    try:
        site.start()
        asyncio.run(start_shadowed(site))
        faults = Faults(site, rng, with_freeze=seed % SEEDS_PER_FREEZE == 0, with_long_freezes=full)
        # The clients have a thread of their own: a database ends with the thread that started it.
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(asyncio.run, load(site, random.Random(seed), stop))
            try:
                for _ in range(POINTS_PER_SEED):
                    time.sleep(rng.uniform(0.02, 0.25))
                    faults.cause_one()
            finally:
                stop.set()
                running.result()
        for gateway in site.gateways:
            gateway.wait_ready()
        site.settle()
        rows = check_conservation(site)
    finally:
        site.close()
    num_copies = sum(row.service_tier == SHADOW_TIER for row in rows.values())
    assert num_copies, "copies have to run"
    num_cut = sum(client.num_tokens > 0 and not client.has_ended for client in site.seen)
    print(
        f"seed {seed}: {len(site.seen)} requests, {len(rows)} rows, {num_copies} of copies, {num_cut} streams cut",
        flush=True,
    )
    return num_cut


def test_usage_is_conserved_at_faults_at_random_points(open_folder: Path, tmp_path: Path, full: bool) -> None:
    first = int(os.environ.get("FIRST_SEED", "0")) if full else 0
    seeds = range(first, FULL_POINTS // POINTS_PER_SEED) if full else [first]
    num_cut = sum(run_seed(open_folder / f"{tmp_path.name}-{seed}", seed, full=full) for seed in seeds)
    assert num_cut >= len(seeds), "the faults have to meet something, on the busiest machine"
