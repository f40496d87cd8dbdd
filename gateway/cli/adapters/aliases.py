"""`lorikeet alias`: a tenant's own names of models."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandFailed
from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc
from gateway.cli.parts import name_part

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet alias` to the command line."""
    alias = verbs.add_parser(
        "alias",
        help="set, list and remove aliases",
        description="Manage aliases: model names of a tenant, each pointing at one version of an adapter.",
    )
    actions = alias.add_subparsers(metavar="ACTION", required=True)
    setting = actions.add_parser(
        "set",
        help="create or move an alias",
        description="Point a new or existing alias at a version of an adapter. Takes effect on every gateway "
        "within a second.",
    )
    setting.add_argument("name", metavar="NAME", help="name of the alias, which clients use as the model id")
    setting.add_argument("version", metavar="ADAPTER@VERSION", help="name and version of an adapter, such as support@3")
    setting.set_defaults(run=_set)
    listing = actions.add_parser(
        "list", help="list aliases", description="List a tenant's aliases, oldest first, and what each stands for."
    )
    listing.set_defaults(run=_list)
    remove = actions.add_parser(
        "remove", help="remove an alias", description="Remove an alias. The version that the alias points at stays."
    )
    remove.add_argument("name", metavar="NAME", help="name of the alias")
    remove.set_defaults(run=_remove)
    for parser in (setting, listing, remove):
        parser.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant that owns the alias")
        add_json_flag(parser)


def _set(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient, Refused

    target, name = _target(arguments.version), name_part(arguments.name, "alias")
    with AdminClient.of(environ) as client:
        path = f"{client.tenant_path(arguments.tenant)}/aliases"
        try:
            alias = client.post(f"{path}/{name}", json=target)
        except Refused as refusal:
            if refusal.code != "not_found":
                raise
            alias = client.post(path, json={"name": name} | target)
    return print_result(arguments, alias, f"{alias['name']} is now {alias['adapter']}@{alias['version']}")


def _target(text: str) -> dict[str, str | int]:
    adapter, _, version = text.rpartition("@")
    if not (adapter and version.isascii() and version.isdecimal()):
        raise CommandFailed(f"'{text}' names no version: give an adapter and a number, such as support@3")
    return {"adapter": name_part(adapter), "version": int(version)}


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        aliases = client.get_all(f"{client.tenant_path(arguments.tenant)}/aliases")
    if arguments.json:
        print_json(aliases)
        return 0
    rows = [
        (a["name"], a["adapter"], a["version"], a["pool"], a["experiment"], utc(a["created_at"]), utc(a["moved_at"]))
        for a in aliases
    ]
    print_table(("NAME", "ADAPTER", "VERSION", "BASE", "EXPERIMENT", "CREATED", "MOVED"), rows)
    return 0


def _remove(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name = name_part(arguments.name, "alias")
    with AdminClient.of(environ) as client:
        client.delete(f"{client.tenant_path(arguments.tenant)}/aliases/{name}")
    shown = {"name": name, "removed": True}
    return print_result(arguments, shown, f"alias {name} of {arguments.tenant} is removed")
