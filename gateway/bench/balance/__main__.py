"""Compare policies that choose among replicas: hit rate of adapters, balance, waits, what a new replica moves.

Simulated time: everything but the microseconds of a choice is the same in every run of a seed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

import msgspec

from gateway.bench.balance.compare import Row, compare
from gateway.bench.balance.model import SimulationParameters, arrivals
from gateway.bench.balance.policies import POLICIES
from gateway.bench.balance.references import belady, best_static_placement

HEADER = (
    f"{'policy':<30} {'hit rate':>8} {'of static':>9} {'busiest':>8} {'wait p50':>9} {'p99 ms':>7}"
    f" {'+1 moves':>9} {'-1 moves':>9} {'pick p50':>9} {'p99 us':>7}"
)


def rows(world: SimulationParameters) -> Iterator[Row | tuple[str, float]]:
    """Yield the references, then a row of each policy."""
    requests = arrivals(world)
    static = best_static_placement(world)
    yield "best static placement", static
    yield "Belady, one cache", belady(world, requests)
    for kind in POLICIES:
        yield compare(kind, world, requests, static)


def table_line(row: Row | tuple[str, float]) -> str:
    """Return a row as a line of text."""
    if isinstance(row, tuple):
        return f"{row[0]:<30} {row[1]:>8.3f}"
    return (
        f"{row.policy:<30} {row.hit_rate:>8.3f} {row.ratio_to_static:>9.3f} {row.busiest:>7.2f}x"
        f" {row.wait_ms_p50:>9.0f} {row.wait_ms_p99:>7.0f} {row.moved_by_one_more:>8.1%} {row.moved_by_one_less:>8.1%}"
        f" {row.pick_us_p50:>9.1f} {row.pick_us_p99:>7.1f}"
    )


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m gateway.bench.balance", description=__doc__)
    default = SimulationParameters()
    for name, what in (
        ("replicas", "in the pool"),
        ("adapters", "that are asked for"),
        ("slots", "for adapters on a replica"),
        ("places", "in a replica's batch"),
        ("gateways", "that pick, each by itself"),
        ("requests", "of a run; the second half is counted"),
        ("seed", "of the requests and of the policies"),
    ):
        parser.add_argument(f"--{name}", type=int, default=getattr(default, name), help=f"{what} (%(default)s)")
    for name, what in (
        ("zipf", "exponent of the adapters' popularity"),
        ("load", "requests at a replica on average"),
        ("heartbeat-s", "seconds between two pictures of a replica"),
    ):
        value = getattr(default, name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=float, default=value, help=f"{what} (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON line per row instead of a table")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the rows of all policies; return the exit status.

    argv: the words of the command line, without the program's name; None: those of this process.
    """
    args = vars(parse_arguments(argv))
    as_json = args.pop("json")
    if not as_json:
        sys.stdout.write(f"{HEADER}\n")
    for row in rows(SimulationParameters(**args)):
        if as_json:
            shown = {"policy": row[0], "hit_rate": row[1]} if isinstance(row, tuple) else row
            sys.stdout.write(f"{msgspec.json.encode(shown).decode()}\n")
        else:
            sys.stdout.write(f"{table_line(row)}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
