"""`lorikeet audit`: the audit log of the running server, and the check of its chain."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import EXIT_FAILED, EXIT_OK
from gateway.cli.output import print_result, print_rows, utc
from gateway.cli.verbs import add_group, add_verb, over_admin

if TYPE_CHECKING:
    from gateway.cli.client import AdminClient
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet audit` to the command line."""
    actions = add_group(verbs, "audit", "Read the audit log, which records every change made through the admin API.")
    listing = add_verb(actions, "list", _list, "list changes", "List changes, newest first.")
    listing.add_argument("--tenant", metavar="NAME", help="show only this tenant")
    listing.add_argument(
        "--event",
        action="append",
        metavar="TYPE",
        help="show only events of this type, e.g. project.created; repeat the flag for more",
    )
    listing.add_argument(
        "--object", action="append", metavar="ID", help="show only changes of this object; repeat the flag for more"
    )
    listing.add_argument(
        "--email", action="append", metavar="ADDRESS", help="show only changes by this user; repeat the flag for more"
    )
    add_verb(
        actions,
        "verify",
        _verify,
        "check the audit log's chain of hashes",
        "Recompute the chain of hashes of the audit log. If a row was altered or is missing, "
        "names the first such row and exits with 1.",
    )


@over_admin
def _list(arguments: argparse.Namespace, client: AdminClient) -> int:
    params: dict[str, Any] = {
        "event_types[]": arguments.event,
        "resource_ids[]": arguments.object,
        "actor_emails[]": arguments.email,
    }
    if arguments.tenant is not None:
        params["project_ids[]"] = client.tenant_path(arguments.tenant).removeprefix("/projects/")
    rows = client.get_all("/audit_logs", **{name: value for name, value in params.items() if value})
    return print_rows(
        arguments,
        rows,
        ("NUMBER", "TIME", "EVENT", "OBJECT", "ACTOR", "ADDRESS"),
        [
            (row["sequence"], utc(row["effective_at"]), row["type"], row[row["type"]]["id"], *_actor(row["actor"]))
            for row in rows
        ],
    )


@over_admin
def _verify(arguments: argparse.Namespace, client: AdminClient) -> int:
    found = client.get("/audit_logs/verify")
    broken = found["first_broken"]
    if broken is None:
        text = f"the audit log holds: {found['num_rows']} rows, head {found['head_hash']}"
    else:
        named = f"row {broken['sequence']}" + (f" ({broken['id']})" if broken["id"] else "")
        text = f"the audit log is broken at {named}: {broken['reason']}"
    print_result(arguments, found, text)
    return EXIT_OK if broken is None else EXIT_FAILED


def _actor(actor: Mapping[str, Any]) -> tuple[str, str]:
    """Return the e-mail address or the id of the actor of a change, and the network address."""
    who = actor[actor["type"]]
    user = who.get("user", who)
    return user.get("email") or user["id"], who["ip_address"]
