"""`lorikeet audit`: the audit log of the running server, and the check of its chain."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gateway.cli.errors import EXIT_FAILED, EXIT_OK
from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet audit` to the command line."""
    audit = verbs.add_parser(
        "audit",
        help="list and verify the audit log",
        description="Read the audit log, which records every change made through the admin API.",
    )
    actions = audit.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list changes", description="List changes, newest first.")
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
    add_json_flag(listing)
    listing.set_defaults(run=_list)
    verify = actions.add_parser(
        "verify",
        help="check the audit log's chain of hashes",
        description="Recompute the chain of hashes of the audit log. If a row was altered or is missing, "
        "names the first such row and exits with 1.",
    )
    add_json_flag(verify)
    verify.set_defaults(run=_verify)


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        params: dict[str, Any] = {
            "event_types[]": arguments.event,
            "resource_ids[]": arguments.object,
            "actor_emails[]": arguments.email,
        }
        if arguments.tenant is not None:
            params["project_ids[]"] = client.tenant_path(arguments.tenant).removeprefix("/projects/")
        rows = client.get_all("/audit_logs", **{name: value for name, value in params.items() if value})
    if arguments.json:
        print_json(rows)
        return 0
    print_table(
        ("NUMBER", "TIME", "EVENT", "OBJECT", "ACTOR", "ADDRESS"),
        [
            (row["sequence"], utc(row["effective_at"]), row["type"], row[row["type"]]["id"], *_actor(row["actor"]))
            for row in rows
        ],
    )
    return 0


def _verify(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
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
    """Return who made a change, and from which address."""
    who = actor[actor["type"]]
    user = who.get("user", who)
    return user.get("email") or user["id"], who["ip_address"]
