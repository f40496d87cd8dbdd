"""`lorikeet period` and `lorikeet invoice`: months that are closed once, and the amount of each tenant in them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.billing.stripe import warn_of_unbilled
from gateway.cli.output import add_json_flag, print_json, print_result, print_table, utc, write_file
from gateway.cli.parts import id_part
from gateway.domain.billing.money import decimal_text

if TYPE_CHECKING:
    from gateway.cli.output import Verbs


def register(verbs: Verbs) -> None:
    """Add `lorikeet period` and `lorikeet invoice` to the command line."""
    period = verbs.add_parser(
        "period", help="list and close billing periods", description="Manage billing periods, which are months."
    )
    actions = period.add_subparsers(metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="list periods", description="List months, newest first.")
    listing.set_defaults(run=_list)
    close = actions.add_parser(
        "close",
        help="close a period",
        description="Close a month that has ended: credits are consumed, and the month's usage never changes again.",
    )
    close.add_argument("period", metavar="MONTH", help="month, e.g. 2026-10")
    close.set_defaults(run=_close)
    invoice = verbs.add_parser("invoice", help="issue and show invoices", description="Manage the invoices of tenants.")
    actions = invoice.add_subparsers(metavar="ACTION", required=True)
    issue = actions.add_parser(
        "issue",
        help="issue a period's invoices",
        description="Issue the invoices of a closed month for all tenants, and give each invoice a number.",
    )
    issue.add_argument("--period", required=True, metavar="MONTH", help="month, e.g. 2026-10")
    issue.set_defaults(run=_issue)
    show = actions.add_parser(
        "show",
        help="show invoices",
        description="Show the invoices of a month: issued invoices, or drafts for a month that is not issued.",
    )
    show.add_argument("--period", required=True, metavar="MONTH", help="month, e.g. 2026-10")
    show.add_argument("--tenant", metavar="NAME", help="show only this tenant's invoice (required for html)")
    show.add_argument(
        "--format", choices=("text", "json", "html"), default="text", help="output format (default: text)"
    )
    show.add_argument("--out", type=Path, metavar="FILE", help="file for the html (default: standard output)")
    show.set_defaults(run=_show)
    for parser in (listing, close, issue, show):
        add_json_flag(parser)


def _list(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        periods = client.get_all("/periods")
    if arguments.json:
        print_json(periods)
        return 0
    print_table(
        ("PERIOD", "STATE", "REQUESTS", "COST", "CLOSED", "INVOICED"),
        [
            (
                each["id"],
                each["state"],
                each["num_requests"],
                f"{decimal_text(each['cost_nanos'])} {each['currency']}",
                utc(each["closed_at"]),
                utc(each["invoiced_at"]),
            )
            for each in periods
        ],
    )
    return 0


def _close(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        closed = client.post(f"/periods/{id_part(arguments.period)}/close")
    if names := [project["name"] for project in closed["projects_without_customer"]]:
        warn_of_unbilled(names, closed["id"])
    text = f"{closed['id']} is {closed['state']}: {decimal_text(closed['cost_nanos'])} {closed['currency']}"
    return print_result(arguments, closed, text)


def _issue(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient

    with AdminClient.of(environ) as client:
        issued = client.post(f"/periods/{id_part(arguments.period)}/invoices")["data"]
    if arguments.json:
        print_json(issued)
    else:
        _print_invoices(issued)
    return 0


def _show(arguments: argparse.Namespace, environ: Mapping[str, str]) -> int:
    from gateway.cli.client import AdminClient
    from gateway.cli.errors import CommandFailed

    period = id_part(arguments.period)
    with AdminClient.of(environ) as client:
        if arguments.format == "html":
            if arguments.tenant is None:
                raise CommandFailed("--format html shows one invoice: name the tenant with --tenant")
            page = client.get_text(f"{client.tenant_path(arguments.tenant)}/invoices/{period}", format="html")
            if arguments.out is None:
                print(page, end="")
            else:
                write_file(arguments.out, page)
            return 0
        if arguments.tenant is None:
            invoices = client.get(f"/periods/{period}/invoices")["data"]
        else:
            invoices = [client.get(f"{client.tenant_path(arguments.tenant)}/invoices/{period}")]
    if arguments.json or arguments.format == "json":
        print_json(invoices if arguments.tenant is None else invoices[0])
    else:
        _print_invoices(invoices)
    return 0


def _print_invoices(invoices: list[dict[str, Any]]) -> None:
    print_table(
        ("NUMBER", "TENANT", "USAGE", "ADJUSTMENTS", "CREDIT", "DUE"),
        [
            (
                each["number"] or "draft",
                each["project"]["name"],
                decimal_text(each["usage_nanos"]),
                decimal_text(each["adjustments_nanos"]),
                decimal_text(each["credit_nanos"]),
                f"{decimal_text(each['due_nanos'])} {each['currency']}",
            )
            for each in invoices
        ],
    )
