"""`lorikeet user`: the people who may log in to the running server's admin API."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandFailed
from gateway.cli.organization import logins, passkeys
from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc

if TYPE_CHECKING:
    from gateway.cli.output import Verbs

ROLES = ("owner", "admin", "billing", "viewer")


def register(verbs: Verbs) -> None:
    """Add `lorikeet user` to the command line."""
    user = verbs.add_parser(
        "user",
        help="create, list, change and remove users",
        description="Manage the people who may log in to the admin API and the dashboard.",
    )
    actions = user.add_subparsers(metavar="ACTION", required=True)
    create = actions.add_parser(
        "create", help="create a user", description="Create a user. A user who exists already is left unchanged."
    )
    create.add_argument("--name", default="", metavar="TEXT", help="name of the user")
    create.add_argument(
        "--role",
        choices=ROLES,
        help="role in the organization (default: none, for people who are only members of tenants)",
    )
    create.set_defaults(run=_create)
    listing = actions.add_parser("list", help="list users", description="List users, oldest first.")
    listing.set_defaults(run=_list)
    modify = actions.add_parser(
        "modify", help="change a user's role", description="Give a user another role in the organization."
    )
    modify.add_argument("--role", required=True, choices=(*ROLES, "none"), help="role in the organization")
    modify.set_defaults(run=_modify)
    reset = actions.add_parser(
        "reset",
        help="give a user a new password",
        description="Set a new password for a user, end all logins and lockouts of the user, and remove the "
        "user's authenticator and passkeys.",
    )
    reset.set_defaults(run=_reset)
    logins.register(actions)
    passkeys.register(actions)
    remove = actions.add_parser(
        "remove",
        help="remove a user",
        description="Remove a user. Logins, memberships and keys of the user end at once.",
    )
    remove.set_defaults(run=_remove)
    for parser in (create, modify, reset, remove):
        parser.add_argument("--email", required=True, metavar="ADDRESS", help="the user's e-mail address")
    create.add_argument(
        "--password-stdin",
        action="store_true",
        help="read the user's password from standard input (default: no password, so that the user cannot log in yet)",
    )
    reset.add_argument(
        "--password-stdin", action="store_true", required=True, help="read the password from standard input"
    )
    for parser in (create, listing, modify, reset, remove):
        add_json_flag(parser)


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient, Refused

    body = {"email": arguments.email, "name": arguments.name, "role": arguments.role}
    if arguments.password_stdin:
        body["password"] = _read_password()
    with AdminClient.of(environ) as client:
        try:
            user, created = client.post("/users", json=body), True
        except Refused as refused:
            if refused.code != "conflict":
                raise
            user, created = client.user(arguments.email), False
    how = "created" if created else "exists already"
    return print_result(arguments, user | {"created": created}, f"user {user['email']} {how}: {user['id']}")


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        users = client.get_all("/users")
    if arguments.json:
        print_json(users)
        return 0
    rows = [(u["email"], u["id"], u["role"], "yes" if u["has_totp"] else "no", utc(u["added_at"])) for u in users]
    print_table(("EMAIL", "ID", "ROLE", "TOTP", "ADDED"), rows)
    return 0


def _modify(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    role = None if arguments.role == "none" else arguments.role
    with AdminClient.of(environ) as client:
        user = client.post(f"/users/{client.user(arguments.email)['id']}", json={"role": role})
    return print_result(arguments, user, f"user {user['email']} has the role {arguments.role}")


def _reset(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    body = {"password": _read_password()}
    with AdminClient.of(environ) as client:
        user = client.post(f"/users/{client.user(arguments.email)['id']}/reset", json=body)
    return print_result(arguments, user, f"user {user['email']} has a new password")


def _remove(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        user = client.user(arguments.email)
        client.delete(f"/users/{user['id']}")
    return print_result(arguments, {"id": user["id"], "removed": True}, f"user {user['email']} is removed")


def _read_password() -> str:
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CommandFailed("standard input is empty: expected a password")
    return password
