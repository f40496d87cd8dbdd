"""`lorikeet admin-key`: the keys that open the admin API."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.output import print_json, print_result, print_rows, utc
from gateway.cli.path_parts import id_part
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

DAY_S = 86_400


def register(verbs: Verbs) -> None:
    """Add `lorikeet admin-key` to the command line."""
    actions = add_group(verbs, "admin-key", "Manage operators' keys, which open the admin API.")
    create = add_verb(
        actions,
        "create",
        _create,
        "create a key",
        "Create an operator's key and print the key. The key is never shown again.",
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
    add_verb(actions, "list", _list, "list keys", "List operators' keys, revoked ones included.")
    revoke = add_verb(
        actions,
        "revoke",
        _revoke,
        "revoke a key",
        "Revoke an operator's key for good. The key stops working within a second.",
    )
    revoke.add_argument("key_id", metavar="KEY_ID", help="id of the key, as `admin-key list` shows it")
    add_verb(
        actions,
        "generate",
        _generate,
        "print a new key for LORIKEET_ADMIN_KEY",
        "Print a new operator's key that no server knows yet. It is for LORIKEET_ADMIN_KEY of `lorikeet "
        "migrate` or the first start, which make it valid.",
    )


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
    with AdminClient.from_environment(environ) as client:
        key = client.post("/admin_api_keys", json=body)
    if arguments.json:
        print_json({"key": key["value"], "id": key["id"], "name": key["name"], "scopes": key["scopes"]})
    else:
        print(key["value"])
        print(f"lorikeet: key {key['id']}; `lorikeet admin-key revoke {key['id']}` ends it", file=sys.stderr)
    return 0


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    keys = client.get_all("/admin_api_keys")
    times = ("created_at", "expires_at", "last_used_at", "revoked_at")
    return print_rows(
        arguments,
        keys,
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


@over_admin
def _revoke(arguments: argparse.Namespace, client: AdminClient) -> int:
    client.delete(f"/admin_api_keys/{id_part(arguments.key_id)}")
    shown = {"id": arguments.key_id, "revoked": True}
    return print_result(arguments, shown, f"key {arguments.key_id} is revoked")
