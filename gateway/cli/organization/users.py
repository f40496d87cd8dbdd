"""`lorikeet user`: the people who may log in to the running server's admin API."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import CommandFailed
from gateway.cli.organization import logins, passkeys
from gateway.cli.output import print_result, print_rows, utc
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs

LOCKED_OUT = (
    "locked out: a second factor is required, and the user has none but passkeys of another host name than that of "
    "LORIKEET_PUBLIC_URL. Set it as it was, or `lorikeet user reset`."
)

ROLES = ("owner", "admin", "billing", "viewer")


def register(verbs: Verbs) -> None:
    """Add `lorikeet user` to the command line."""
    actions = add_group(verbs, "user", "Manage the people who may log in to the admin API and the dashboard.")
    create = add_verb(
        actions,
        "create",
        _create,
        "create a user",
        "Create a user. A user who exists already is left unchanged: fail where the flags say otherwise than the user "
        "is, or give a password.",
    )
    create.add_argument("--name", default="", metavar="TEXT", help="name of the user")
    create.add_argument(
        "--role",
        choices=ROLES,
        help="role in the organization (default: none, for people who are only members of tenants)",
    )
    add_verb(actions, "list", _list, "list users", "List users, oldest first.")
    modify = add_verb(
        actions, "modify", _modify, "change a user's role", "Give a user another role in the organization."
    )
    modify.add_argument("--role", required=True, choices=(*ROLES, "none"), help="role in the organization")
    reset = add_verb(
        actions,
        "reset",
        _reset,
        "give a user a new password",
        "Set a new password for a user, end all logins and lockouts of the user, and remove the "
        "user's authenticator and passkeys.",
    )
    logins.register(actions)
    passkeys.register(actions)
    remove = add_verb(
        actions,
        "remove",
        _remove,
        "remove a user",
        "Remove a user. Logins, memberships and keys of the user end at once.",
    )
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


def _create(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient, RequestRefused

    body = {"email": arguments.email, "name": arguments.name, "role": arguments.role}
    if arguments.password_stdin:
        body["password"] = _read_password()
    with AdminClient.from_environment(environ) as client:
        try:
            user, created = client.post("/users", json=body), True
        except RequestRefused as refused:
            if refused.code != "conflict":
                raise
            found = client.get("/users", email=arguments.email)["data"]
            if not found:  # another organization has the address
                raise
            user, created = found[0], False
            _check_same(arguments, user)
    how = "created" if created else "exists already"
    return print_result(arguments, user | {"created": created}, f"user {user['email']} {how}: {user['id']}")


def _check_same(arguments: argparse.Namespace, user: dict[str, Any]) -> None:
    """Check that a user who exists is as the flags of `user create` say.

    Raises CommandFailed: when the user has another name or role, or a password is given, which nobody can compare.
    """
    differs = []
    if arguments.name and arguments.name != user["name"]:
        differs.append(f"the name is '{user['name']}'")
    if arguments.role and arguments.role != user["role"]:
        differs.append(f"the role is {user['role'] or 'none'} (`lorikeet user modify` changes it)")
    if arguments.password_stdin:
        differs.append("the password stays as it is (`lorikeet user reset` sets another)")
    if differs:
        raise CommandFailed(f"there is already a user with the address {user['email']}: {'; '.join(differs)}")


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    users = client.get_all("/users")
    rows = [(u["email"], u["id"], u["role"], _second_factor(u), utc(u["added_at"])) for u in users]
    if any(u["is_locked_out"] for u in users):
        print(LOCKED_OUT, file=sys.stderr)
    return print_rows(arguments, users, ("EMAIL", "ID", "ROLE", "SECOND FACTOR", "ADDED"), rows)


def _second_factor(user: dict[str, Any]) -> str:
    """Return in words the ways in which a user can log in besides with a password."""
    if user["is_locked_out"]:
        return "locked out"
    number = user["num_passkeys"]
    passkeys = f"{number} passkey{'' if number == 1 else 's'}" if number else ""
    return ", ".join(filter(None, ("authenticator" if user["has_totp"] else "", passkeys))) or "none"


def _modify(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    role = None if arguments.role == "none" else arguments.role
    with AdminClient.from_environment(environ) as client:
        user = client.post(f"/users/{client.user(arguments.email)['id']}", json={"role": role})
    return print_result(arguments, user, f"user {user['email']} has the role {arguments.role}")


def _reset(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    body = {"password": _read_password()}
    with AdminClient.from_environment(environ) as client:
        user = client.post(f"/users/{client.user(arguments.email)['id']}/reset", json=body)
    return print_result(arguments, user, f"user {user['email']} has a new password")


@over_admin
def _remove(arguments: argparse.Namespace, client: AdminClient) -> int:
    user = client.user(arguments.email)
    client.delete(f"/users/{user['id']}")
    return print_result(arguments, {"id": user["id"], "removed": True}, f"user {user['email']} is removed")


def _read_password() -> str:
    password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise CommandFailed("standard input is empty: expected a password")
    return password
