"""`lorikeet admin-key`: the keys that open the admin API."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc
from gateway.cli.parts import id_part

if TYPE_CHECKING:
    from gateway.cli.output import Verbs

DAY_S = 86_400


def register(verbs: Verbs) -> None:
    """Add `lorikeet admin-key` to the command line."""
    key = verbs.add_parser(
        "admin-key",
        help="create, list, revoke and generate operators' keys",
        description="Manage operators' keys, which open the admin API.",
    )
    actions = key.add_subparsers(metavar="ACTION", required=True)
    create = actions.add_parser(
        "create",
        help="create a key",
        description="Create an operator's key and print the key. The key is never shown again.",
    )
    create.add_argument("--name", required=True, metavar="TEXT", help="name of the key, for people")
    create.add_argument("--read-only", action="store_true", help="allow the key to read only")
    create.add_argument(
        "--ip",
        action="append",
        metavar="CIDR",
        help="network from which the key may be used; repeat the flag for more (default: all)",
    )
    create.add_argument("--expires-in-days", type=int, metavar="N", help="days until the key expires (default: never)")
    create.set_defaults(run=_create)
    listing = actions.add_parser("list", help="list keys", description="List operators' keys, revoked ones included.")
    listing.set_defaults(run=_list)
    revoke = actions.add_parser(
        "revoke",
        help="revoke a key",
        description="Revoke an operator's key for good. The key stops working within a second.",
    )
    revoke.add_argument("key_id", metavar="KEY_ID", help="id of the key, as `admin-key list` shows it")
    revoke.set_defaults(run=_revoke)
    generate = actions.add_parser(
        "generate",
        help="print a new key for LORIKEET_ADMIN_KEY",
        description="Print a new operator's key that no server knows yet. It is for LORIKEET_ADMIN_KEY of `lorikeet "
        "migrate` or the first start, which make it valid.",
    )
    generate.set_defaults(run=_generate)
    for parser in (create, listing, revoke, generate):
        add_json_flag(parser)


def _generate(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.domain.tenancy.keys import new_key

    secret = new_key("admin").secret
    if arguments.json:
        print_json({"key": secret})
    else:
        print(secret)
    return 0


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    scopes = ["admin_read"] if arguments.read_only else ["admin_read", "admin_write"]
    days = arguments.expires_in_days
    body = {
        "name": arguments.name,
        "scopes": scopes,
        "ip_allowlist": arguments.ip,
        "expires_at": None if days is None else int(time.time()) + days * DAY_S,
    }
    with AdminClient.of(environ) as client:
        key = client.post("/admin_api_keys", json=body)
    if arguments.json:
        print_json({"key": key["value"], "id": key["id"], "name": key["name"], "scopes": key["scopes"]})
    else:
        print(key["value"])
        print(f"lorikeet: key {key['id']}; `lorikeet admin-key revoke {key['id']}` ends it", file=sys.stderr)
    return 0


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        keys = client.get_all("/admin_api_keys")
    if arguments.json:
        print_json(keys)
        return 0
    times = ("created_at", "expires_at", "last_used_at", "revoked_at")
    print_table(
        ("NAME", "ID", "KEY", "SCOPES", "CREATED", "EXPIRES", "LAST USED", "REVOKED"),
        [
            (
                key["name"],
                key["id"],
                key["redacted_value"],
                ",".join(key["scopes"]),
                *(utc(key[time]) for time in times),
            )
            for key in keys
        ],
    )
    return 0


def _revoke(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        client.delete(f"/admin_api_keys/{id_part(arguments.key_id)}")
    shown = {"id": arguments.key_id, "revoked": True}
    return print_result(arguments, shown, f"key {arguments.key_id} is revoked")
