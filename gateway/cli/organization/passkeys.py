"""`lorikeet user passkeys`: a person's passkeys, listed and removed over the running server's admin API."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gateway.cli.output import print_result, print_rows, utc
from gateway.cli.path_parts import id_part
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(actions: Verbs) -> None:
    """Add `lorikeet user passkeys` to the command line."""
    verbs = add_group(actions, "passkeys", "Manage the passkeys of a user.", help="list and remove a user's passkeys")
    listing = add_verb(verbs, "list", _list, "list passkeys", "List the passkeys of a user, oldest first.")
    remove = add_verb(
        verbs, "remove", _remove, "remove a passkey", "Remove a passkey of a user and end all logins of the user."
    )
    remove.add_argument("passkey", metavar="ID", help="the id of the passkey, as `list` shows it")
    for parser in (listing, remove):
        parser.add_argument("--email", required=True, metavar="ADDRESS", help="the user's e-mail address")


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    passkeys = client.get(f"/users/{client.user(arguments.email)['id']}/passkeys")["data"]
    return print_rows(
        arguments,
        passkeys,
        ("ID", "NAME", "HOST", "ADDED", "LAST USED"),
        [
            (each["id"], each["name"], _host(each), utc(each["created_at"]), utc(each["last_used_at"]))
            for each in passkeys
        ],
    )


def _host(passkey: dict[str, Any]) -> str:
    """Return the host name of a passkey, and whether it is another one than the server's."""
    host = passkey["host"] or "-"
    return host if passkey["is_usable"] else f"{host} (not this server's)"


@over_admin
def _remove(arguments: argparse.Namespace, client: AdminClient) -> int:
    user = client.user(arguments.email)["id"]
    removed = client.delete(f"/users/{user}/passkeys/{id_part(arguments.passkey)}")
    return print_result(arguments, removed, f"Removed the passkey {arguments.passkey} of {arguments.email}")
