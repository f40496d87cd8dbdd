"""The installation of a drill: a PostgreSQL of its own, two base models over fake engines, two gateways, their traffic.

After a drill everything must add up: no answer is another model's, each answer is billed once with its tokens, nothing
is billed that no engine made, and all that an engine made is billed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from gateway.db.migrate import migrate
from tests.drills.traffic import Traffic
from tests.faults.pools.load import check_billed, differences
from tests.faults.pools.world import (
    BASES,
    NUM_ADAPTERS,
    Engines,
    World,
    asked_of_fake,
    name_of,
    rotation,
    running_world,
)
from tests.faults.processes import Postgres
from tests.installation.gateway_process import GatewayProcess
from tests.installation.waiting import wait_until
from tests.patience import PATIENCE_S

PLACES = 8
"""The number of sequences that an engine computes at once."""

TOKENS_PER_S = 20
MEAN_TOKENS = 13.5
"""The mean tokens of an answer, as `World.random_request` asks for them."""


class Ground:
    """The processes of a drill's installation, and their traffic.

    folder: the data folder, which every user can pass through. replicas: the number of replicas of each base.
    """

    def __init__(self, folder: Path, postgres: Postgres, world: World, engines: Engines, produced: Path) -> None:
        self.folder = folder
        self.postgres = postgres
        self.world = world
        self.engines = engines
        self._produced = produced

    @property
    def gateways(self) -> list[GatewayProcess]:
        return self.world.gateways

    @property
    def capacity_per_s(self) -> float:
        """The number of requests that all places together could answer in a second."""
        num_engines = sum(len(engines) for engines in self.engines.of_base.values())
        return num_engines * PLACES * TOKENS_PER_S / MEAN_TOKENS

    async def warm_up(self) -> None:
        """Ask each gateway for each model once, since serving without the database is promised for known models
        alone."""
        models = [(base, number) for base in BASES for number in range(NUM_ADAPTERS + 1)]
        async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as http:
            for gateway in self.gateways:
                asked = [
                    asked_of_fake(
                        f"{base}:{name_of(base, number)}" if number else base,
                        rotation(base, number),
                        [5, 6, 7],
                        1,
                        stream=False,
                    )
                    for base, number in models
                ]
                outcomes = await asyncio.gather(*(self.world.ask(http, each, gateway) for each in asked))
                assert set(outcomes) == {"answered"}, outcomes

    @contextmanager
    def traffic(self, share: float, seed: int = 0) -> Iterator[Traffic]:
        """Send requests at this share of the capacity, until the context is left."""
        traffic = Traffic(self.world, share * self.capacity_per_s, seed)
        traffic.start()
        try:
            yield traffic
        finally:
            traffic.stop()

    def check(self) -> None:
        """Check the ledger against clients and engines.

        Raises AssertionError: when they differ.
        """
        asyncio.run(check_billed(self.world))
        wait_until(self._adds_up, lambda: f"the ledger and the engines differ: {self.differences()}")

    def differences(self) -> list[str]:
        """Return a line for each request that is billed for tokens never made, or whose tokens are not billed."""
        return asyncio.run(differences(self.world.dsn, self._produced))

    def settle(self) -> None:
        """Stop the gateways gracefully, so that all usage is in the ledger.

        Raises AssertionError: when usage stays behind in a journal.
        """
        assert [gateway.terminate() for gateway in self.gateways] == [0] * len(self.gateways)
        left = [path for path in (self.folder / "journal").rglob("*") if path.suffix in (".journal", ".damaged")]
        assert left == [], f"journals stayed behind: {left}"

    def _adds_up(self) -> bool:
        return not self.differences()


@contextmanager
def running_ground(
    folder: Path,
    *,
    num_replicas: int = 1,
    postgres: Postgres | None = None,
    dsn: str = "",
    produced: Path | None = None,
    **of_world: Any,
) -> Iterator[Ground]:
    """Give an installation in a folder, which runs until the context is left.

    postgres: a running server; without one, a server is started in the folder.
    dsn: for gateways, where they reach the server by another way than this process.
    produced: the file in which engines note tokens; without one, a file in the folder.
    of_world: further arguments of `running_world`.
    num_replicas: the number of engines.
    """
    folder.chmod(0o711)
    produced = produced or folder / "produced"
    own = Postgres(folder / "postgres") if postgres is None else postgres
    try:
        asyncio.run(migrate(own.dsn))
        flags = ("--tokens-per-s", str(TOKENS_PER_S), "--max-num-seqs", str(PLACES), "--produced", str(produced))
        world = running_world(
            dsn or own.dsn,
            folder,
            num_replicas=num_replicas,
            engine_flags=flags,
            **of_world,
        )
        with world as (made, engines):
            yield Ground(folder, own, made, engines, produced)
    finally:
        own.stop()
