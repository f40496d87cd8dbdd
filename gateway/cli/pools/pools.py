"""`lorikeet pool`: base models and the replicas that serve them, changed without an outage."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import WrongUsage
from gateway.cli.output import add_json_flag, print_json, print_result, print_table
from gateway.cli.pools.adapters import show_adapters
from gateway.cli.pools.autoscaling import DESCRIPTION, add_autoscale, show_scalings
from gateway.cli.pools.finding import find_pool
from gateway.cli.pools.hosts import read_excluded, read_labels
from gateway.cli.pools.keys import set_key
from gateway.cli.pools.waiting import add_wait, settle
from gateway.cli.pools.wanted import (
    add_access,
    add_engine_settings,
    add_model,
    add_servers,
    changed_settings,
    read_access,
    read_model,
)

if TYPE_CHECKING:
    from gateway.cli.output import Verbs

_DESCRIPTION = """\
Manage pools: base models, each with the engines that serve it.

A pool has a name, by which requests ask for its base model, and a number of replicas, which are engine processes on
one or several hosts. Another model or other engine settings become a new revision of the pool: new replicas start
beside the present ones, and take their place once they are ready. No request is refused meanwhile.
"""
_EPILOG = """\
examples:
  lorikeet pool create qwen3-0.6b --model Qwen/Qwen3-0.6B --replicas 2 --wait
  lorikeet pool create gguf --engine llamacpp --model /models/llama.gguf --wait
  lorikeet pool create llama --engine openai --url http://10.0.0.7:8000 --set allow_private=true
  lorikeet pool key llama --from key.txt
  lorikeet pool update qwen3-0.6b --set max_model_len=8192 --wait
  lorikeet pool scale qwen3-0.6b 3
  lorikeet pool autoscale qwen3-0.6b --min 1 --max 4
  lorikeet pool place qwen3-0.6b zone=west --not disk=hdd
  lorikeet pool drain qwen3-0.6b
  lorikeet pool delete qwen3-0.6b
"""


def register(verbs: Verbs) -> None:
    """Add `lorikeet pool` to the command line."""
    pool = verbs.add_parser(
        "pool",
        help="create, change, scale and remove pools",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = pool.add_subparsers(metavar="ACTION", required=True)
    create = actions.add_parser(
        "create", help="create a pool", description="Create a pool. Agents prepare the model and start the replicas."
    )
    create.add_argument("name", metavar="NAME", help="name by which requests will ask for the base model")
    add_model(create)
    add_servers(create, can_choose=True)
    create.add_argument(
        "--replicas", type=int, metavar="N", help="number of replicas (default: 1, or one for each --url)"
    )
    create.add_argument(
        "--on",
        metavar="LABEL=VALUE",
        action="append",
        default=[],
        help="label that a host must have for replicas to start there (repeat)",
    )
    create.add_argument(
        "--not",
        metavar="LABEL=VALUE",
        dest="excluded",
        action="append",
        default=[],
        help="label of hosts on which no replica is to start (repeat)",
    )
    create.set_defaults(run=_create)
    listing = actions.add_parser(
        "list", help="list pools", description="List pools with the state of each, oldest first."
    )
    listing.set_defaults(run=_list)
    show = actions.add_parser(
        "show", help="show a pool", description="Show a pool with its latest revisions and its replicas."
    )
    show.set_defaults(run=_show)
    scale = actions.add_parser(
        "scale", help="change the number of replicas", description="Change how many replicas run."
    )
    scale.set_defaults(run=_scale)
    autoscale = actions.add_parser(
        "autoscale",
        help="have the number of replicas follow the load",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_autoscale(autoscale)
    scalings = actions.add_parser(
        "scalings",
        help="list the changes of the number of replicas",
        description="List the latest changes of the number of replicas, newest first, with the reason of each that "
        "followed the load.",
    )
    scalings.set_defaults(run=show_scalings)
    place = actions.add_parser(
        "place",
        help="have replicas on hosts with certain labels alone",
        description="Have replicas run on hosts with these labels alone, and on none with a label of --not. Those on "
        "other hosts go as soon as others are ready; without a label and --not they may run anywhere.",
    )
    place.set_defaults(run=_place)
    update = actions.add_parser(
        "update",
        help="change the model, the engine settings or the access",
        description="Change what a pool serves, or for whom. Another model or other settings become a new revision: "
        "the present replicas serve until the new ones are ready, and go on if those fail.",
    )
    add_model(update)
    add_servers(update, can_choose=False)
    update.add_argument(
        "--drop-adapters",
        action="store_true",
        help="change to another base model though some adapters do not fit it; these no longer answer",
    )
    update.set_defaults(run=_update)
    drain = actions.add_parser(
        "drain", help="stop all replicas", description="Let all replicas of a pool end their requests and stop."
    )
    drain.set_defaults(run=_drain)
    cancel = actions.add_parser(
        "cancel",
        help="give up a change that is under way",
        description="Give up the change of revision that is under way. The revision that serves stays.",
    )
    cancel.set_defaults(run=_cancel)
    remove = actions.add_parser(
        "delete",
        help="remove a drained pool",
        description="Remove a pool that was drained and whose base no adapter needs. The name is free afterwards.",
    )
    remove.set_defaults(run=_delete)
    key = actions.add_parser(
        "key",
        help="set the key of a pool's servers",
        description="Set the key that the servers of another maker ask for. It is kept encrypted and not shown again.",
    )
    which = key.add_mutually_exclusive_group(required=True)
    which.add_argument("--from", dest="file", metavar="FILE", help="file that holds the key; - reads standard input")
    which.add_argument("--remove", action="store_true", help="forget the key")
    key.set_defaults(run=set_key)
    adapters = actions.add_parser(
        "adapters",
        help="show, or load, the adapters of servers that take them at their start",
        description="Show which adapters of tenants the servers of a pool have that take them at their start alone, "
        "as llama.cpp's do. With --load all its replicas are started anew with the adapters that tenants have now.",
    )
    adapters.add_argument("--load", action="store_true", help="start the replicas anew with all adapters")
    adapters.set_defaults(run=show_adapters)
    for parser in (show, scale, autoscale, scalings, place, update, drain, cancel, remove, key, adapters):
        parser.add_argument("name", metavar="NAME", help="name of the pool, or its id")
    place.add_argument("labels", metavar="LABEL=VALUE", nargs="*", help="label that a host must have")
    place.add_argument(
        "--not",
        metavar="LABEL=VALUE",
        dest="excluded",
        action="append",
        default=[],
        help="label that a host must not have (repeat)",
    )
    scale.add_argument("num_replicas", type=int, metavar="N", help="number of replicas that are to run")
    for parser in (create, update):
        add_engine_settings(parser, can_unset=parser is update)
        add_access(parser)
    for parser in (create, update, scale, drain, adapters):
        add_wait(parser)
    add_json_flag(scalings)
    for parser in (create, listing, show, scale, autoscale, place, update, drain, cancel, remove, key, adapters):
        add_json_flag(parser)


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        body: dict[str, Any] = {"name": arguments.name, "engine": arguments.engine, "urls": arguments.url}
        if arguments.model is not None:
            body["model"] = read_model(arguments.model)
        elif not arguments.url:
            raise WrongUsage("--model is missing: only servers of another maker (--engine) at a --url do without")
        if arguments.replicas is not None:
            body["num_replicas"] = arguments.replicas
        if arguments.on:
            body["placement"] = read_labels(arguments.on)
        if arguments.excluded:
            body["exclusion"] = read_excluded(arguments.excluded)
        body |= {"settings": changed_settings({}, arguments), **read_access(client, arguments)}
        pool = client.post("/pools", json=body)
        return settle(client, arguments, pool, f"pool {pool['name']} is created: {pool['id']}")


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        pools = client.get_all("/pools")
    if arguments.json:
        print_json(pools)
        return 0
    from gateway.cli.pools.shown import revisions_in_short

    rows = [
        (
            p["name"],
            p["state"],
            f"{p['num_ready']}/{p['num_wanted']}",
            revisions_in_short(p),
            p["engine"],
            p["model"],
            p["access"],
            p["why"],
        )
        for p in pools
    ]
    print_table(("NAME", "STATE", "READY", "REVISION", "ENGINE", "MODEL", "ACCESS", "WHY"), rows)
    return 0


def _show(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient
    from gateway.cli.pools.shown import print_pool

    with AdminClient.of(environ) as client:
        pool = client.get(f"/pools/{find_pool(client, arguments.name)['id']}")
        if arguments.json:
            print_json(pool)
            return 0
        projects = client.get_all("/projects") if pool["grants"] else []
    print_pool(pool, {each["id"]: each["name"] for each in projects})
    return 0


def _scale(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    number = arguments.num_replicas
    text = f"is to run {number} replica{'s' * (number != 1)}"
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        pool = find_pool(client, arguments.name)
        changed = client.post(f"/pools/{pool['id']}", json={"num_replicas": number})
        return settle(client, arguments, changed, f"pool {pool['name']} {text}")


def _place(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient
    from gateway.cli.pools.shown import hosts_in_words

    wanted = {"placement": read_labels(arguments.labels), "exclusion": read_excluded(arguments.excluded)}
    with AdminClient.of(environ) as client:
        pool = find_pool(client, arguments.name)
        changed = client.post(f"/pools/{pool['id']}", json=wanted)
    text = f"pool {pool['name']} runs on hosts: {hosts_in_words(changed)}"
    if changed["replicas"] and (changed["placement"] or changed["exclusion"]):
        text += f"\nreplicas on other hosts go once others are ready: `lorikeet pool show {pool['name']}` tells how far"
    return print_result(arguments, changed, text)


def _update(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        pool = find_pool(client, arguments.name)
        body: dict[str, Any] = read_access(client, arguments)
        if arguments.model is not None:
            body["model"] = read_model(arguments.model)
        if arguments.url:
            body["urls"] = arguments.url
        if arguments.set or arguments.unset:
            body["settings"] = changed_settings(pool["settings"], arguments)
        if arguments.drop_adapters and "model" in body:
            body["allow_unfit_adapters"] = True
        if not body:
            raise WrongUsage("nothing to change: give --model, --url, --set, --unset, --tenant or --all-tenants")
        changed = client.post(f"/pools/{pool['id']}", json=body)
        if changed["revision"] != changed["wanted_revision"]:
            text = f"pool {pool['name']} changes to revision {changed['wanted_revision']}"
        elif changed["revision"] != pool["revision"]:
            text = f"pool {pool['name']} serves revision {changed['revision']}"
        else:
            is_changed = bool(body.keys() - {"model", "settings", "urls"})
            text = f"pool {pool['name']} is {'changed' if is_changed else 'as wanted already'}"
        return settle(client, arguments, changed, text)


def _drain(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        pool = find_pool(client, arguments.name)
        changed = client.post(f"/pools/{pool['id']}/drain")
        text = f"pool {pool['name']} drains: no replica is wanted any more"
        if pool["urls"]:
            again = "".join(f" --url {url}" for url in pool["urls"])
            text += f"; `lorikeet pool update {pool['name']}{again}` has it serve again"
        return settle(client, arguments, changed, text)


def _cancel(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        pool = find_pool(client, arguments.name)
        reply = client.post(f"/pools/{pool['id']}/cancel")
    return print_result(arguments, reply, f"pool {reply['name']} stays at revision {reply['revision']}")


def _delete(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        pool = find_pool(client, arguments.name)
        client.delete(f"/pools/{pool['id']}")
    shown = {"id": pool["id"], "name": pool["name"], "removed": True}
    return print_result(arguments, shown, f"pool {pool['name']} is removed")
