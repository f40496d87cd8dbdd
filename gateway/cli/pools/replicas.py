"""`lorikeet replica`: the engines of pools."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.output import add_json_flag, print_json, print_result
from gateway.cli.parts import id_part
from gateway.cli.pools.finding import find_pool
from gateway.cli.pools.waiting import add_wait, settle

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet replica` to the command line."""
    replica = verbs.add_parser(
        "replica",
        help="list, drain and restart replicas",
        description="Manage replicas: engine processes of pools, each on one host.",
    )
    actions = replica.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser(
        "list", help="list replicas", description="List replicas that have not been stopped, by pool."
    )
    listing.add_argument("--pool", metavar="NAME", help="name of the pool whose replicas to list (default: all pools)")
    listing.set_defaults(run=_list)
    drain = actions.add_parser(
        "drain",
        help="stop a replica for good",
        description="Let a replica end its requests and stop. The pool runs one replica less from then on.",
    )
    drain.set_defaults(run=_drain)
    restart = actions.add_parser(
        "restart",
        help="replace a replica by a new one",
        description="Start another replica in the place of this one, which drains once the other is ready. Where the "
        "host has no room for two, the present one stops first.",
    )
    add_wait(restart)
    restart.set_defaults(run=_restart)
    for parser in (drain, restart):
        parser.add_argument("replica_id", metavar="REPLICA_ID", help="id of the replica, as `replica list` shows it")
    for parser in (listing, drain, restart):
        add_json_flag(parser)


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient
    from gateway.cli.pools.shown import print_replicas

    with AdminClient.of(environ) as client:
        only = {} if arguments.pool is None else {"pool_id": find_pool(client, arguments.pool)["id"]}
        replicas = client.get_all("/replicas", **only)
    if arguments.json:
        print_json(replicas)
    else:
        print_replicas(replicas)
    return 0


def _drain(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        replica = client.post(f"/replicas/{id_part(arguments.replica_id)}/drain")
    return print_result(arguments, replica, f"replica {replica['id']} of {replica['pool']} is {replica['state']}")


def _restart(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        replica = client.post(f"/replicas/{id_part(arguments.replica_id)}/restart")
        text = f"replica {replica['id']} of {replica['pool']} is going to be replaced"
        if not arguments.wait:
            return print_result(arguments, replica, text)
        pool = client.get(f"/pools/{replica['pool_id']}")
        return settle(client, arguments, pool, text, replaced=replica["id"])
