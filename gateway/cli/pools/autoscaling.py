"""`lorikeet pool autoscale`: the bounds between which the number of a pool's replicas follows its load."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import WrongUsage
from gateway.cli.output import print_result, print_rows, utc
from gateway.cli.pools.finding import find_pool
from gateway.cli.verbs import over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient

DESCRIPTION = """\
Have the number of replicas follow the load of the pool.

More replicas start at once when most places are taken, the KV cache is nearly full, or requests wait for long. One
stops when none of them needed it for a while. With --min 0 the last one stops as well when no request comes, and the
next request waits until a replica has started.
"""


def add_autoscale(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `lorikeet pool autoscale` to the parser."""
    parser.add_argument("--min", type=int, metavar="N", help="the fewest replicas that run (default: 1)")
    parser.add_argument("--max", type=int, metavar="N", help="the most replicas that run")
    parser.add_argument(
        "--down-after",
        type=int,
        metavar="SECONDS",
        help="seconds for which a replica must not have been needed before it stops (default: 300)",
    )
    parser.add_argument("--off", action="store_true", help="keep the number of replicas as it is from now on")


def autoscale(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Set or remove the bounds of a pool; bounds that are not given stay as they are."""
    given = {"min_replicas": arguments.min, "max_replicas": arguments.max, "down_after_seconds": arguments.down_after}
    asked = {name: value for name, value in given.items() if value is not None}
    if arguments.off == bool(asked):
        raise WrongUsage("give --off alone, or at least one of --min, --max and --down-after")
    from gateway.cli.client import AdminClient

    with AdminClient.from_environment(environ) as client:
        pool = find_pool(client, arguments.name)
        if not arguments.off and pool["scaling"] is None and "max_replicas" not in asked:
            raise WrongUsage(f"--max is missing: the number of replicas of {pool['name']} does not follow the load yet")
        before = {name: value for name, value in (pool["scaling"] or {}).items() if name in given}
        scaling = None if arguments.off else before | asked
        changed = client.post(f"/pools/{pool['id']}", json={"scaling": scaling})
        return print_result(arguments, changed, f"pool {pool['name']}: {scaling_in_words(changed)}")


@over_admin
def show_scalings(arguments: argparse.Namespace, client: AdminClient) -> int:
    """Print the latest changes of the number of a pool's replicas."""
    changes = client.get_all(f"/pools/{find_pool(client, arguments.name)['id']}/scalings")
    rows = [(utc(each["at"]), each["before"], each["after"], each["by"], each["why"]) for each in changes]
    return print_rows(arguments, changes, ("AT", "BEFORE", "AFTER", "BY", "WHY"), rows)


def scaling_in_words(pool: dict[str, Any]) -> str:
    """Return a sentence on how the number of a pool's replicas is decided."""
    scaling = pool["scaling"]
    if scaling is None:
        number = pool["num_replicas"]
        return f"{number} replica{'s' * (number != 1)}, whatever the load is"
    return (
        f"{scaling['min_replicas']} to {scaling['max_replicas']} replicas by the load, "
        f"one less after {scaling['down_after_seconds']} s"
    )
