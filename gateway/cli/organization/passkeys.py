"""`lorikeet user passkeys`: a person's passkeys, listed and removed over the running server's admin API."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc
from gateway.cli.parts import id_part

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(actions: Verbs) -> None:
    """Add `lorikeet user passkeys` to the command line."""
    passkeys = actions.add_parser(
        "passkeys", help="list and remove a user's passkeys", description="Manage the passkeys of a user."
    )
    verbs = passkeys.add_subparsers(metavar="ACTION", required=True)
    listing = verbs.add_parser("list", help="list passkeys", description="List the passkeys of a user, oldest first.")
    listing.set_defaults(run=_list)
    remove = verbs.add_parser(
        "remove", help="remove a passkey", description="Remove a passkey of a user and end all logins of the user."
    )
    remove.add_argument("passkey", metavar="ID", help="the id of the passkey, as `list` shows it")
    remove.set_defaults(run=_remove)
    for parser in (listing, remove):
        parser.add_argument("--email", required=True, metavar="ADDRESS", help="the user's e-mail address")
        add_json_flag(parser)


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        passkeys = client.get(f"/users/{client.user(arguments.email)['id']}/passkeys")["data"]
    if arguments.json:
        print_json(passkeys)
        return 0
    print_table(
        ("ID", "NAME", "ADDED", "LAST USED"),
        [(each["id"], each["name"], utc(each["created_at"]), utc(each["last_used_at"])) for each in passkeys],
    )
    return 0


def _remove(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        user = client.user(arguments.email)["id"]
        removed = client.delete(f"/users/{user}/passkeys/{id_part(arguments.passkey)}")
    return print_result(arguments, removed, f"Removed the passkey {arguments.passkey} of {arguments.email}")
