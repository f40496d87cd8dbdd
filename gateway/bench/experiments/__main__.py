"""`python -m gateway.bench.experiments`: what experiments cost in process, without network and database.

Prints the time of an assignment, the time that experiments add to the path of a request, and that of a look at large
sums.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from array import array
from collections.abc import Sequence

import msgspec
import numpy as np

from gateway.bench.experiments.path import path_us
from gateway.domain.experiments.allocation import first_split, with_weights
from gateway.domain.experiments.assignment import NUM_BUCKETS, Exposed, Holdout, Split, assign, unit_digest
from gateway.domain.experiments.definition import Arm, Experiment, Guardrail, Metrics, Primary, Target, UnitSource
from gateway.domain.experiments.metrics import METRICS
from gateway.domain.experiments.results import SumsRow, Tally, UnitsRow, daily_results, results_of
from gateway.domain.experiments.sums import Sums

NUM_UNITS = 20_000
NUM_EXPOSED = 1_000_000
NUM_DAYS = 90


def assignment_us() -> dict[str, float]:
    """Return the median microseconds of CPU time of an assignment and its unit's digest, cheapest case first."""
    plain = first_split(bytes(range(32)), b"l" * 32, range(NUM_BUCKETS), (1, 1))
    held = msgspec.structs.replace(plain, holdout=Holdout(b"h" * 32, 500))
    keys = array("Q", np.sort(np.random.default_rng(1).integers(0, 1 << 64, NUM_EXPOSED, dtype=np.uint64)).tobytes())
    changed = with_weights(held, (2, 1), Exposed(keys, bytes([1]) * len(keys)))
    return {
        "an experiment of all units": _median_us(plain),
        "with a holdout": _median_us(held),
        f"and {NUM_EXPOSED:,} units exposed before its weights changed": _median_us(changed),
    }


def results_ms() -> dict[str, float]:
    """Return the milliseconds of one look at results, and of the looks of all days: 3 arms, 12 metrics, 90 days."""
    names = [name for name in METRICS if name != "error_rate"]
    experiment = Experiment(
        "bench",
        "bench",
        UnitSource("user"),
        tuple(Arm(name, 1, Target(name)) for name in ("a", "b", "c")),
        Metrics((Primary(names[0], "decrease"),), (Guardrail("error_rate"),), tuple(names[1:])),
    )
    sums = Sums(3_700, 1_900, 1_900, 1_800, 1_800, 900, 18_000, 90_000, 9_500)
    cells = [(day, 1, arm) for day in range(NUM_DAYS) for arm in range(3)]
    tally = Tally(
        {1: (1 / 3,) * 3},
        [UnitsRow(*cell, 3_700, 3_700) for cell in cells],
        [SumsRow(*cell, name, sums) for cell in cells for name in METRICS],
        days=NUM_DAYS,
    )
    one, all_days = [], []
    for _ in range(5):
        started = time.perf_counter()
        results_of(experiment, tally)
        between = time.perf_counter()
        daily_results(experiment, tally)
        one.append(between - started)
        all_days.append(time.perf_counter() - between)
    return {"one look": statistics.median(one) * 1e3, f"{NUM_DAYS} looks": statistics.median(all_days) * 1e3}


def _median_us(split: Split) -> float:
    project, units = b"p" * 32, [f"user-{number}@example.com" for number in range(NUM_UNITS)]
    rounds = []
    for _ in range(5):
        started = time.process_time()
        for unit in units:
            assign(split, unit, unit_digest(project, unit))
        rounds.append((time.process_time() - started) / NUM_UNITS)
    return statistics.median(rounds) * 1e6


def main(argv: Sequence[str] | None = None) -> int:
    """Print all tables of the benchmark; return the exit status.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    argparse.ArgumentParser(prog="python -m gateway.bench.experiments", description=__doc__).parse_args(argv)
    tables = (
        ("us an assignment", assignment_us()),
        ("us of CPU time added", path_us()),
        ("ms of results", results_ms()),
    )
    for unit, figures in tables:
        for name, value in figures.items():
            sys.stdout.write(f"{value:8.2f} {unit}, {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
