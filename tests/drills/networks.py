"""Networks that are cut between gateways and engines, and between gateways and the database.

Gateways connect from a network namespace of their own, over a pair of virtual cables each to the database and to the
engines. A cut is silent: packets of this side go to a station that does not exist, and neither side is notified. Takes
root.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import msgspec

from gateway.postgres.placement import home_of
from tests.drills.drill import CannotRun, Drill, Outcome, measure
from tests.drills.ground import Ground, running_ground
from tests.drills.processes import BEGUN
from tests.drills.traffic import Traffic
from tests.faults.processes import Postgres

CUT_S = 12.0
NOBODY = "02:00:00:00:00:01"
SUBNETS = {"database": "10.213.77", "engines": "10.213.78"}


class Cables(msgspec.Struct, frozen=True):
    """The virtual cables of a drill's installation."""

    namespace: str
    """The gateways' network namespace."""
    devices: dict[str, str]
    """The network devices of this side, by what is behind them."""

    @contextmanager
    def cut(self, what: str) -> Iterator[None]:
        """Drop all packets to the gateways from what is behind one cable, until the context is left.

        what: the cable, by a key of `devices`.
        """
        there = f"{SUBNETS[what]}.2"
        _ip("neigh", "replace", there, "lladdr", NOBODY, "dev", self.devices[what], "nud", "permanent")
        try:
            yield
        finally:
            _ip("neigh", "del", there, "dev", self.devices[what])


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode:
        raise CannotRun(f"ip {' '.join(words)}: {done.stderr.strip()}")


@contextmanager
def laid_cables() -> Iterator[Cables]:
    """Make a network namespace with a cable for each purpose; remove all of it when the context is left."""
    if os.geteuid():
        raise CannotRun("takes root, for networks of its own")
    number = secrets.token_hex(3)
    cables = Cables(f"lorikeet-{number}", {what: f"lk{what[:1]}{number}" for what in SUBNETS})
    try:
        _ip("netns", "add", cables.namespace)
        for what, device in cables.devices.items():
            _ip("link", "add", device, "type", "veth", "peer", "name", f"{device}g", "netns", cables.namespace)
            _ip("address", "add", f"{SUBNETS[what]}.1/24", "dev", device)
            _ip("link", "set", device, "up")
            _ip("-n", cables.namespace, "address", "add", f"{SUBNETS[what]}.2/24", "dev", f"{device}g")
            _ip("-n", cables.namespace, "link", "set", f"{device}g", "up")
        yield cables
    finally:
        subprocess.run(["ip", "netns", "del", cables.namespace], capture_output=True)


@contextmanager
def wired_ground(folder: Path, cables: Cables) -> Iterator[Ground]:
    """Give an installation whose gateways reach the database and the engines over cables alone."""
    (folder / "database").mkdir()
    (folder / "database").chmod(0o711)
    postgres = Postgres(folder / "database", settings={"listen_addresses": f"{SUBNETS['database']}.1"})
    rules = home_of(folder / "database") / "cluster" / "pg_hba.conf"
    with rules.open("a") as file:
        file.write(f"host all all {SUBNETS['database']}.0/24 scram-sha-256\n")
    asyncio.run(_reload(postgres.dsn))
    parts = urlsplit(postgres.dsn)
    dsn = f"postgresql://{parts.username}:{parts.password}@{SUBNETS['database']}.1/postgres?sslmode=disable"
    (folder / "data").mkdir()
    with running_ground(
        folder / "data",
        postgres=postgres,
        dsn=dsn,
        host=f"{SUBNETS['engines']}.1",
        gateways=({"network": cables.namespace},) * 2,
    ) as ground:
        yield ground


async def _reload(dsn: str) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute("SELECT pg_reload_conf()")
    finally:
        await conn.close()


def cut(what: str, folder: Path, rng: random.Random) -> Outcome:
    with laid_cables() as cables, wired_ground(folder, cables) as ground:

        def fault(ground: Ground, traffic: Traffic, rng: random.Random) -> str:
            before = traffic.outcomes()
            with cables.cut(what):
                time.sleep(CUT_S)
            met = traffic.outcomes() - before
            return ", ".join(f"{count} {name}" for name, count in met.most_common(4)) + " while cut"

        return measure(ground, fault, rng, BEGUN)


DRILLS = (
    Drill("network cut: database", "most requests go on for 12 s, some are refused with 503", partial(cut, "database")),
    Drill("network cut: engines", "refused with 503 or cut until it is back", partial(cut, "engines")),
)
