"""`lorikeet organization`: all tenants of the running server at once."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gateway.cli.output import add_json_flag, print_result

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet organization` to the command line."""
    organization = verbs.add_parser(
        "organization",
        help="show, suspend and resume the organization",
        description="Manage the organization, to which all tenants belong.",
    )
    actions = organization.add_subparsers(metavar="ACTION", required=True)
    show = actions.add_parser(
        "show", help="show the organization", description="Show the organization to which the operator's key belongs."
    )
    show.set_defaults(run=_show)
    suspend = actions.add_parser(
        "suspend",
        help="suspend the organization",
        description="Refuse the keys of all tenants until the organization is resumed. Takes effect within a second.",
    )
    suspend.set_defaults(run=_set_suspended, action="suspend")
    resume = actions.add_parser(
        "resume", help="resume the organization", description="Accept the keys of all tenants again."
    )
    resume.set_defaults(run=_set_suspended, action="resume")
    for parser in (show, suspend, resume):
        add_json_flag(parser)


def _show(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        found = client.get("")
    return print_result(arguments, found, _line(found["name"], found["suspended_at"]))


def _set_suspended(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        changed = client.post(f"/{arguments.action}")
    return print_result(arguments, changed, _line(changed["name"], changed["suspended_at"]))


def _line(name: str, suspended_at: int | None) -> str:
    return f"organization {name} is {'active' if suspended_at is None else 'suspended'}"
