"""`lorikeet provider-key`: the keys that tenants bring for servers of other makers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandFailed
from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc
from gateway.cli.pools.keys import read_key

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet provider-key` to the command line."""
    key = verbs.add_parser(
        "provider-key",
        help="set, list and remove a tenant's own keys for other makers' servers",
        description="Manage the keys that tenants bring for servers of other makers, in pools whose setting own_keys "
        "allows that. A key is used for the requests of its tenant alone, which is charged for no tokens then.",
    )
    actions = key.add_subparsers(metavar="ACTION", required=True)
    setting = actions.add_parser(
        "set",
        help="set or replace a key",
        description="Set a tenant's own key for the servers behind a base model, in place of the one before. It is "
        "kept encrypted and not shown again.",
    )
    setting.add_argument("--from", dest="file", required=True, metavar="FILE", help="file with the key; - reads stdin")
    setting.set_defaults(run=_set)
    listing = actions.add_parser(
        "list", help="list keys", description="List a tenant's own keys, oldest first, with the end of each."
    )
    listing.set_defaults(run=_list)
    remove = actions.add_parser(
        "remove", help="remove a key", description="Forget a tenant's own key for the servers behind a base model."
    )
    remove.set_defaults(run=_remove)
    for parser in (setting, remove):
        parser.add_argument("model", metavar="MODEL", help="name of the base model")
    for parser in (setting, listing, remove):
        parser.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant that brings the key")
        add_json_flag(parser)


def _set(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    body = {"model": arguments.model, "key": read_key(arguments.file)}
    with AdminClient.of(environ) as client:
        reply = client.post(f"{client.tenant_path(arguments.tenant)}/provider_keys", json=body)
    hint = f" ending in {reply['hint']}" if reply["hint"] else ""
    text = f"requests of {arguments.tenant} to {reply['model']} are sent with its own key{hint}"
    return print_result(arguments, reply, text)


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        keys = client.get_all(f"{client.tenant_path(arguments.tenant)}/provider_keys")
    if arguments.json:
        print_json(keys)
        return 0
    rows = [
        (each["model"], each["hint"], utc(each["created_at"]), utc(each["changed_at"]), each["id"]) for each in keys
    ]
    print_table(("MODEL", "ENDS IN", "CREATED", "CHANGED", "ID"), rows)
    return 0


def _remove(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        path = f"{client.tenant_path(arguments.tenant)}/provider_keys"
        found = next((each for each in client.get_all(path) if each["model"] == arguments.model), None)
        if found is None:
            raise CommandFailed(f"{arguments.tenant} has no key of its own for {arguments.model}")
        gone = client.delete(f"{path}/{found['id']}")
    return print_result(arguments, gone, f"the key of {arguments.tenant} for {arguments.model} is forgotten")
