"""`lorikeet user logins`: a person's logins to the running server's admin API, listed and ended."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.output import print_result, print_rows, utc
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(actions: Verbs) -> None:
    """Add `lorikeet user logins` to the command line."""
    verbs = add_group(actions, "logins", "Manage the logins of a user.", help="list and revoke a user's logins")
    listing = add_verb(verbs, "list", _list, "list logins", "List the active logins of a user, oldest first.")
    revoke = add_verb(
        verbs, "revoke", _revoke, "end all logins", "End all logins of a user. Keys of the user keep working."
    )
    for parser in (listing, revoke):
        parser.add_argument("--email", required=True, metavar="ADDRESS", help="the user's e-mail address")


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    logins = client.get(f"/users/{client.user(arguments.email)['id']}/logins")["data"]
    times = ("created_at", "last_used_at", "expires_at")
    return print_rows(
        arguments,
        logins,
        ("ID", "ADDRESS", "CREATED", "LAST USED", "EXPIRES", "BROWSER"),
        [(each["id"], each["address"], *(utc(each[time]) for time in times), each["user_agent"]) for each in logins],
    )


@over_admin
def _revoke(arguments: argparse.Namespace, client: AdminClient) -> int:
    ended = client.delete(f"/users/{client.user(arguments.email)['id']}/logins")
    return print_result(arguments, ended, f"{len(ended['ids'])} logins of {arguments.email} have ended")
