"""`lorikeet user logins`: a person's logins to the running server's admin API, listed and ended."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(actions: Verbs) -> None:
    """Add `lorikeet user logins` to the command line."""
    logins = actions.add_parser(
        "logins", help="list and revoke a user's logins", description="Manage the logins of a user."
    )
    verbs = logins.add_subparsers(metavar="ACTION", required=True)
    listing = verbs.add_parser(
        "list", help="list logins", description="List the active logins of a user, oldest first."
    )
    listing.set_defaults(run=_list)
    revoke = verbs.add_parser(
        "revoke", help="end all logins", description="End all logins of a user. Keys of the user keep working."
    )
    revoke.set_defaults(run=_revoke)
    for parser in (listing, revoke):
        parser.add_argument("--email", required=True, metavar="ADDRESS", help="the user's e-mail address")
        add_json_flag(parser)


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        logins = client.get(f"/users/{client.user(arguments.email)['id']}/logins")["data"]
    if arguments.json:
        print_json(logins)
        return 0
    times = ("created_at", "last_used_at", "expires_at")
    print_table(
        ("ID", "ADDRESS", "CREATED", "LAST USED", "EXPIRES", "BROWSER"),
        [(each["id"], each["address"], *(utc(each[time]) for time in times), each["user_agent"]) for each in logins],
    )
    return 0


def _revoke(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        ended = client.delete(f"/users/{client.user(arguments.email)['id']}/logins")
    return print_result(arguments, ended, f"{len(ended['ids'])} logins of {arguments.email} have ended")
