"""`lorikeet key`: the API keys of a tenant of the running server."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

from gateway.cli.output import add_json_flag, print_json, print_table, utc

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    key = verbs.add_parser("key", help="create, list and revoke API keys", description="API keys of a tenant.")
    actions = key.add_subparsers(metavar="ACTION", required=True)
    create = actions.add_parser(
        "create", help="create a key", description="Create a key and print it: it is shown this once."
    )
    create.add_argument("--tenant", required=True, metavar="NAME", help="the tenant it belongs to")
    create.add_argument("--name", default="default", metavar="TEXT", help="what the key is for (default: %(default)s)")
    add_json_flag(create)
    create.set_defaults(run=_create)
    listing = actions.add_parser("list", help="list keys", description="List a tenant's keys, revoked ones included.")
    listing.add_argument("--tenant", required=True, metavar="NAME", help="the tenant whose keys to list")
    add_json_flag(listing)
    listing.set_defaults(run=_list)
    revoke = actions.add_parser(
        "revoke", help="revoke a key", description="Revoke a key; it stops working within a second."
    )
    revoke.add_argument("key_id", metavar="KEY_ID", help="id of the key, as `key list` shows it")
    add_json_flag(revoke)
    revoke.set_defaults(run=_revoke)


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        path = client.tenant_path(arguments.tenant)
        created = client.post(f"{path}/api_keys", json={"name": arguments.name})
    if arguments.json:
        print_json({"key": created["value"], "id": created["id"], "name": created["name"], "tenant": arguments.tenant})
    else:
        print(created["value"])
        # Not on stdout, where scripts take the key from.
        print(f"lorikeet: key {created['id']}; `lorikeet key revoke {created['id']}` ends it", file=sys.stderr)
    return 0


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        keys = client.get_all(f"{client.tenant_path(arguments.tenant)}/api_keys")
    if arguments.json:
        print_json(keys)
        return 0
    times = ("created_at", "expires_at", "last_used_at", "revoked_at")
    print_table(
        ("NAME", "ID", "KEY", "CREATED", "EXPIRES", "LAST USED", "REVOKED"),
        [(key["name"], key["id"], key["redacted_value"], *(utc(key[time]) for time in times)) for key in keys],
    )
    return 0


def _revoke(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        key = client.get(f"/api_keys/{quote(arguments.key_id, safe='')}")
        client.delete(f"/projects/{key['project_id']}/api_keys/{key['id']}")
    if arguments.json:
        print_json({"id": key["id"], "revoked": True})
    else:
        print(f"key {key['id']} ({key['redacted_value']}) is revoked")
    return 0
