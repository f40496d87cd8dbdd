"""`lorikeet key`: the API keys of a tenant of the running server."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.output import print_json, print_result, print_rows, utc
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

DAY_S = 86_400


def register(verbs: Verbs) -> None:
    """Add `lorikeet key` to the command line."""
    actions = add_group(verbs, "key", "Manage the API keys of a tenant.")
    _register_create(actions)
    listing = add_verb(actions, "list", _list, "list keys", "List a tenant's keys, revoked ones included.")
    listing.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant")
    rotate = add_verb(
        actions,
        "rotate",
        _rotate,
        "give a key a new secret",
        "Print a new secret for a key. The new secret is never shown again, and the old secret "
        "works until the grace period ends.",
    )
    rotate.add_argument(
        "--grace", type=int, default=DAY_S, metavar="SECONDS", help="grace period in seconds (default: a day)"
    )
    suspend = add_verb(
        actions,
        "suspend",
        _set_suspended,
        "suspend a key",
        "Refuse a key until the key is resumed. Takes effect within a second.",
        action="suspend",
    )
    resume = add_verb(
        actions, "resume", _set_suspended, "resume a key", "Accept a suspended key again.", action="resume"
    )
    revoke = add_verb(
        actions, "revoke", _revoke, "revoke a key", "Revoke a key for good. The key stops working within a second."
    )
    for parser in (rotate, suspend, resume, revoke):
        parser.add_argument("key_id", metavar="KEY_ID", help="id of the key, as `key list` shows it")


def _register_create(actions: Verbs) -> None:
    create = add_verb(
        actions, "create", _create, "create a key", "Create a key and print the key. The key is never shown again."
    )
    create.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant that owns the key")
    create.add_argument(
        "--name", default="default", metavar="TEXT", help="name of the key, for people (default: %(default)s)"
    )
    create.add_argument(
        "--scope",
        action="append",
        choices=["inference", "feedback", "adapters", "experiments", "usage"],
        help="permission of the key; repeat the flag for more (default: inference)",
    )
    create.add_argument(
        "--model",
        action="append",
        metavar="ID",
        help="id of a model that the key may call; repeat the flag for more (default: all)",
    )
    create.add_argument(
        "--ip",
        action="append",
        metavar="CIDR",
        help="network from which the key may be used; repeat the flag for more (default: all)",
    )
    create.add_argument("--expires-in-days", type=int, metavar="N", help="days until the key expires (default: never)")
    create.add_argument("--service-account", metavar="ID", help="id of the service account that owns the key")


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    days = arguments.expires_in_days
    wanted = {
        "name": arguments.name,
        "scopes": arguments.scope,
        "models": arguments.model,
        "ip_allowlist": arguments.ip,
        "expires_at": None if days is None else int(time.time()) + days * DAY_S,
        "service_account_id": arguments.service_account,
    }
    with AdminClient.from_environment(environ) as client:
        path = client.tenant_path(arguments.tenant)
        body = {name: value for name, value in wanted.items() if value is not None}
        created = client.post(f"{path}/api_keys", json=body)
        unknown = [model for model in arguments.model or () if not _is_known(client, path, model)]
    code = _print_secret(arguments, created, {"tenant": arguments.tenant})
    for model in unknown:
        print(
            f"lorikeet: tenant '{arguments.tenant}' has no model '{model}' now: the key may use one that is made later",
            file=sys.stderr,
        )
    return code


def _is_known(client: AdminClient, tenant_path: str, model: str) -> bool:
    """Tell whether a tenant has a model now; True where the caller may not ask. A key may come before its model."""
    from gateway.cli.client import RequestRefused

    try:
        client.post(f"{tenant_path}/plans/explain", json={"model": model})
    except RequestRefused as refused:
        return refused.code != "model_not_found"
    return True


@over_admin
def _rotate(arguments: argparse.Namespace, client: AdminClient) -> int:
    path = client.key_path(arguments.key_id)
    rotated = client.post(f"{path}/rotate", json={"grace_seconds": arguments.grace})
    return _print_secret(arguments, rotated, {"previous_expires_at": rotated["previous_secret_expires_at"]})


def _print_secret(arguments: argparse.Namespace, key: Mapping[str, Any], more: Mapping[str, Any]) -> int:
    if arguments.json:
        print_json({"key": key["value"], "id": key["id"], "name": key["name"], **more})
    else:
        print(key["value"])
        # Not on stdout, where scripts take the key from.
        print(f"lorikeet: key {key['id']}; `lorikeet key revoke {key['id']}` ends it", file=sys.stderr)
    return 0


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    keys = client.get_all(f"{client.tenant_path(arguments.tenant)}/api_keys")
    times = ("created_at", "expires_at", "last_used_at", "suspended_at", "revoked_at")
    return print_rows(
        arguments,
        keys,
        ("NAME", "ID", "KEY", "CREATED", "EXPIRES", "LAST USED", "SUSPENDED", "REVOKED"),
        [(key["name"], key["id"], key["redacted_value"], *(utc(key[time]) for time in times)) for key in keys],
    )


@over_admin
def _set_suspended(arguments: argparse.Namespace, client: AdminClient) -> int:
    key = client.post(f"{client.key_path(arguments.key_id)}/{arguments.action}")
    state = "active" if key["suspended_at"] is None else "suspended"
    return print_result(arguments, key, f"key {key['id']} ({key['redacted_value']}) is {state}")


@over_admin
def _revoke(arguments: argparse.Namespace, client: AdminClient) -> int:
    path = client.key_path(arguments.key_id)
    client.delete(path)
    key = client.get(path)
    shown = {"id": key["id"], "revoked": True}
    return print_result(arguments, shown, f"key {key['id']} ({key['redacted_value']}) is revoked")
