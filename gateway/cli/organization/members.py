"""`lorikeet member`: people and their roles in a tenant of the running server."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.organization.users import ROLES
from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet member` to the command line."""
    member = verbs.add_parser(
        "member",
        help="add, list and remove members of a tenant",
        description="Manage the members of a tenant: users with a role in that tenant.",
    )
    actions = member.add_subparsers(metavar="ACTION", required=True)
    add = actions.add_parser(
        "add",
        help="give a user a role in a tenant",
        description="Give a user a role in a tenant. The new role replaces the user's previous role in the tenant.",
    )
    add.add_argument("--role", required=True, choices=ROLES, help="role in the tenant")
    add.set_defaults(run=_add)
    listing = actions.add_parser("list", help="list members", description="List a tenant's members, oldest first.")
    listing.set_defaults(run=_list)
    remove = actions.add_parser(
        "remove",
        help="remove a member",
        description="Remove a user from a tenant. Keys that the user owns in the tenant end too.",
    )
    remove.set_defaults(run=_remove)
    for parser in (add, remove):
        parser.add_argument("--email", required=True, metavar="ADDRESS", help="the user's e-mail address")
    for parser in (add, listing, remove):
        parser.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant")
        add_json_flag(parser)


def _add(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        path, user = client.tenant_path(arguments.tenant), client.user(arguments.email)
        member = client.post(f"{path}/users", json={"user_id": user["id"], "role": arguments.role})
    return print_result(arguments, member, f"{member['email']} has the role {member['role']} in {arguments.tenant}")


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        members = client.get_all(f"{client.tenant_path(arguments.tenant)}/users")
    if arguments.json:
        print_json(members)
        return 0
    rows = [(member["email"], member["id"], member["role"], utc(member["added_at"])) for member in members]
    print_table(("EMAIL", "ID", "ROLE", "ADDED"), rows)
    return 0


def _remove(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        path, user = client.tenant_path(arguments.tenant), client.user(arguments.email)
        client.delete(f"{path}/users/{user['id']}")
    shown = {"id": user["id"], "removed": True}
    return print_result(arguments, shown, f"{user['email']} is no member of {arguments.tenant} any more")
