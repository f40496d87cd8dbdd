"""A tenant beside neighbours who make noise: how long it waits for its first text, beside them and alone."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from gateway.db.migrate import migrate
from tests.drills.drill import Drill, Outcome, print_progress
from tests.drills.ground import Ground, running_ground
from tests.drills.noise import CONTEXT, KINDS, Noise, neighbour, prepare
from tests.drills.processors import Processors, Seconds, busy_processors, seconds_between
from tests.engine.scheduling.fairness_simulator import percentile
from tests.faults.pools.rivals import QUIET, ask, figures, running_fleet
from tests.faults.processes import Postgres
from tests.installation.tenants import Key, make_key

MEASURED_S = 20.0
MAX_SLOWER, MAX_UNFAIR = 1.5, 0.1
VICTIM_PER_S, VICTIM_TOKENS = 20.0, 4
SETTLE_S = 1.0
"""Seconds to wait after the noise begins or ends before requests are measured."""

TRIES = 2
"""The number of measurements, of which the least value counts: other work of the machine only ever adds to it."""


class Size(msgspec.Struct, frozen=True):
    """The size of a measurement."""

    rounds: int
    """The number of rounds. In a round the victim is alone and then beside noise, phase_s seconds each."""
    phase_s: float
    num_events: int
    """The number of usage events in the ledger, about which the noise asks for reports."""


FULL, SMALL = Size(6, 4.0, 300_000), Size(3, 4.0, 30_000)
"""A try of the full size takes a minute, and has 480 requests of the victim on either side."""


class VictimWaits(msgspec.Struct):
    """The victim's milliseconds to first text, and the processor seconds of all parts meanwhile."""

    alone_ms: list[int] = []
    """The milliseconds to first text of each request without noise."""
    beside_ms: list[int] = []
    """The milliseconds to first text of each request beside noise."""
    alone_busy: Seconds = {}
    """The processor seconds of each part without noise."""
    beside_busy: Seconds = {}
    """The processor seconds of each part beside noise."""
    alone_s: float = 0.0
    """The seconds measured without noise, up to the last answer of each phase."""
    beside_s: float = 0.0
    """The seconds measured beside noise, up to the last answer of each phase."""

    @property
    def ratio(self) -> float:
        return percentile(self.beside_ms, 0.99) / max(1.0, percentile(self.alone_ms, 0.99))

    def __str__(self) -> str:
        alone, beside = ([percentile(each, part) for part in (0.5, 0.99)] for each in (self.alone_ms, self.beside_ms))
        return (
            f"first text p50 {alone[0]:.0f} -> {beside[0]:.0f} ms, p99 {alone[1]:.0f} -> {beside[1]:.0f} ms, "
            f"ratio {self.ratio:.2f} of {len(self.alone_ms)} and {len(self.beside_ms)}"
        )

    def busy(self) -> str:
        """Return the number of processors that each part kept busy, with noise and without, in words."""
        alone = busy_processors(self.alone_busy, self.alone_s)
        return f"processors: {alone} -> {busy_processors(self.beside_busy, self.beside_s)}"


async def _ask_for(ground: Ground, key: Key, seconds: float, rng: random.Random) -> list[int]:
    """Send requests at random times for some seconds. Return the milliseconds to the first text of each."""
    ports = [gateway.port for gateway in ground.gateways]

    async def one() -> int:
        prompt = [rng.randrange(3, 250) for _ in range(rng.randrange(20, 60))]
        ttft_ms, _, last = await ask(rng.choice(ports), key, prompt, VICTIM_TOKENS, model="small")
        assert last == "data: [DONE]" and ttft_ms is not None, last
        return ttft_ms

    end_s, tasks = time.monotonic() + seconds, []
    while time.monotonic() < end_s:
        await asyncio.sleep(rng.expovariate(VICTIM_PER_S))
        tasks.append(asyncio.create_task(one()))
    return list(await asyncio.gather(*tasks))


async def _measure(ground: Ground, key: Key, noise: Noise, size: Size, rng: random.Random) -> VictimWaits:
    waits, parts = VictimWaits(), Processors(_parts(ground, noise))

    async def side(found_ms: list[int], busy: Seconds) -> float:
        await asyncio.sleep(SETTLE_S)
        before, begun_s = parts.seconds(), time.monotonic()
        found_ms += await _ask_for(ground, key, size.phase_s, rng)
        for name, taken in seconds_between(before, parts.seconds()).items():
            busy[name] = busy.get(name, 0.0) + taken
        return time.monotonic() - begun_s

    for number in range(size.rounds):
        waits.alone_s += await side(waits.alone_ms, waits.alone_busy)
        with noise.on():
            waits.beside_s += await side(waits.beside_ms, waits.beside_busy)
        print_progress(f"  round {number + 1} of {size.rounds}: {waits}")
    return waits


def _parts(ground: Ground, noise: Noise) -> dict[str, Callable[[], list[int]]]:
    return {
        "gateways": lambda: [gateway.pid for gateway in ground.gateways if gateway.pid],
        "database": lambda: [ground.postgres.pid],
        "engines": lambda: [engine.pid for engines in ground.engines.of_base.values() for engine in engines],
        "noise": lambda: [noise.pid],
    }


def measure_beside_noise(kind: str, size: Size, folder: Path, rng: random.Random) -> Outcome:
    """Measure a victim beside one kind of noise.

    Raises AssertionError: when the victim waits too long, where all noise was refused, and at a fault of the server.
    """
    data = folder / "data"
    data.mkdir()
    with running_ground(data, context=CONTEXT) as ground:
        print_progress(f"noisy neighbour: {kind}: preparing")
        site = asyncio.run(prepare(ground, kind, folder / "adapter", size.num_events))
        victim = asyncio.run(make_key(ground.postgres.dsn, "victim"))
        with neighbour(kind, site) as noise:
            tries = list[VictimWaits]()
            while not tries or (tries[-1].ratio > MAX_SLOWER and len(tries) < TRIES):
                print_progress(
                    f"try {len(tries) + 1} of at most {TRIES}, {2 * size.rounds * (SETTLE_S + size.phase_s):.0f} s"
                )
                tries.append(asyncio.run(_measure(ground, victim, noise, size, rng)))
                print_progress(f"  {tries[-1].busy()}")
        best = min(tries, key=lambda each: each.ratio)
        done = sum(noise.statuses[status] for status in KINDS[kind].done)
        statuses = ", ".join(f"{count} x {status}" for status, count in sorted(noise.statuses.items()))
        remark = f"{best} (try {len(tries)}); neighbour: {statuses}; {best.busy()}; load {os.getloadavg()[0]:.0f}"
        assert best.ratio <= MAX_SLOWER and done, remark
        assert not [status for status in noise.statuses if status >= 500 and status != 503], remark
        ground.settle()
        return Outcome(remark=remark)


def beside_inference(measured_s: float, folder: Path, rng: random.Random) -> Outcome:
    """Measure a victim beside a tenant with a hundred times as many requests under way, and beside an equal."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    postgres = Postgres(folder / "postgres")
    try:
        asyncio.run(migrate(postgres.dsn))
        with running_fleet(postgres.dsn, folder) as fleet:
            share, p99_ms = asyncio.run(figures(fleet, 100 * QUIET, measured_s))
            _, equal_ms = asyncio.run(figures(fleet, QUIET, measured_s))
    finally:
        postgres.stop()
    remark = (
        f"share {share:.3f}; p99 of first texts {p99_ms:.0f} ms, beside an equal {equal_ms:.0f} ms; "
        f"load {os.getloadavg()[0]:.0f}"
    )
    assert abs(share - 0.5) <= 0.5 * MAX_UNFAIR and p99_ms <= MAX_SLOWER * equal_ms, remark
    return Outcome(remark=remark)


DRILLS = (
    Drill(
        "noisy neighbour: inference",
        "beside 100 times as many requests, half of the pool and a p99 of at most 1.5 times",
        partial(beside_inference, MEASURED_S),
    ),
    *(
        Drill(
            f"noisy neighbour: {kind}",
            "the p99 of the time to the first text is at most 1.5 times that alone",
            partial(measure_beside_noise, kind, FULL),
            partial(measure_beside_noise, kind, SMALL),
        )
        for kind in KINDS
    ),
)
