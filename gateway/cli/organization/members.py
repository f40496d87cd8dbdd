"""`lorikeet member`: people and their roles in a tenant of the running server."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.organization.users import ROLES
from gateway.cli.output import print_result, print_rows, utc
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet member` to the command line."""
    actions = add_group(verbs, "member", "Manage the members of a tenant: users with a role in that tenant.")
    add = add_verb(
        actions,
        "add",
        _add,
        "give a user a role in a tenant",
        "Give a user a role in a tenant. The new role replaces the user's previous role in the tenant.",
    )
    add.add_argument("--role", required=True, choices=ROLES, help="role in the tenant")
    listing = add_verb(actions, "list", _list, "list members", "List a tenant's members, oldest first.")
    remove = add_verb(
        actions,
        "remove",
        _remove,
        "remove a member",
        "Remove a user from a tenant. Keys that the user owns in the tenant end too.",
    )
    for parser in (add, remove):
        parser.add_argument("--email", required=True, metavar="ADDRESS", help="the user's e-mail address")
    for parser in (add, listing, remove):
        parser.add_argument("--tenant", required=True, metavar="NAME", help="name of the tenant")


@over_admin
def _add(arguments: argparse.Namespace, client: AdminClient) -> int:
    path, user = client.tenant_path(arguments.tenant), client.user(arguments.email)
    member = client.post(f"{path}/users", json={"user_id": user["id"], "role": arguments.role})
    return print_result(arguments, member, f"{member['email']} has the role {member['role']} in {arguments.tenant}")


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    members = client.get_all(f"{client.tenant_path(arguments.tenant)}/users")
    rows = [(member["email"], member["id"], member["role"], utc(member["added_at"])) for member in members]
    return print_rows(arguments, members, ("EMAIL", "ID", "ROLE", "ADDED"), rows)


@over_admin
def _remove(arguments: argparse.Namespace, client: AdminClient) -> int:
    path, user = client.tenant_path(arguments.tenant), client.user(arguments.email)
    client.delete(f"{path}/users/{user['id']}")
    shown = {"id": user["id"], "removed": True}
    return print_result(arguments, shown, f"{user['email']} is no member of {arguments.tenant} any more")
