"""`lorikeet alias`: a tenant's own names of models."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandFailed
from gateway.cli.output import print_result, print_rows, utc
from gateway.cli.path_parts import name_part
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet alias` to the command line."""
    actions = add_group(
        verbs, "alias", "Manage aliases: model names of a tenant, each pointing at one version of an adapter."
    )
    setting = add_verb(
        actions,
        "set",
        _set,
        "create or move an alias",
        "Point a new or existing alias at a version of an adapter. Takes effect on every gateway within a second.",
    )
    setting.add_argument("name", metavar="NAME", help="name of the alias, which clients use as the model id")
    setting.add_argument("version", metavar="ADAPTER@VERSION", help="name and version of an adapter, such as support@3")
    listing = add_verb(
        actions, "list", _list, "list aliases", "List a tenant's aliases, oldest first, and what each stands for."
    )
    remove = add_verb(
        actions, "remove", _remove, "remove an alias", "Remove an alias. The version that the alias points at stays."
    )
    remove.add_argument("name", metavar="NAME", help="name of the alias")
    for parser in (setting, listing, remove):
        parser.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant that owns the alias")


def _set(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient, RequestRefused

    target, name = _target(arguments.version), name_part(arguments.name, "alias")
    with AdminClient.from_environment(environ) as client:
        path = f"{client.tenant_path(arguments.tenant)}/aliases"
        try:
            alias = client.post(f"{path}/{name}", json=target)
        except RequestRefused as refusal:
            if refusal.code != "not_found":
                raise
            alias = client.post(path, json={"name": name} | target)
    return print_result(arguments, alias, f"{alias['name']} is now {alias['adapter']}@{alias['version']}")


def _target(text: str) -> dict[str, str | int]:
    adapter, _, version = text.rpartition("@")
    if not (adapter and version.isascii() and version.isdecimal()):
        raise CommandFailed(f"'{text}' names no version: give an adapter and a number, such as support@3")
    return {"adapter": name_part(adapter), "version": int(version)}


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    aliases = client.get_all(f"{client.tenant_path(arguments.tenant)}/aliases")
    rows = [
        (a["name"], a["adapter"], a["version"], a["pool"], a["experiment"], utc(a["created_at"]), utc(a["moved_at"]))
        for a in aliases
    ]
    return print_rows(
        arguments, aliases, ("NAME", "ADAPTER", "VERSION", "BASE", "EXPERIMENT", "CREATED", "MOVED"), rows
    )


def _remove(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    name = name_part(arguments.name, "alias")
    with AdminClient.from_environment(environ) as client:
        client.delete(f"{client.tenant_path(arguments.tenant)}/aliases/{name}")
    shown = {"name": name, "removed": True}
    return print_result(arguments, shown, f"alias {name} of {arguments.tenant} is removed")
