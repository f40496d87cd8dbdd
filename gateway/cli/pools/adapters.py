"""`lorikeet pool adapters`: the adapters of servers that can only load them when they start."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gateway.cli.output import print_json, print_table
from gateway.cli.pools.finding import find_pool
from gateway.cli.pools.waiting import report_change
from gateway.cli.verbs import over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient


@over_admin
def show_adapters(arguments: argparse.Namespace, client: AdminClient) -> int:
    """Show the adapters of a pool, or start its servers anew with all of them."""
    pool = find_pool(client, arguments.name)
    path = f"/pools/{pool['id']}"
    found = client.get(f"{path}/adapters")
    if not arguments.load:
        if arguments.json:
            print_json(found)
        else:
            _print(found)
        return 0
    changed = client.post(f"{path}/adapters")
    if changed["wanted_revision"] == found["wanted_revision"]:
        text = f"pool {pool['name']} has all adapters already"
    else:
        text = f"pool {pool['name']} changes to revision {changed['wanted_revision']}: {_effect_in_words(found)}"
    return report_change(client, arguments, client.get(path), text)


def _print(found: dict[str, Any]) -> None:
    rows = [(each["name"], "loaded", each["digest"][:12]) for each in found["loaded"]]
    rows += [(each["name"], "waits for a start", each["digest"][:12]) for each in found["waiting"]]
    print_table(("ADAPTER", "STATE", "DIGEST"), rows)
    if found["waiting"] or found["num_removed"]:
        print(f"\nWith --load {_effect_in_words(found)}.")


def _effect_in_words(found: dict[str, Any]) -> str:
    """Return in words what a start with all adapters does to the pool's replicas."""
    number = found["num_replicas"]
    replicas, are = (f"{number} replicas", "are") if number != 1 else ("1 replica", "is")
    match found["rollout"]:
        case "side by side":
            return f"{replicas} {are} started anew beside the present ones, and no request is refused"
        case "one after the other":
            return f"{replicas} {are} started anew one after the other; of a single one requests are refused meanwhile"
    return f"{replicas} {are} to be started anew, for which no host has room now"
