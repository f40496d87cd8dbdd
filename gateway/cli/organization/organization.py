"""`lorikeet organization`: all tenants of the running server at once."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gateway.cli.output import print_result
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet organization` to the command line."""
    actions = add_group(verbs, "organization", "Manage the organization, to which all tenants belong.")
    add_verb(
        actions, "show", _show, "show the organization", "Show the organization to which the operator's key belongs."
    )
    add_verb(
        actions,
        "suspend",
        _set_suspended,
        "suspend the organization",
        "Refuse the keys of all tenants until the organization is resumed. Takes effect within a second.",
        action="suspend",
    )
    add_verb(
        actions,
        "resume",
        _set_suspended,
        "resume the organization",
        "Accept the keys of all tenants again.",
        action="resume",
    )


@over_admin
def _show(arguments: argparse.Namespace, client: AdminClient) -> int:
    found = client.get("")
    return print_result(arguments, found, _line(found["name"], found["suspended_at"]))


@over_admin
def _set_suspended(arguments: argparse.Namespace, client: AdminClient) -> int:
    changed = client.post(f"/{arguments.action}")
    return print_result(arguments, changed, _line(changed["name"], changed["suspended_at"]))


def _line(name: str, suspended_at: int | None) -> str:
    return f"organization {name} is {'active' if suspended_at is None else 'suspended'}"
