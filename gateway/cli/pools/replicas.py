"""`lorikeet replica`: the engines of pools."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.output import print_json, print_result
from gateway.cli.path_parts import id_part
from gateway.cli.pools.finding import find_pool
from gateway.cli.pools.waiting import add_wait, report_change
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet replica` to the command line."""
    actions = add_group(verbs, "replica", "Manage replicas: engine processes of pools, each on one host.")
    listing = add_verb(actions, "list", _list, "list replicas", "List replicas that have not been stopped, by pool.")
    listing.add_argument("--pool", metavar="NAME", help="name of the pool whose replicas to list (default: all pools)")
    drain = add_verb(
        actions,
        "drain",
        _drain,
        "stop a replica for good",
        "Let a replica end its requests and stop. The pool runs one replica less from then on.",
    )
    restart = add_verb(
        actions,
        "restart",
        _restart,
        "replace a replica by a new one",
        "Start another replica in the place of this one, which drains once the other is ready. Where the "
        "host has no room for two, the present one stops first.",
    )
    add_wait(restart)
    for parser in (drain, restart):
        parser.add_argument("replica_id", metavar="REPLICA_ID", help="id of the replica, as `replica list` shows it")


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    from gateway.cli.pools.tables import print_replicas

    only = {} if arguments.pool is None else {"pool_id": find_pool(client, arguments.pool)["id"]}
    replicas = client.get_all("/replicas", **only)
    if arguments.json:
        print_json(replicas)
    else:
        print_replicas(replicas)
    return 0


@over_admin
def _drain(arguments: argparse.Namespace, client: AdminClient) -> int:
    replica = client.post(f"/replicas/{id_part(arguments.replica_id)}/drain")
    return print_result(arguments, replica, f"replica {replica['id']} of {replica['pool']} is {replica['state']}")


@over_admin
def _restart(arguments: argparse.Namespace, client: AdminClient) -> int:
    replica = client.post(f"/replicas/{id_part(arguments.replica_id)}/restart")
    text = f"replica {replica['id']} of {replica['pool']} is going to be replaced"
    if not arguments.wait:
        return print_result(arguments, replica, text)
    pool = client.get(f"/pools/{replica['pool_id']}")
    return report_change(client, arguments, pool, text, replaced=replica["id"])
