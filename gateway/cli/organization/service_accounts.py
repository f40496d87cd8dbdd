"""`lorikeet service-account`: the programs of a tenant that own keys."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc
from gateway.cli.parts import id_part

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet service-account` to the command line."""
    account = verbs.add_parser(
        "service-account",
        help="create, list and remove service accounts",
        description="Manage service accounts: programs of a tenant, with keys that do not depend on a person.",
    )
    actions = account.add_subparsers(metavar="ACTION", required=True)
    create = actions.add_parser(
        "create",
        help="create a service account",
        description="Create a service account and print the first key of the account. The key is never shown again.",
    )
    create.add_argument("--name", required=True, metavar="TEXT", help="name of the service account")
    create.set_defaults(run=_create)
    listing = actions.add_parser("list", help="list service accounts", description="List service accounts.")
    listing.set_defaults(run=_list)
    remove = actions.add_parser(
        "remove",
        help="remove a service account",
        description="Remove a service account. The keys of the account stop working at once.",
    )
    remove.add_argument(
        "account_id", metavar="ID", help="id of the service account, as `service-account list` shows it"
    )
    remove.set_defaults(run=_remove)
    for parser in (create, listing, remove):
        parser.add_argument(
            "--tenant", required=True, metavar="NAME", help="name of the tenant that owns the service account"
        )
        add_json_flag(parser)


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        path = client.tenant_path(arguments.tenant)
        account = client.post(f"{path}/service_accounts", json={"name": arguments.name})
    key = account["api_key"]
    if arguments.json:
        print_json({"id": account["id"], "name": account["name"], "key": key["value"], "key_id": key["id"]})
    else:
        print(key["value"])
        print(f"lorikeet: service account {account['id']}, key {key['id']}", file=sys.stderr)
    return 0


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        accounts = client.get_all(f"{client.tenant_path(arguments.tenant)}/service_accounts")
    if arguments.json:
        print_json(accounts)
        return 0
    print_table(("NAME", "ID", "CREATED"), [(a["name"], a["id"], utc(a["created_at"])) for a in accounts])
    return 0


def _remove(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        path = client.tenant_path(arguments.tenant)
        client.delete(f"{path}/service_accounts/{id_part(arguments.account_id)}")
    shown = {"id": arguments.account_id, "removed": True}
    return print_result(arguments, shown, f"service account {arguments.account_id} is removed")
