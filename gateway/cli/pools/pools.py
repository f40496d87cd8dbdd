"""`lorikeet pool`: base models and the replicas that serve them, changed without an outage."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import WrongUsage
from gateway.cli.output import print_json, print_result, print_table
from gateway.cli.pools.adapters import show_adapters
from gateway.cli.pools.arguments import (
    add_access,
    add_engine_settings,
    add_model,
    add_servers,
    changed_settings,
    read_access,
    read_model,
)
from gateway.cli.pools.autoscaling import DESCRIPTION, add_autoscale, autoscale, show_scalings
from gateway.cli.pools.finding import find_pool
from gateway.cli.pools.hosts import read_excluded, read_labels
from gateway.cli.pools.keys import set_key
from gateway.cli.pools.waiting import add_wait, report_change
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
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
    actions = add_group(verbs, "pool", _DESCRIPTION, epilog=_EPILOG)
    create = add_verb(
        actions, "create", _create, "create a pool", "Create a pool. Agents prepare the model and start the replicas."
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
    add_verb(actions, "list", _list, "list pools", "List pools with the state of each, oldest first.")
    show = add_verb(actions, "show", _show, "show a pool", "Show a pool with its latest revisions and its replicas.")
    scale = add_verb(actions, "scale", _scale, "change the number of replicas", "Change how many replicas run.")
    scaling = add_verb(actions, "autoscale", autoscale, "have the number of replicas follow the load", DESCRIPTION)
    add_autoscale(scaling)
    scalings = add_verb(
        actions,
        "scalings",
        show_scalings,
        "list the changes of the number of replicas",
        "List the latest changes of the number of replicas, newest first, with the reason of each that "
        "followed the load.",
    )
    place = add_verb(
        actions,
        "place",
        _place,
        "have replicas on hosts with certain labels alone",
        "Have replicas run on hosts with these labels alone, and on none with a label of --not. "
        "Replicas on other hosts stop as soon as their successors are ready. Without a label and --not, replicas run "
        "anywhere.",
    )
    update = add_verb(
        actions,
        "update",
        _update,
        "change the model, the engine settings or the access",
        "Change what a pool serves, or for whom. Another model or other settings become a new revision: "
        "the present replicas serve until the new ones are ready, and go on if those fail.",
    )
    add_model(update)
    add_servers(update, can_choose=False)
    update.add_argument(
        "--drop-adapters",
        action="store_true",
        help="change to another base model though some adapters do not fit it; these no longer answer",
    )
    drain = add_verb(
        actions, "drain", _drain, "stop all replicas", "Let all replicas of a pool end their requests and stop."
    )
    cancel = add_verb(
        actions,
        "cancel",
        _cancel,
        "give up a change that is under way",
        "Give up the change of revision that is under way. The revision that serves stays.",
    )
    remove = add_verb(
        actions,
        "delete",
        _delete,
        "remove a drained pool",
        "Remove a pool that was drained and whose base no adapter needs. The name is free afterwards.",
    )
    key = add_verb(
        actions,
        "key",
        set_key,
        "set the key of a pool's servers",
        "Set the key that the servers of another maker ask for. It is kept encrypted and not shown again.",
    )
    which = key.add_mutually_exclusive_group(required=True)
    which.add_argument("--from", dest="file", metavar="FILE", help="file that holds the key; - reads standard input")
    which.add_argument("--remove", action="store_true", help="forget the key")
    adapters = add_verb(
        actions,
        "adapters",
        show_adapters,
        "show, or load, the adapters of servers that take them at their start",
        "Show which adapters of tenants the servers of a pool have that take them at their start alone, "
        "as llama.cpp's do. With --load all its replicas are started anew with the adapters that tenants have now.",
    )
    adapters.add_argument("--load", action="store_true", help="start the replicas anew with all adapters")
    for parser in (show, scale, scaling, scalings, place, update, drain, cancel, remove, key, adapters):
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


@over_admin
def _create(arguments: argparse.Namespace, client: AdminClient) -> int:
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
    return report_change(client, arguments, pool, f"pool {pool['name']} is created: {pool['id']}")


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    pools = client.get_all("/pools")
    if arguments.json:
        print_json(pools)
        return 0
    from gateway.cli.pools.tables import revisions_in_short

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


@over_admin
def _show(arguments: argparse.Namespace, client: AdminClient) -> int:
    from gateway.cli.pools.tables import print_pool

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

    with AdminClient.from_environment(environ) as client:
        pool = find_pool(client, arguments.name)
        changed = client.post(f"/pools/{pool['id']}", json={"num_replicas": number})
        return report_change(client, arguments, changed, f"pool {pool['name']} {text}")


def _place(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient
    from gateway.cli.pools.tables import hosts_in_words

    wanted = {"placement": read_labels(arguments.labels), "exclusion": read_excluded(arguments.excluded)}
    with AdminClient.from_environment(environ) as client:
        pool = find_pool(client, arguments.name)
        changed = client.post(f"/pools/{pool['id']}", json=wanted)
    text = f"pool {pool['name']} runs on hosts: {hosts_in_words(changed)}"
    if changed["replicas"] and (changed["placement"] or changed["exclusion"]):
        text += f"\nreplicas on other hosts go once others are ready: `lorikeet pool show {pool['name']}` tells how far"
    return print_result(arguments, changed, text)


@over_admin
def _update(arguments: argparse.Namespace, client: AdminClient) -> int:
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
    return report_change(client, arguments, changed, text)


@over_admin
def _drain(arguments: argparse.Namespace, client: AdminClient) -> int:
    pool = find_pool(client, arguments.name)
    changed = client.post(f"/pools/{pool['id']}/drain")
    text = f"pool {pool['name']} drains: no replica is wanted any more"
    if pool["urls"]:
        again = "".join(f" --url {url}" for url in pool["urls"])
        text += f"; `lorikeet pool update {pool['name']}{again}` has it serve again"
    return report_change(client, arguments, changed, text)


@over_admin
def _cancel(arguments: argparse.Namespace, client: AdminClient) -> int:
    pool = find_pool(client, arguments.name)
    reply = client.post(f"/pools/{pool['id']}/cancel")
    return print_result(arguments, reply, f"pool {reply['name']} stays at revision {reply['revision']}")


@over_admin
def _delete(arguments: argparse.Namespace, client: AdminClient) -> int:
    pool = find_pool(client, arguments.name)
    client.delete(f"/pools/{pool['id']}")
    shown = {"id": pool["id"], "name": pool["name"], "removed": True}
    return print_result(arguments, shown, f"pool {pool['name']} is removed")
