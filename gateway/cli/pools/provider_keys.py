"""`lorikeet provider-key`: the keys that tenants bring for servers of other makers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandFailed
from gateway.cli.output import print_result, print_rows, utc
from gateway.cli.pools.keys import read_key
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet provider-key` to the command line."""
    actions = add_group(
        verbs,
        "provider-key",
        "Manage the keys that tenants bring for servers of other makers, in pools whose setting own_keys "
        "allows that. A key is used for the requests of its tenant alone, which is charged for no tokens then.",
    )
    setting = add_verb(
        actions,
        "set",
        _set,
        "set or replace a key",
        "Set a tenant's own key for the servers behind a base model, in place of the one before. It is "
        "kept encrypted and not shown again.",
    )
    setting.add_argument("--from", dest="file", required=True, metavar="FILE", help="file with the key; - reads stdin")
    listing = add_verb(
        actions, "list", _list, "list keys", "List a tenant's own keys, oldest first, with the end of each."
    )
    remove = add_verb(
        actions, "remove", _remove, "remove a key", "Forget a tenant's own key for the servers behind a base model."
    )
    for parser in (setting, remove):
        parser.add_argument("model", metavar="MODEL", help="name of the base model")
    for parser in (setting, listing, remove):
        parser.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant that brings the key")


def _set(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    body = {"model": arguments.model, "key": read_key(arguments.file)}
    with AdminClient.from_environment(environ) as client:
        reply = client.post(f"{client.tenant_path(arguments.tenant)}/provider_keys", json=body)
    hint = f" ending in {reply['hint']}" if reply["hint"] else ""
    text = f"requests of {arguments.tenant} to {reply['model']} are sent with its own key{hint}"
    return print_result(arguments, reply, text)


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    keys = client.get_all(f"{client.tenant_path(arguments.tenant)}/provider_keys")
    rows = [
        (each["model"], each["hint"], utc(each["created_at"]), utc(each["changed_at"]), each["id"]) for each in keys
    ]
    return print_rows(arguments, keys, ("MODEL", "ENDS IN", "CREATED", "CHANGED", "ID"), rows)


@over_admin
def _remove(arguments: argparse.Namespace, client: AdminClient) -> int:
    path = f"{client.tenant_path(arguments.tenant)}/provider_keys"
    found = next((each for each in client.get_all(path) if each["model"] == arguments.model), None)
    if found is None:
        raise CommandFailed(f"{arguments.tenant} has no key of its own for {arguments.model}")
    gone = client.delete(f"{path}/{found['id']}")
    return print_result(arguments, gone, f"the key of {arguments.tenant} for {arguments.model} is forgotten")
