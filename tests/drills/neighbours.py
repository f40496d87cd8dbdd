"""A tenant beside another one with a hundred times as many requests under way."""

from __future__ import annotations

import asyncio
import random
import resource
from pathlib import Path

from gateway.db.migrate import migrate
from tests.drills.drill import Drill, Outcome
from tests.faults.pools.rivals import QUIET, figures, running_fleet
from tests.faults.processes import Postgres

MEASURED_S = 20.0
MAX_SLOWER, MAX_UNFAIR = 1.5, 0.1


def noisy_neighbour(folder: Path, rng: random.Random) -> Outcome:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    postgres = Postgres(folder / "postgres")
    try:
        asyncio.run(migrate(postgres.dsn))
        with running_fleet(postgres.dsn, folder) as fleet:
            share, p99_ms = asyncio.run(figures(fleet, 100 * QUIET, MEASURED_S))
            _, equal_ms = asyncio.run(figures(fleet, QUIET, MEASURED_S))
    finally:
        postgres.stop()
    remark = f"share {share:.3f}; p99 of first texts {p99_ms:.0f} ms, beside an equal {equal_ms:.0f} ms"
    assert abs(share - 0.5) <= 0.5 * MAX_UNFAIR and p99_ms <= MAX_SLOWER * equal_ms, remark
    return Outcome(remark=remark)


DRILLS = (Drill("noisy neighbour", "half of the pool, and a p99 of at most 1.5 times", noisy_neighbour),)
