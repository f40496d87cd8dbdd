"""Watches a pool until a change of it has ended, and reports the progress."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import EXIT_OK, EXIT_OPEN, CommandFailed, WaitingEnded
from gateway.cli.output import print_result
from gateway.cli.progress import Progress

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient

POLL_S = 0.5
TIMEOUT_S = 1800


def add_wait(parser: argparse.ArgumentParser) -> None:
    """Add the flags about waiting, such as `--wait`, to the parser."""
    parser.add_argument(
        "--wait", action="store_true", help="show progress until the pool is as wanted, or the change has failed"
    )
    parser.add_argument(
        "--timeout",
        type=int,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help="seconds to wait with --wait, before exiting with 4 (default: %(default)s)",
    )


def report_change(
    client: AdminClient, arguments: argparse.Namespace, pool: dict[str, Any], text: str, *, replaced: str = ""
) -> int:
    """Print the outcome of a change: at once, or with --wait once it has ended. Returns the exit code.

    replaced: the id of a replica that has to be gone first.
    Raises CommandFailed: when the change failed.
    Raises WaitingEnded: when Ctrl-C is pressed.
    """
    if not arguments.wait:
        return print_result(arguments, pool, text)
    progress = Progress("pool", quiet=arguments.json)
    progress.note(text)
    try:
        pool = _watch(client, pool, progress, arguments.timeout, replaced)
    except KeyboardInterrupt:
        raise WaitingEnded(
            f"the change of pool {pool['name']} goes on; `lorikeet pool show {pool['name']}` tells how far it is"
        ) from None
    if not _has_ended(pool, replaced):
        why = pool["why"] or f"replica {replaced} is not replaced yet"
        print_result(arguments, pool, f"pool {pool['name']} is {pool['state']}: {why}")
        return EXIT_OPEN
    print_result(arguments, pool, _outcome(pool))
    return EXIT_OK


def _watch(
    client: AdminClient, pool: dict[str, Any], progress: Progress, timeout_s: int, replaced: str
) -> dict[str, Any]:
    """Watch a pool until its change has ended or timeout_s is over, and return the pool.

    Raises CommandFailed: when the pool cannot become as wanted.
    """
    wanted, deadline_s, last, rollout = pool["wanted_revision"], time.monotonic() + timeout_s, None, None
    while True:
        _check(pool, wanted)
        if pool["rollout"] not in (None, rollout):
            rollout = pool["rollout"]
            progress.note(f"{pool['name']}: replicas are replaced {rollout}")
        if (state := (pool["state"], pool["why"])) != last:
            last = state
            progress.note(f"{pool['name']}: {': '.join(filter(None, state))}")
        if _has_ended(pool, replaced) or time.monotonic() > deadline_s:
            return pool
        time.sleep(POLL_S)
        pool = client.get(f"/pools/{pool['id']}")


def _check(pool: dict[str, Any], wanted: int) -> None:
    """Check that the change of a pool can still succeed.

    wanted: the number of the revision that the change leads to.

    Raises CommandFailed: when it cannot.
    """
    name = pool["name"]
    revision = next((each for each in pool["revisions"] if each["revision"] == wanted), None)
    if revision is not None and revision["state"] == "failed" and pool["revision"] != wanted:
        goes_on = f"; revision {pool['revision']} goes on" if pool["revision"] is not None else ""
        raise CommandFailed(f"revision {wanted} of pool {name} failed: {revision['why'].rstrip('.')}{goes_on}")
    if pool["wanted_revision"] != wanted:
        if pool["wanted_revision"] == pool["revision"] and pool["wanted_revision"] < wanted:
            raise CommandFailed(f"the change of pool {name} was given up: revision {pool['revision']} goes on")
        raise CommandFailed(f"pool {name} was changed again: revision {pool['wanted_revision']} is wanted now")
    if pool["state"] == "failed":
        raise CommandFailed(f"pool {name} failed: {pool['why']}")


def _has_ended(pool: dict[str, Any], replaced: str) -> bool:
    is_as_wanted = pool["state"] in ("ready", "stopped")
    return is_as_wanted and not any(each["id"] == replaced for each in pool["replicas"])


def _outcome(pool: dict[str, Any]) -> str:
    if pool["state"] == "stopped":
        return f"pool {pool['name']} is stopped"
    number = pool["num_ready"]
    return f"pool {pool['name']} is ready: {number} replica{'s' * (number != 1)} of revision {pool['revision']}"
