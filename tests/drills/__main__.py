"""Bring faults upon an installation under load, one after the other, and print the outcomes as a table.

`python -m tests.drills --list` names them; `--only` runs those whose names hold a text.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from tests.drills import (
    backups,
    clients,
    disks,
    distances,
    failover,
    neighbours,
    networks,
    processes,
    requests,
    uploads,
)
from tests.drills.drill import CannotRun, Drill, Outcome

DRILLS: tuple[Drill, ...] = (
    *processes.DRILLS,
    *disks.DRILLS,
    *networks.DRILLS,
    *distances.DRILLS,
    *failover.DRILLS,
    *clients.DRILLS,
    *uploads.DRILLS,
    *backups.DRILLS,
    *neighbours.DRILLS,
    *requests.DRILLS,
)


class Row(msgspec.Struct):
    """The line of one drill in the table."""

    name: str
    verdict: str
    """The outcome: "held", "BROKEN" with the reason as the outcome's remark, or "not here"."""
    seconds: float
    outcome: Outcome


def run(drill: Drill, seed: int, *, is_small: bool = False) -> Row:
    """Run a drill in a folder of its own, which is removed. is_small: in its small size, where it has one."""
    folder = Path(tempfile.mkdtemp(prefix="lorikeet-drill-"))
    folder.chmod(0o711)
    chosen = drill.small if is_small and drill.small else drill.run
    begun_s = time.monotonic()
    try:
        verdict, outcome = "held", chosen(folder, random.Random(f"{seed}-{drill.name}"))
    except CannotRun as reason:
        verdict, outcome = "not here", Outcome(remark=str(reason))
    except Exception as error:
        verdict, outcome = "BROKEN", Outcome(remark=f"{type(error).__name__}: {error}"[:600])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Row(drill.name, verdict, time.monotonic() - begun_s, outcome)


def line_of(row: Row) -> str:
    outcomes = dict(row.outcome.outcomes)
    answered, total = outcomes.pop("answered", 0), sum(row.outcome.outcomes.values())
    others = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items())) or "-"
    cells = [row.name, row.verdict, f"{answered} of {total}", others]
    cells += [f"{row.outcome.silence_s:.1f}", f"{row.outcome.back_after_s:.1f}", row.outcome.remark or "-"]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| drill | verdict | answered | other ends of requests | longest silence, s | answers again after, s | remark |\n"
    "|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.drills", description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true", help="name the drills and what each promises")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="drills whose names hold this text")
    parser.add_argument("--small", action="store_true", help="run drills of minutes in a smaller size")
    parser.add_argument("--seed", type=int, default=0, help="of victims, moments and requests")
    parser.add_argument("--json", action="store_true", help="print a JSON line for each drill instead of a table")
    args = parser.parse_args()
    chosen = [drill for drill in DRILLS if not args.only or any(text in drill.name for text in args.only)]
    if args.list:
        for drill in chosen:
            print(f"{drill.name:30} {drill.promise}")
        return 0
    if not args.json:
        print(HEAD, flush=True)
    rows = []
    for drill in chosen:
        rows.append(run(drill, args.seed, is_small=args.small))
        print(msgspec.json.encode(rows[-1]).decode() if args.json else line_of(rows[-1]), flush=True)
    return int(any(row.verdict == "BROKEN" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
