"""`lorikeet service-account`: the programs of a tenant that own keys."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from gateway.cli.output import print_json, print_result, print_rows, utc
from gateway.cli.path_parts import id_part
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet service-account` to the command line."""
    actions = add_group(
        verbs,
        "service-account",
        "Manage service accounts: programs of a tenant, with keys that do not depend on a person.",
    )
    create = add_verb(
        actions,
        "create",
        _create,
        "create a service account",
        "Create a service account and print the first key of the account. The key is never shown again.",
    )
    create.add_argument("--name", required=True, metavar="TEXT", help="name of the service account")
    listing = add_verb(actions, "list", _list, "list service accounts", "List service accounts.")
    remove = add_verb(
        actions,
        "remove",
        _remove,
        "remove a service account",
        "Remove a service account. The keys of the account stop working at once.",
    )
    remove.add_argument(
        "account_id", metavar="ID", help="id of the service account, as `service-account list` shows it"
    )
    for parser in (create, listing, remove):
        parser.add_argument(
            "--tenant", required=True, metavar="NAME", help="name of the tenant that owns the service account"
        )


@over_admin
def _create(arguments: argparse.Namespace, client: AdminClient) -> int:
    path = client.tenant_path(arguments.tenant)
    account = client.post(f"{path}/service_accounts", json={"name": arguments.name})
    key = account["api_key"]
    if arguments.json:
        print_json({"id": account["id"], "name": account["name"], "key": key["value"], "key_id": key["id"]})
    else:
        print(key["value"])
        print(f"lorikeet: service account {account['id']}, key {key['id']}", file=sys.stderr)
    return 0


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    accounts = client.get_all(f"{client.tenant_path(arguments.tenant)}/service_accounts")
    return print_rows(
        arguments, accounts, ("NAME", "ID", "CREATED"), [(a["name"], a["id"], utc(a["created_at"])) for a in accounts]
    )


@over_admin
def _remove(arguments: argparse.Namespace, client: AdminClient) -> int:
    path = client.tenant_path(arguments.tenant)
    client.delete(f"{path}/service_accounts/{id_part(arguments.account_id)}")
    shown = {"id": arguments.account_id, "removed": True}
    return print_result(arguments, shown, f"service account {arguments.account_id} is removed")
