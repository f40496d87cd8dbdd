"""Writes the alerting rules for Prometheus.

python -m deploy.alerts                                   # writes deploy/alerts/rules.yml
python -m deploy.alerts --availability 0.995 --out my.yml # with an objective of your own
python -m deploy.alerts --divide 60 --out drill.yml       # hours become minutes, to try the alerts for real
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from deploy.alerts.alert import Group, rendered
from deploy.alerts.causes import CAUSES
from deploy.alerts.objectives import Objectives, objective_rules

RULES = Path(__file__).with_name("rules.yml")
HEAD = "# Written by `python -m deploy.alerts`, whose flags are the objectives. Each alert has a page in ../runbooks.\n"
BOUNDS_S = (0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
"""Bounds of buckets of the histogram of first tokens, in seconds."""


def groups(objectives: Objectives) -> tuple[Group, ...]:
    """Return all rules, in the order in which Prometheus reads them."""
    return (objective_rules(objectives), *CAUSES)


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return share


def _flags() -> argparse.Namespace:
    default = Objectives()
    parser = argparse.ArgumentParser(prog="python -m deploy.alerts", description="Write alerting rules for Prometheus.")

    def add(name: str, default: object, about: str, **more: Any) -> None:
        parser.add_argument(name, default=default, help=f"{about} (default {default})", **more)

    add("--availability", default.availability, "share of requests that no fault of the server may fail", type=_share)
    add("--first-token-share", default.first_token_share, "share of first tokens that come in time", type=_share)
    add("--first-token-seconds", default.first_token_s, "time for a first token", type=float, choices=BOUNDS_S)
    add("--divide", 1, "what all durations are divided by, for drills", type=int)
    add("--out", RULES, "the file to write", type=Path)
    flags = parser.parse_args()
    if flags.divide < 1:
        parser.error("--divide: expected 1 or more")
    return flags


def main() -> None:
    """Write the rules for the objectives that the flags name to the file that they name."""
    flags = _flags()
    objectives = Objectives(flags.availability, flags.first_token_share, flags.first_token_seconds)
    flags.out.write_text(HEAD + rendered(groups(objectives), flags.divide))
    sys.stdout.write(f"wrote {flags.out}\n")


if __name__ == "__main__":
    main()
